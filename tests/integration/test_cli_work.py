"""The commands at their work, through processes of their own: recipes, data, runs, and a model used and scored."""

import functools
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import atento
from atento.config.tables import tasks
from atento.metrics import chrf
from conftest import ENVIRONMENT, ForkServer, each_refused, lines_of, refused

PLAIN = [sys.executable, "-c", "from atento_cli.start import main; main()"]


def test_recipe_errors_name_the_place(server: ForkServer, here: Path) -> None:
    (here / "bad.yaml").write_text("task: translation\ndata: {train: {world: train}}\ntraning: {}\n", encoding="utf-8")
    (here / "text.yaml").write_text("task: language-modeling\ndata: {train: {world: train}}\n", encoding="utf-8")
    refusals = {
        "bad.yaml": "bad.yaml:3:1: unknown key 'traning'; did you mean 'training'",
        "none.yaml": "none.yaml",
        "tiny.yaml training.steps=x": "training.steps must be an integer",
        "tiny.yaml training.step=1": "did you mean 'steps'",
    }
    for command in ("train", "config check", "data peek", "data stats"):
        each_refused(server, here, {f"{command} {rest}": said for rest, said in refusals.items()})
        refused(server.run(*command.split(), "tiny.yaml", "training.steps", cwd=here), "key=value", "'training.steps'")
    alone = {
        "config check text.yaml tokenizer.shared=false": "command line: tokenizer.shared needs sources and targets",
        "train tiny.yaml network.vocab_size=7": "`network.vocab_size` must be the token",
        "train tiny.yaml data.max_len=1": "no training pair is left: all are longer",
    }
    each_refused(server, here, alone)
    assert not (here / "runs" / "tiny" / "checkpoints").exists()


def test_data_stats_and_peek(server: ForkServer, here: Path) -> None:
    done = server.run("data", "stats", "tiny.yaml", "--json", cwd=here)
    records = {record["split"]: record for record in json.loads(done.stdout)}
    train = lines_of(here / "train.tsv", 0)
    assert set(records) == {"train", "valid"} and records["train"]["pairs"] == 60
    assert records["train"]["source_words"] == sum(len(text.split()) for text in train)
    assert records["train"]["source_longest"] == max(len(text.split()) for text in train)
    assert records["train"]["repeated"] == 0
    tokenizer = atento.Tokenizer.load(here / "run" / "tokenizer")
    sides = [[len(tokenizer.encode(text)) for text in lines_of(here / "train.tsv", side)] for side in (0, 1)]
    short = ["data.max_len=14", "tokenizer=run/tokenizer"]
    over = json.loads(server.run("data", "stats", "tiny.yaml", *short, "--json", cwd=here).stdout)[0]["over_max_len"]
    assert over == {"max_len": 14, "records": sum(count + 1 > 14 for count in map(max, *sides)), "cut": "none"}
    assert 0 < over["records"] < 60
    short_run = server.run("train", "tiny.yaml", *short, "training.steps=1", "--out", "short", cwd=here)
    assert f"{over['records']} of 60 training pairs left out: longer than 14 tokens" in short_run.stderr
    shown = server.run("data", "stats", "tiny.yaml", *short, cwd=here).stdout
    assert shown.startswith("train: 60 pairs\n  train.tsv: the first line, read as data, ")
    said = f"longer than data.max_len 14: {over['records']} pairs"
    assert said in shown and "which are left out of training" in shown
    cut = server.run("data", "stats", "tiny.yaml", *short, "data.truncate=source", cwd=here).stdout
    assert "lose the end of a long source (data.truncate source)" in cut
    plain = json.loads(server.run("data", "stats", "tiny.yaml", "--json", "--no-tokens", cwd=here).stdout)
    assert "over_max_len" not in plain[0] and "tokens" not in plain[0]["lengths"]["source"]
    done = server.run("data", "peek", "tiny.yaml", "--count", "2", "--json", cwd=here)
    examples = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(examples) == 2 and done.stderr == "tokenizer: bpe, 360 pieces\n"
    for example in examples:
        assert example["source_ids"]["tokens"][-1] == example["labels"]["tokens"][-1] == "</s>"
        assert example["target_ids"]["tokens"] == ["<s>", *example["labels"]["tokens"][:-1]]
        assert "".join(example["source_ids"]["tokens"][:-1]).replace("▁", " ").strip() in train
    text = server.run("data", "peek", "tiny.yaml", "--count", "1", cwd=here).stdout
    assert len(text.splitlines()) == 4 and " </s>:3" in text
    refused(server.run("data", "fetch", "wikipedia", cwd=here), "unknown text 'wikipedia'")


def test_data_peek_shows_the_names_of_classes(server: ForkServer, here: Path) -> None:
    (here / "reviews.tsv").write_text("text\tlabel\nbom filme\tpositive\nruim\tnegative\n", encoding="utf-8")
    recipe = (
        "task: classification\ndata: {train: {file: reviews.tsv, text: text, label: label}}\n"
        "tokenizer: {kind: word}\nnetwork: {architecture: encoder, d_model: 16, n_heads: 2, n_layers: 1}\n"
    )
    (here / "reviews.yaml").write_text(recipe, encoding="utf-8")
    done = server.run("data", "peek", "reviews.yaml", "--json", cwd=here)
    assert {" ".join(one["ids"]["tokens"]): one["labels"] for one in map(json.loads, done.stdout.splitlines())} == {
        "<s> bom filme </s>": {"ids": [1], "tokens": ["positive"]},
        "<s> ruim </s>": {"ids": [0], "tokens": ["negative"]},
    }
    assert "labels  negative:0\n" in server.run("data", "peek", "reviews.yaml", cwd=here).stdout


def test_config_and_recipes_and_training_from_a_copy(server: ForkServer, here: Path) -> None:
    assert server.run("recipes", "copy", "micro-world-en-pt", "mine.yaml", cwd=here).stdout == "mine.yaml\n"
    small = [
        *("data.train.0.count=60", "data.valid.0.count=3", "data.test.0.count=3", "tokenizer.vocab_size=340"),
        *("network.d_model=16", "network.d_ff=32", "network.n_heads=2", "network.n_layers=1", "training.steps=2"),
        *("decoding.beam=1", "decoding.max_new_tokens=4", "training.precision=float32"),
    ]
    assert server.run("config", "check", "mine.yaml", *small, cwd=here).stdout == "ok\n"
    shown = server.run("config", "show", "mine.yaml", *small, "--json", cwd=here)
    assert json.loads(shown.stdout)["recipe"]["training"]["steps"] == 2
    done = server.run("train", "mine.yaml", *small, "--threads", "1", cwd=here)
    assert done.status == 0 and (here / "runs" / "mine" / "run.json").exists()
    record = json.loads(server.run("runs", "show", "runs/mine", "--json", cwd=here).stdout)
    assert record["step"] == 2 and record["finished"] and record["checkpoints"] == ["step-00000002"]
    assert set(record["scores"]) == {"loss", "nll", "bleu", "chrf"}
    assert json.loads(server.run("runs", "--json", cwd=here).stdout) == [record]
    shown = server.run("config", "show", "runs/mine/recipe.yaml", "--json", cwd=here)
    assert json.loads(shown.stdout)["recipe"]["network"]["d_model"] == 16  # a run's recipe is a recipe
    moved = server.run("config", "check", "multi30k-en-de", "data.folder=nowhere", cwd=here)
    assert (moved.status, moved.stdout) == (0, "ok\n") and moved.stderr.count("\n") == 4
    assert f"warning: data.valid: no such file here: {here / 'nowhere' / 'val.de'}\n" in moved.stderr
    assert server.run("config", "check", "-", cwd=here, stdin=(here / "mine.yaml").read_text("utf-8")).stdout == "ok\n"


def test_unequal_parallel_files_and_folders_that_are_no_runs(server: ForkServer, here: Path) -> None:
    refusals = {"runs show": "`atento runs show` takes one run folder", "runs show none": "none is not a run"}
    refusals |= {"runs": "runs is not a folder of runs", "runs a b": "a b is not a folder of runs"}
    each_refused(server, here, refusals)
    (here / "empty").mkdir()
    done = server.run("runs", "empty", cwd=here)
    assert (done.status, done.stdout) == (0, "")
    (here / "a.en").write_text("one\ntwo\nthree\n", encoding="utf-8")
    (here / "a.pt").write_text("um\ndois\n", encoding="utf-8")
    rule = "line N of one must correspond to line N of the other"
    said = f"a.en has 3 lines and a.pt has 2, and {rule}: a.en:3 has no partner"
    parallel = ["~data.train", "data.train.source=a.en", "data.train.target=a.pt"]
    refused(server.run("train", "tiny.yaml", *parallel, cwd=here), said)
    refused(server.run("data", "stats", "tiny.yaml", *parallel, "data.skip_bad=true", cwd=here), said)
    refused(server.run("evaluate", "run", "a.en", "a.pt", cwd=here), said)
    each_refused(server, here, {"score bleu a.en a.pt": "must correspond to line N of a.pt: got 3 and 2 lines"})


def test_evaluate_scores_gates_and_json(server: ForkServer, here: Path) -> None:
    done = server.run("evaluate", "run", "valid.tsv", "--json", "--greedy", cwd=here)
    assert done.status == 0 and done.stderr == ""
    records = json.loads(done.stdout)
    outputs = atento.load(here / "run").translate(lines_of(here / "valid.tsv", 0), beam=1)
    right = chrf(outputs, lines_of(here / "valid.tsv", 1))
    assert records["chrf"]["value"] == right.value and records["chrf"]["interval"] == list(right.interval())
    assert set(records) == {"bleu", "chrf", "exact-match"}
    text = server.run("evaluate", "run", "valid.tsv", "--metrics", "chrf", "--greedy", cwd=here).stdout
    assert text.startswith(f"chrF2 {right.value:.2f} [")
    passed = ["--fail-under", "chrf=0", "--fail-under", "bleu=0"]
    assert server.run("evaluate", "run", "valid.tsv", *passed, cwd=here).status == 0
    missed = server.run("evaluate", "run", "valid.tsv", "--fail-under", "chrf=101", "--fail-under", "ter=-1", cwd=here)
    assert missed.status == 3 and missed.stderr.startswith("gate missed: chrf ") and "< 101.0, ter " in missed.stderr
    assert "> -1.0" in missed.stderr  # of errors fewer are better
    assert "TER" in missed.stdout  # a gate's metric is scored too
    for gate in ("bleu", "bleu=", "bleu=x", "bleu=nan"):
        refused(server.run("evaluate", "run", "valid.tsv", "--fail-under", gate, cwd=here), "takes METRIC=VALUE", gate)
    (here / "bad.tsv").write_text("a\tb\nbroken\n", encoding="utf-8")
    refusals = {
        "valid.tsv --fail-under blue=2": "unknown metric 'blue'",
        "valid.tsv --metrics bleu,x": "unknown metric 'x'",
        "valid.tsv --task cbow": f"evaluates {', '.join(tasks.scored())}: got",
        "a b c": "a: no such file",  # a third file has references
        "none.tsv": "none.tsv: no such file",
        "bad.tsv": "bad.tsv:2: 1 column separated by a tab",
    }
    each_refused(server, here, {f"evaluate run {rest}": said for rest, said in refusals.items()})
    skipped = server.run("evaluate", "run", "bad.tsv", "--skip-bad", cwd=here)
    assert skipped.status == 0 and skipped.stderr.startswith("warning: bad.tsv: 1 bad record left out, first bad.tsv:2")
    (here / "ref.pt").write_text("".join(f"{line}\n" for line in lines_of(here / "valid.tsv", 1)), encoding="utf-8")
    stdin = "".join(f"{line}\n" for line in lines_of(here / "valid.tsv", 0))
    out = server.run("translate", "run", cwd=here, stdin=stdin).stdout
    scored = json.loads(server.run("score", "chrf", "-", "ref.pt", "--json", cwd=here, stdin=out).stdout)
    direct = json.loads(server.run("evaluate", "run", "valid.tsv", "--json", cwd=here).stdout)
    assert scored["value"] == direct["chrf"]["value"]


def test_attend_to_html_svg_json_and_png(server: ForkServer, here: Path) -> None:
    text, target = lines_of(here / "valid.tsv", 0)[0], lines_of(here / "valid.tsv", 1)[0]
    for name in ("page.html", "map.svg", "all.json"):
        done = server.run("attend", "run", text, "--target", target, "--out", name, cwd=here)
        assert (done.status, done.stdout, done.stderr) == (0, "", f"wrote {name}\n")
    content = json.loads((here / "all.json").read_text(encoding="utf-8"))
    assert set(content["kinds"]) == {"encoder", "decoder", "cross"} and content["tokens"][0] == "<s>"
    assert (here / "map.svg").read_text(encoding="utf-8").startswith("<svg")
    assert "<script" in (here / "page.html").read_text(encoding="utf-8")
    pytest.importorskip("matplotlib")
    drawn = ["--out", "map.png", "--head", "1", "--kind", "encoder"]
    assert server.run("attend", "run", text, *drawn, cwd=here).status == 0
    assert (here / "map.png").read_bytes().startswith(b"\x89PNG")


def test_attend_refuses_and_escapes_a_models_text_in_a_page(server: ForkServer, here: Path) -> None:
    refusals = {
        "'' --out x.html": "give a text to look at: got an empty one",
        "a --out x.svg --layer 5": "`layer` must be from 0 to 0",
        **{f"a --out x.svg --head={head}": "`head` must be from 0 to 1" for head in ("2", "max3", "²", "--1")},
        "a --out x.svg --kind corss": "did you mean 'cross'",
    }
    each_refused(server, here, {f"attend run {rest}": said for rest, said in refusals.items()})
    assert server.run("attend", "run", "a", cwd=here).status == 2 and not list(here.glob("x.*"))
    evil = "<script>alert(1)</script><img src=x onerror=alert(2)>"
    assert server.run("attend", "run", evil, "--target", evil, "--out", "page.html", "--words", cwd=here).status == 0
    page = (here / "page.html").read_text(encoding="utf-8")
    assert "<script>alert" not in page and "<img" not in page


def test_translate_streams_what_it_writes(server: ForkServer, here: Path) -> None:
    """Line N answers line N, an empty line too; the joined pieces are what is written without `--stream`."""
    lines = "o gato\n\nThe cat sleeps. A dog runs.\n"
    for more in (("--greedy",), ("--greedy", "--split-sentences"), ("--top-p", "0.9", "--seed", "3"), ("--beam", "4")):
        plain = server.run("translate", "run", *more, stdin=lines, cwd=here)
        streamed = server.run("translate", "run", *more, "--stream", stdin=lines, cwd=here)
        assert streamed.status == 0 and streamed.stdout == plain.stdout and plain.stdout.count("\n") == 3
    one = "--stream prints one output as text: it excludes --json and --n-best"
    of_translate = {"--mbr chrf": "a stream is one output", "--n-best 2": one, "--json": one}
    refusals = {f"translate run --stream {more}": said for more, said in of_translate.items()}
    refusals["generate run --stream"] = "cannot continue a text"
    refusals["summarize run --stream"] = "this model does translation, not summarization"
    each_refused(server, here, refusals, stdin=lines)


def test_a_summarizer_is_trained_used_and_scored(server: ForkServer, here: Path) -> None:
    """As a translator, but for its name, its metric and the command that uses it."""
    trained = server.run("train", "tiny.yaml", "task=summarization", "metrics=[rouge]", "--out", "short", cwd=here)
    assert trained.status == 0 and "atento summarize short FILE" in trained.stderr
    valid = [json.loads(line) for line in (here / "short" / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    assert [event for event in valid if event["event"] == "valid" and 0 <= event["rouge"] <= 100]
    lines = "a cat\n\nthe dog sleeps\n"
    done = server.run("summarize", "short", stdin=lines, cwd=here)
    wanted = atento.load(here / "short").summarize(lines.split("\n")[:-1])
    assert done.status == 0 and done.stdout.split("\n")[:-1] == wanted
    scored = json.loads(server.run("evaluate", "short", "valid.tsv", "--json", cwd=here).stdout)
    assert set(scored) == {"rouge", "rouge1", "rouge2"}
    each_refused(server, here, {"translate short": "this model does summarization, not translation"}, stdin=lines)


def test_the_four_options_win(server: ForkServer, here: Path) -> None:
    stdin = "\n".join(lines_of(here / "valid.tsv", 0)) + "\n"
    translate = functools.partial(server.run, "translate", "run", cwd=here, stdin=stdin)
    outputs = [translate("--precision", precision) for precision in ("float32", "float64", "bfloat16")]
    assert all(done.status == 0 and done.stdout.count("\n") == 6 for done in outputs)
    assert translate(*["--threads", "2", "--seed", "7", "--device", "cpu"]).stdout == outputs[0].stdout
    assert server.run("translate", "run", "--threads", "0", cwd=here).status == 2


def test_tokenizer_commands_take_a_runs_own_tokenizer_and_a_model(server: ForkServer, here: Path) -> None:
    text = "O gato pulou.\n\nA ação é boa.\n"
    encoded = server.run("tokenizer", "encode", "run/tokenizer", "-", cwd=here, stdin=text)
    assert encoded.stdout.count("\n") == 3 and encoded.stdout.split("\n")[1] == ""
    assert server.run("tokenizer", "decode", "run/tokenizer", cwd=here, stdin=encoded.stdout).stdout == text
    info = json.loads(server.run("tokenizer", "info", "run/tokenizer", "--json", cwd=here).stdout)
    assert info["kind"] == "bpe" and info["vocab_size"] == 360
    run = json.loads((here / "run" / "run.json").read_text("utf-8"))
    assert info["fingerprint"] == run.get("tokenizer", info["fingerprint"])
    wanted = server.run("tokenizer", "info", "run/tokenizer", "--json", cwd=here).stdout
    for model in ("run", sorted((here / "run" / "checkpoints").glob("step-*"))[-1]):
        assert server.run("tokenizer", "info", model, "--json", cwd=here).stdout == wanted
    encoded = server.run("tokenizer", "encode", "run", cwd=here, stdin="O gato pulou.\n")
    assert server.run("tokenizer", "decode", "run", cwd=here, stdin=encoded.stdout).stdout == "O gato pulou.\n"
    (here / "data").mkdir(exist_ok=True)
    refusals = {"nowhere": "no tokenizer at nowhere", "no/where": "no/where", "data": "no tokenizer in data"}
    lines = {f"tokenizer info {name}": said for name, said in refusals.items()}
    each_refused(server, here, lines, env={"HF_HUB_OFFLINE": "1"})


def test_w18_embed_writes_what_the_ending_of_the_name_says(server: ForkServer, here: Path) -> None:
    words = "gato\ncasa\ncorre\n"
    for ending in ("npy", "tsv", "txt", "vec"):
        done = server.run("embed", "run", "--out", f"v.{ending}", cwd=here, stdin=words)
        assert done.status == 0 and not done.stdout and done.stderr == f"wrote v.{ending}: 3 x 16\n"
    wanted = np.load(here / "v.npy")
    np.testing.assert_array_equal(np.loadtxt(here / "v.tsv", delimiter="\t", dtype=np.float32), wanted)
    for name in ("v.txt", "v.vec"):
        head, *rows = (here / name).read_text(encoding="utf-8").splitlines()
        assert head == "3 16" and [row.split()[0] for row in rows] == words.split()
        np.testing.assert_array_equal(np.array([row.split()[1:] for row in rows], dtype=np.float32), wanted)
        similar = server.run("similarity", name, cwd=here, stdin="gato\tcasa\n")  # a model of word vectors again
        cosine = wanted[0] @ wanted[1] / np.linalg.norm(wanted[0]) / np.linalg.norm(wanted[1])
        assert float(similar.stdout) == pytest.approx(float(cosine), abs=1e-5)
    for given, said in {
        "gato\no gato\n": "standard input:2: --out no.txt is word2vec's text format, with one word per line: got 'o",
        "gato\n\n": "standard input:2: --out no.txt is word2vec's text format, with one word per line: got ''",
        "gato\ncasa\ngato\n": "standard input:3: --out no.txt is word2vec's text format, in which words are distinct",
    }.items():  # told before the model is looked for
        refused(server.run("embed", "no-such-model", "--out", "no.txt", cwd=here, stdin=given), said)
        assert not (here / "no.txt").exists()
    (here / "w.csv").write_text('w,x\ngato,"a\nb"\ngato,c\n', encoding="utf-8")  # a row is named by its line
    done = server.run("embed", "no-such-model", "w.csv", "--columns", "w", "--out", "no.txt", cwd=here)
    refused(done, "w.csv:4: --out no.txt is word2vec's text format, in which words are distinct: 'gato' is also line 2")


@pytest.mark.parametrize(
    ("command", "stdin", "said"),
    [
        (["tokenizer", "decode", "run/tokenizer"], "um\n", "standard input:1: a line must be ids"),
        (["tokenizer", "encode", "run/tokenizer"], b"ok\n\xff\n", "standard input:2: not UTF-8"),
        (["score", "bleu", "-", "valid.tsv"], "um\n", "standard input must correspond to line N of valid.tsv"),
        (["config", "check", "-"], "task: translation\ntask: cbow\n", "standard input:2:1: "),
        (["config", "check", "-"], b"task: \xff\n", "standard input:1: not UTF-8 at byte 6"),
        (["config", "check", "-"], b"#" * (2 << 20), "standard input: a recipe may hold at most"),
    ],
)
def test_standard_input_is_named(server: ForkServer, here: Path, command: list[str], stdin: Any, said: str) -> None:
    refused(done := server.run(*command, cwd=here, stdin=stdin), said)
    assert "-:" not in done.stderr


def test_embed_answers_the_lines_before_a_bad_one(server: ForkServer, here: Path) -> None:
    done = server.run("embed", "run", cwd=here, stdin=b"O gato\n\n\xff\n")
    assert done.status == 1 and "standard input:3: not UTF-8" in done.stderr
    both = server.run("embed", "run", cwd=here, stdin="O gato\n\n")
    assert both.status == 0 and done.stdout == both.stdout and both.stdout.count("\n") == 2
    (here / "one-bad.txt").write_bytes(b"O gato\n\xff\n\n")
    words = ["embed", "run", "one-bad.txt", "--skip-bad"]
    first, bad, empty = server.run(*words, cwd=here).stdout.splitlines()
    assert bad == "" and first and empty  # an empty text has a vector, a bad line has none
    done = server.run(*words, "--json", cwd=here)
    rows = [json.loads(line)["vector"] for line in done.stdout.splitlines()]
    assert rows[1] is None and len(rows[0]) == len(rows[2])
    assert "warning: 1 bad line skipped, first: one-bad.txt:2: not UTF-8" in done.stderr
    done = server.run(*words, "--out", "bad.npy", cwd=here)
    assert np.isnan(np.load(here / "bad.npy")).any(axis=1).tolist() == [False, True, False], done.stderr
    assert "warning: 1 bad line skipped" in done.stderr


def test_a_language_that_is_not_packaged_is_told_before_apt_is_asked(server: ForkServer, here: Path) -> None:
    """No program can be found: whoever asks for one says so."""
    env = {"PATH": str(here)}
    said = "LibreOffice's help is not packaged in 'xx'. Known: ca, cs, da"
    refusals = {"data fetch --to pt-BR --to xx --out text": said, "data fetch --to pt-BT": "did you mean 'pt-BR'?"}
    each_refused(server, here, refusals | {"data fetch --to pt-BR": "apt-get is not on this machine"}, env=env)
    each_refused(server, here, {"data fetch catalogues --to xx --out text": "no translation catalogue"})
    assert not (here / "text").exists()


def test_doctor_tells_what_is_here_and_debug_where(server: ForkServer, here: Path) -> None:
    facts = json.loads(server.run("doctor", "--json", cwd=here).stdout)
    assert facts["atento"] == atento.__version__ and facts["threads"] == 1
    assert facts["training precision (auto)"] in ("float32", "bfloat16")
    text = server.run("doctor", cwd=here).stdout
    assert all(line.startswith(name) for name, line in zip(facts, text.splitlines(), strict=True))
    for argv in (["--debug", "translate", "no-model"], ["translate", "no-model", "--debug"]):
        done = server.run(*argv, cwd=here)
        assert done.status == 2 and "Traceback" in done.stderr and done.stderr.endswith("hub name (owner/name)\n")


def test_demo_from_beginning_to_end(server: ForkServer, here: Path) -> None:
    """`atento demo` with the network and the time cut down by the environment, as one would on a small machine."""
    settings = (
        *("DATA__TRAIN__0__COUNT=60", "DATA__VALID__0__COUNT=3", "DATA__TEST__0__COUNT=3", "TOKENIZER__VOCAB_SIZE=340"),
        *("NETWORK__D_MODEL=16", "NETWORK__D_FF=32", "NETWORK__N_HEADS=2", "NETWORK__N_LAYERS=1", "DEMO_STEPS=2"),
        *("TRAINING__PRECISION=float32", "DECODING__BEAM=1", "DECODING__MAX_NEW_TOKENS=4"),
    )
    small = {f"ATENTO_{name}": value for name, _, value in (setting.partition("=") for setting in settings)}
    done = server.good("demo", "My dog sleeps.", "--out", "demo", "--threads", "1", cwd=here, env=small)
    assert "500 unseen combinations" in done.stdout and "BLEU" in done.stdout and "  My dog sleeps.  →  " in done.stdout
    assert "next:" in done.stdout and "atento translate demo" in done.stdout
    assert (here / "demo" / "attention.html").exists() and "step 2: loss" in done.stderr
    flags = ["--threads", "1", "--device", "cpu", "--seed", "1", "--precision", "float32"]
    again = server.run("demo", "My dog sleeps.", "--out", "demo", *flags, "--json", cwd=here, env=small)
    assert again.status == 0 and "already finished" in again.stderr
    record = json.loads(again.stdout)
    assert set(record) == {"steps", "run", "splits", "translations", "page"}
    assert (record["steps"], record["run"]) == (2, "demo") and "\nafter 2 updates:\n" in done.stdout
    score = record["splits"]["structures"]["scores"]["BLEU"]
    assert f"500 unseen structures (longer clauses, two adjectives): BLEU {score:.1f}, " in done.stdout
    own = record["translations"][-1]
    assert own["source"] == "My dog sleeps." and f"  My dog sleeps.  →  {own['output']}\n" in done.stdout


def test_ctrl_c_before_training_is_130(here: Path) -> None:
    files = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    process = subprocess.Popen([*PLAIN, "translate", "run"], cwd=here, env={**os.environ, **ENVIRONMENT}, **files)
    deadline = time.monotonic() + 60
    while process.poll() is None and time.monotonic() < deadline:  # pressed again, as people do: while it still imports
        time.sleep(0.3)  # modules, Python may drop one
        process.send_signal(signal.SIGINT)
    out, said = process.communicate(timeout=60)
    assert process.returncode in (130, -signal.SIGINT)  # a shell shows both as 130
    assert out == b"" and b"Traceback" not in said
