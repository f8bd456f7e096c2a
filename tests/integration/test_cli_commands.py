"""The command line through processes of its own: help, exit statuses, what goes where, files, pipes (contract)."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import typer
from conftest import ENVIRONMENT, ForkServer, refused

import atento
from atento.cli.main import app
from atento.metrics import chrf

pytestmark = pytest.mark.integration

PLAIN = [sys.executable, "-c", "from atento.cli.main import main; main()"]


def commands(group: Any, words: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Every command of the application, as the words one types."""
    yield words
    for name, command in getattr(group, "commands", {}).items():
        yield from commands(command, (*words, name))


COMMANDS = sorted(commands(typer.main.get_command(app)))
GROUPS = {("tokenizer",), ("recipes",), ("config",), ("data",)}


def lines(path: Path, side: int) -> list[str]:
    return [line.split("\t")[side] for line in path.read_text(encoding="utf-8").splitlines()]


# Help and versions --------------------------------------------------------------------------------------------------


def test_the_commands_are_those_of_the_contract() -> None:
    words = {" ".join(command) for command in COMMANDS}
    for wanted in (
        *("train", "recipes list", "recipes show", "recipes copy", "config check", "config show", "data stats"),
        *("data peek", "data fetch", "tokenizer train", "tokenizer encode", "tokenizer decode", "tokenizer info"),
        *("evaluate", "translate", "score", "attend", "average", "runs", "bench", "notes", "demo", "doctor"),
    ):
        assert wanted in words


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_every_command_has_help_with_an_example(server: ForkServer, data: Path, command: tuple[str, ...]) -> None:
    done = server.run(*command, "--help", cwd=data)
    assert done.status == 0 and done.stderr == ""
    text = " ".join(done.stdout.split())
    assert "Usage: " in text and "--help" in text
    if command not in GROUPS:
        assert f"Example: atento {' '.join(command)}" in text or "| atento " + " ".join(command) in text
    short = server.run(*command, "-h", cwd=data)
    assert short.stdout == done.stdout


def test_the_example_of_every_help_names_a_command_that_exists(server: ForkServer, data: Path) -> None:
    for command in COMMANDS:
        text = " ".join(server.run(*command, "--help", cwd=data).stdout.split())
        for words in re.findall(r"Example: .*?atento ([a-z]+(?: [a-z]+)?)", text):
            parts = tuple(words.split())
            assert parts in COMMANDS or parts[:1] in COMMANDS, words


def test_every_command_that_runs_a_network_takes_the_four_options(server: ForkServer, data: Path) -> None:
    for command in ("train", "translate", "evaluate", "attend"):
        text = server.run(command, "--help", cwd=data).stdout
        for option in ("--device", "--seed", "--precision", "--threads"):
            assert option in text, (command, option)


def test_version(server: ForkServer, data: Path) -> None:
    done = server.run("--version", cwd=data)
    assert (done.status, done.stdout, done.stderr) == (0, f"atento {atento.__version__}\n", "")


def test_wrong_words_are_refused(server: ForkServer, data: Path) -> None:
    for argv in (["trian"], ["translate"], ["score", "bleu"], ["translate", "run", "--beem", "3"], ["tokenizer", "x"]):
        done = server.run(*argv, cwd=data)
        assert done.status == 2 and done.stdout == "" and "Traceback" not in done.stderr and done.stderr
    for argv in (
        ["translate", "run", "--beam", "0"],
        ["translate", "run", "--beam", "x"],
        ["train", "tiny.yaml", "--seed", "-1"],
    ):
        assert server.run(*argv, cwd=data).status == 2


LIGHT = """
import sys
sys.argv = ["atento", *{argv!r}]
from atento.cli.main import main
try:
    main()
except SystemExit as end:
    assert not end.code, end.code
heavy = {{"torch", "numpy", "transformers", "tokenizers", "sacrebleu", "huggingface_hub", "pydantic", "matplotlib"}}
print(sorted(heavy & set(sys.modules)), file=sys.stderr)
"""


@pytest.mark.parametrize(
    ("argv", "allowed"),
    [
        (["--help"], []),
        (["--version"], []),
        (["train", "--help"], []),
        (["recipes", "list"], []),
        (["config", "show", "micro-world-en-pt"], []),
        (["score", "chrf", "hyp", "ref", "--interval"], ["numpy", "sacrebleu"]),
        (["tokenizer", "train", "hyp", "--out", "tok", "--kind", "word"], ["tokenizers"]),
    ],
    ids=lambda value: " ".join(value),
)
def test_torch_is_loaded_only_to_run_a_network(tmp_path: Path, argv: list[str], allowed: list[str]) -> None:
    for name in ("hyp", "ref"):
        (tmp_path / name).write_text("a b c\n", encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-c", LIGHT.format(argv=argv)], cwd=tmp_path, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    loaded = set(json.loads(done.stderr.splitlines()[-1].replace("'", '"')))
    assert loaded <= {"pydantic", *allowed}


def test_import_atento_loads_nothing_heavy() -> None:
    code = (
        "import sys, atento; assert {'torch', 'numpy', 'pydantic', 'typer'}.isdisjoint(sys.modules); "
        "assert atento.__all__ == ['__version__', 'evaluate', 'load', 'train']; "
        "assert callable(atento.load) and callable(atento.train) and callable(atento.evaluate)\n"
        "try: atento.nothing\n"
        "except AttributeError as error: print(error)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, "module 'atento' has no attribute 'nothing'\n"), done.stderr


# Translate ----------------------------------------------------------------------------------------------------------


def test_one_line_in_one_line_out(server: ForkServer, here: Path) -> None:
    source = lines(here / "valid.tsv", 0)
    text = "\n".join([source[0], "", source[1], "   ", *source[2:]]) + "\n"
    (here / "in.txt").write_text(text, encoding="utf-8", newline="\n")
    from_file = server.run("translate", "run", "in.txt", cwd=here)
    assert from_file.status == 0 and from_file.stderr == ""
    out = from_file.stdout.split("\n")
    assert len(out) == text.count("\n") + 1 and out[1] == out[3] == "" and out[-1] == ""
    for argv in (["run"], ["run", "-"], [here / "run", "-"]):
        assert server.run("translate", *argv, cwd=here, stdin=text).stdout == from_file.stdout
    assert server.run("translate", "run", cwd=here, stdin=text[:-1]).stdout == from_file.stdout  # no last newline
    assert server.run("translate", "run", cwd=here, stdin=text.replace("\n", "\r\n")).stdout == from_file.stdout
    assert server.run("translate", "run", cwd=here, stdin="").stdout == ""
    assert server.run("translate", "run", cwd=here, stdin="\n").stdout == "\n"
    model = atento.load(here / "run")
    assert out[:-1] == model.translate(text.split("\n")[:-1])


def test_eight_characters_that_are_no_line_ends(server: ForkServer, here: Path) -> None:
    """Only a newline ends a line: not VT, FF, FS, GS, RS, NEL, U+2028 or U+2029."""
    text = "a\x0bb\x0cc\x1cd\x1de\x1ef\x85g\u2028h\u2029i\nj\n"
    assert server.run("translate", "run", cwd=here, stdin=text).stdout.count("\n") == 2


def test_a_model_that_writes_line_ends_still_answers_line_by_line(server: ForkServer, here: Path) -> None:
    """A model over bytes may write newlines, returns and tabs; here are random weights that love to."""
    command = ["train", "tiny.yaml", "tokenizer.kind=byte", "~tokenizer.vocab_size", "network.tied_embeddings=false"]
    done = server.run(*command, "training.steps=1", "--out", "bytes", "--threads", "1", cwd=here)
    assert done.status == 0, done.stderr
    model = atento.load(here / "bytes")
    assert model.tokenizer is not None
    marks = [model.tokenizer.token_id(name) for name in ("<0x0A>", "<0x0D>", "<0x09>")]
    source, seen = lines(here / "train.tsv", 0)[:20], ""
    for seed in range(100):
        g = torch.Generator().manual_seed(seed)
        weights = {name: torch.randn(value.shape, generator=g) for name, value in model.network.state_dict().items()}
        weights["output_weight"][marks] *= 3
        model.network.load_state_dict(weights)
        raw = model.translate(source, beam=2, n_best=2, max_new_tokens=20)
        found = {mark for mark in "\n\r\t" for texts in raw for text in texts if mark in text}
        if not found - set(seen):
            continue
        seen += "".join(found)
        model.save(here / f"model-{seed}")
        command = ["translate", f"model-{seed}", "--beam", "2", "--max-new-tokens", "20"]
        one = server.run(*command, cwd=here, stdin="\n".join(source)).stdout.split("\n")
        assert one[:-1] == [texts[0].replace("\n", " ").replace("\r", " ") for texts in raw]
        two = server.run(*command, "--n-best", "2", cwd=here, stdin="\n".join(source)).stdout.split("\n")
        assert two[:-1] == ["\t".join(re.sub("[\n\r\t]", " ", text) for text in texts) for texts in raw]
        if set(seen) == set("\n\r\t"):
            return
    raise AssertionError(f"only {seen!r} was ever written")


def test_decoding_flags(server: ForkServer, here: Path) -> None:
    source = lines(here / "valid.tsv", 0)
    stdin, model = "\n".join(source) + "\n", atento.load(here / "run")
    for flags, options in (
        (["--greedy"], {"beam": 1}),
        (["--beam", "3"], {"beam": 3}),
        (["--beam", "3", "--length-penalty", "0.2"], {"beam": 3, "length_penalty": 0.2}),
        (["--max-new-tokens", "3"], {"max_new_tokens": 3}),
        (["--beam", "2", "--batch-tokens", "10"], {"beam": 2}),
    ):
        done = server.run("translate", "run", *flags, cwd=here, stdin=stdin)
        assert done.status == 0 and done.stdout.split("\n")[:-1] == model.translate(source, **options), flags
    many = server.run("translate", "run", "--beam", "3", "--n-best", "2", cwd=here, stdin=stdin)
    assert [line.split("\t") for line in many.stdout.split("\n")[:-1]] == model.translate(source, beam=3, n_best=2)
    refused(server.run("translate", "run", "--greedy", "--beam", "2", cwd=here), "--greedy and --beam 2 exclude each")
    refused(server.run("translate", "run", "--beam", "2", "--n-best", "3", cwd=here, stdin="a\n"), "must not exceed")
    refused(
        server.run("translate", "run", "--n-best", "2", "--split-sentences", cwd=here),
        "--n-best and --split-sentences exclude each other",
    )
    refused(
        server.run("translate", "run", "--precision", "int4", cwd=here), "must be one of float32, bfloat16, float64"
    )
    refused(server.run("translate", "run", "--device", "toaster", cwd=here), "got 'toaster'")


def test_json_holds_every_hypothesis(server: ForkServer, here: Path) -> None:
    source = lines(here / "valid.tsv", 0)[:3]
    stdin = "\n".join([source[0], "", *source[1:]]) + "\n"
    done = server.run("translate", "run", "--json", "--beam", "3", "--n-best", "2", cwd=here, stdin=stdin)
    records = [json.loads(line) for line in done.stdout.splitlines()]
    assert [record["source"] for record in records] == stdin.split("\n")[:-1]
    found = atento.load(here / "run").translations(source, beam=3, n_best=2)
    for record, right in zip([records[0], *records[2:]], found, strict=True):
        assert [one["text"] for one in record["translations"]] == [one.text for one in right]
        assert [one["log_prob"] for one in record["translations"]] == pytest.approx(
            [o.hypothesis.log_prob for o in right]
        )
        assert set(record["translations"][0]) == {"text", "score", "log_prob", "finished"}
    assert [one["text"] for one in records[1]["translations"]] == [""]


def test_split_sentences(server: ForkServer, here: Path) -> None:
    one, two = lines(here / "valid.tsv", 0)[:2]
    model = atento.load(here / "run")
    done = server.run("translate", "run", "--split-sentences", cwd=here, stdin=f"{one} {two}\n\n{two}\n")
    assert done.stdout == f"{model.translate(one)} {model.translate(two)}\n\n{model.translate(two)}\n"


def test_wrong_encodings_are_refused_by_line_or_counted(server: ForkServer, here: Path) -> None:
    (here / "latin.txt").write_bytes("good\na\xe7\xe3o\nfine\n".encode("latin-1"))
    done = server.run("translate", "run", "latin.txt", cwd=here)
    refused(done, "latin.txt:2: not UTF-8: byte 0xe7 at byte 6 of the file; it looks like ISO-8859-1 (`iconv -f")
    refused(server.run("translate", "run", cwd=here, stdin=b"ok\n\xff\n"), "standard input:2: not UTF-8: byte 0xff")
    for argv, stdin in ((["latin.txt"], b""), (["-"], (here / "latin.txt").read_bytes())):
        done = server.run("translate", "run", *argv, "--skip-bad", cwd=here, stdin=stdin)
        out = done.stdout.split("\n")
        assert done.status == 0 and len(out) == 4 and out[1] == ""
        assert (
            done.stderr.startswith("warning: 1 bad lines became empty ones, first: ") and ":2: not UTF-8" in done.stderr
        )
    (here / "wide.txt").write_bytes("olá\n".encode("utf-16"))
    refused(server.run("translate", "run", "wide.txt", cwd=here), "begins with the mark of UTF-16LE")
    refused(server.run("translate", "run", "none.txt", cwd=here), "none.txt: no such file")
    refused(server.run("translate", "run", "run", cwd=here), "run: is a directory")


def test_models_that_are_not_there(server: ForkServer, here: Path) -> None:
    offline = {"HF_HUB_OFFLINE": "1", "HF_HUB_CACHE": str(here)}
    refused(server.run("translate", "no-model", cwd=here, stdin="a\n"), "no model at no-model: give a run folder")
    refused(
        server.run("translate", "runs/none", cwd=here, stdin="a\n", env=offline), "runs/none is no local folder, and"
    )
    refused(
        server.run("translate", "runs/a--b", cwd=here, stdin="a\n", env=offline), "runs/a--b is no local folder, and"
    )
    refused(server.run("translate", "tiny.yaml", cwd=here, stdin="a\n"), "tiny.yaml is a file; a model is a folder")
    refused(server.run("translate", ".", cwd=here, stdin="a\n"), "is neither a run (no checkpoints) nor a model folder")


def test_only_the_tokenizers_own_error_speaks_of_surrogates(server: ForkServer, here: Path) -> None:
    """A shell may hand over bytes that are no UTF-8; Python turns them into half surrogate pairs."""
    done = subprocess.run(
        [*PLAIN, "attend", "run", b"a\xff", "--out", "x.html"],
        cwd=here,
        env={**os.environ, **ENVIRONMENT},
        capture_output=True,
        timeout=60,
    )
    assert done.returncode == 2 and b"lone surrogate" in done.stderr and b"Traceback" not in done.stderr


# Pipes and full disks -----------------------------------------------------------------------------------------------


def broken_pipe(argv: list[str], cwd: Path, first: bool) -> tuple[int, bytes]:
    """A command whose reader leaves at once, or after the first line; its status and what it complained of."""
    process = subprocess.Popen(
        [*PLAIN, *argv],
        cwd=cwd,
        env={**os.environ, **ENVIRONMENT},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout is not None and process.stderr is not None
    if first:
        assert process.stdout.readline()
    process.stdout.close()
    said = process.stderr.read()
    process.stderr.close()
    return process.wait(timeout=60), said


@pytest.mark.parametrize("first", [True, False])
def test_closing_the_pipe_early_is_no_error(here: Path, first: bool) -> None:
    """`| head -1`, with much more to come than a pipe holds."""
    (here / "long.txt").write_text("the cat sleeps\n" * 30_000, encoding="utf-8")
    assert broken_pipe(["tokenizer", "encode", "run/tokenizer", "long.txt", "--json"], here, first) == (0, b"")
    assert broken_pipe(["config", "schema"], here, first) == (0, b"")
    assert broken_pipe(["--help"], here, first) == (0, b"")


def test_a_reader_that_leaves_while_it_translates(here: Path) -> None:
    (here / "long.txt").write_text(("the cat sleeps\n" + "\n" * 200_000), encoding="utf-8")
    status, said = broken_pipe(["translate", "run", "long.txt", "--greedy", "--threads", "1"], here, True)
    assert (status, said) == (0, b"")


def test_a_full_disk_behind_standard_output(here: Path) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("needs /dev/full")
    for argv in (["recipes", "list"], ["tokenizer", "info", "run/tokenizer"]):
        with Path("/dev/full").open("wb") as full:
            done = subprocess.run(
                [*PLAIN, *argv],
                cwd=here,
                env={**os.environ, **ENVIRONMENT},
                stdout=full,
                stderr=subprocess.PIPE,
                timeout=60,
            )
        assert done.returncode == 1
        assert done.stderr == b"error: standard output: No space left on device\n"


def test_nobody_listens_to_standard_error(here: Path) -> None:
    process = subprocess.Popen(
        [*PLAIN, "translate", "no-model"], cwd=here, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE
    )
    assert process.stderr is not None
    process.stderr.close()
    assert process.wait(timeout=60) == 2


# Recipes, data, configuration ---------------------------------------------------------------------------------------


def test_recipe_errors_name_the_place(server: ForkServer, here: Path) -> None:
    (here / "bad.yaml").write_text("task: translation\ndata: {train: {world: train}}\ntraning: {}\n", encoding="utf-8")
    for command in (["train"], ["config", "check"], ["data", "peek"], ["data", "stats"]):
        refused(
            server.run(*command, "bad.yaml", cwd=here), "bad.yaml:3:1: unknown key 'traning'; did you mean 'training'"
        )
        refused(server.run(*command, "none.yaml", cwd=here), "none.yaml")
        refused(server.run(*command, "tiny.yaml", "training.steps", cwd=here), "key=value", "'training.steps'")
        refused(server.run(*command, "tiny.yaml", "training.steps=x", cwd=here), "training.steps must be an integer")
        refused(server.run(*command, "tiny.yaml", "training.step=1", cwd=here), "did you mean 'steps'")
    refused(server.run("train", "tiny.yaml", "task=tagging", cwd=here), "task 'tagging' is not built yet")
    refused(server.run("train", "tiny.yaml", "tokenizer.shared=false", cwd=here), "is not built yet; use true")
    refused(
        server.run("train", "tiny.yaml", "network.vocab_size=7", cwd=here), "`network.vocab_size` must be the token"
    )
    refused(server.run("train", "tiny.yaml", "data.max_len=1", cwd=here), "no training pair is left: all are longer")
    assert not (here / "runs" / "tiny" / "checkpoints").exists()


def test_unequal_parallel_files(server: ForkServer, here: Path) -> None:
    (here / "a.en").write_text("one\ntwo\nthree\n", encoding="utf-8")
    (here / "a.pt").write_text("um\ndois\n", encoding="utf-8")
    said = "a.en has 3 lines and a.pt has 2, and line N of one must answer line N of the other: a.en:3 has no partner"
    parallel = ["~data.train", "data.train.source=a.en", "data.train.target=a.pt"]
    refused(server.run("train", "tiny.yaml", *parallel, cwd=here), said)
    refused(server.run("data", "stats", "tiny.yaml", *parallel, "data.skip_bad=true", cwd=here), said)
    refused(server.run("evaluate", "run", "a.en", "a.pt", cwd=here), said)
    refused(server.run("score", "bleu", "a.en", "a.pt", cwd=here), "must answer line N of a.pt: got 3 and 2 lines")


def test_data_stats_and_peek(server: ForkServer, here: Path) -> None:
    done = server.run("data", "stats", "tiny.yaml", "--json", cwd=here)
    records = {record["split"]: record for record in json.loads(done.stdout)}
    train = lines(here / "train.tsv", 0)
    assert set(records) == {"train", "valid"} and records["train"]["pairs"] == 60
    assert records["train"]["source_words"] == sum(len(text.split()) for text in train)
    assert records["train"]["source_longest"] == max(len(text.split()) for text in train)
    assert records["train"]["repeated"] == 0
    assert server.run("data", "stats", "tiny.yaml", cwd=here).stdout.startswith("train\tpairs 60\trepeated 0\t")
    done = server.run("data", "peek", "tiny.yaml", "--count", "2", "--json", cwd=here)
    examples = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(examples) == 2 and done.stderr == "tokenizer: bpe, 360 pieces\n"
    for example in examples:
        assert example["source"]["tokens"][-1] == example["labels"]["tokens"][-1] == "</s>"
        assert example["target_input"]["tokens"] == ["<s>", *example["labels"]["tokens"][:-1]]
        assert "".join(example["source"]["tokens"][:-1]).replace("▁", " ").strip() in train
    text = server.run("data", "peek", "tiny.yaml", "--count", "1", cwd=here).stdout
    assert len(text.splitlines()) == 4 and " </s>:3" in text
    refused(server.run("data", "fetch", "wikipedia", cwd=here), "unknown text 'wikipedia'")


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
    assert server.run("config", "check", "-", cwd=here, stdin=(here / "mine.yaml").read_text("utf-8")).stdout == "ok\n"


def test_runs_refuses_what_is_none(server: ForkServer, here: Path) -> None:
    refused(server.run("runs", cwd=here), "runs is not a folder of runs")
    refused(server.run("runs", "show", cwd=here), "`atento runs show` takes one run folder")
    refused(server.run("runs", "show", "none", cwd=here), "none is not a run")
    refused(server.run("runs", "a", "b", cwd=here), "a b is not a folder of runs")
    (here / "empty").mkdir()
    done = server.run("runs", "empty", cwd=here)
    assert (done.status, done.stdout) == (0, "")


# Using a model ------------------------------------------------------------------------------------------------------


def test_evaluate_scores_gates_and_json(server: ForkServer, here: Path) -> None:
    done = server.run("evaluate", "run", "valid.tsv", "--json", "--greedy", cwd=here)
    assert done.status == 0 and done.stderr == ""
    records = json.loads(done.stdout)
    outputs = atento.load(here / "run").translate(lines(here / "valid.tsv", 0), beam=1)
    right = chrf(outputs, lines(here / "valid.tsv", 1))
    assert records["chrf"]["value"] == right.value and records["chrf"]["interval"] == list(right.interval())
    assert set(records) == {"bleu", "chrf", "exact-match"}
    text = server.run("evaluate", "run", "valid.tsv", "--metrics", "chrf", "--greedy", cwd=here).stdout
    assert text.startswith(f"chrF2 {right.value:.2f} [")
    passed = server.run("evaluate", "run", "valid.tsv", "--fail-under", "chrf=0", "--fail-under", "bleu=0", cwd=here)
    assert passed.status == 0
    missed = server.run("evaluate", "run", "valid.tsv", "--fail-under", "chrf=101", "--fail-under", "ter=-1", cwd=here)
    assert missed.status == 3 and missed.stderr.startswith("gate missed: chrf ") and "< 101.0" in missed.stderr
    assert "TER" in missed.stdout  # a gate's metric is scored too
    for gate in ("bleu", "bleu=", "bleu=x", "bleu=nan"):
        refused(server.run("evaluate", "run", "valid.tsv", "--fail-under", gate, cwd=here), "takes METRIC=VALUE", gate)
    refused(server.run("evaluate", "run", "valid.tsv", "--fail-under", "blue=2", cwd=here), "unknown metric 'blue'")
    refused(server.run("evaluate", "run", "valid.tsv", "--metrics", "bleu,x", cwd=here), "unknown metric 'x'")
    refused(server.run("evaluate", "run", "valid.tsv", "--task", "tagging", cwd=here), "evaluates translation: got")
    refused(server.run("evaluate", "run", "a", "b", "c", cwd=here), "or two parallel files: got 3 files")
    refused(server.run("evaluate", "run", "none.tsv", cwd=here), "none.tsv: no such file")
    (here / "bad.tsv").write_text("a\tb\nbroken\n", encoding="utf-8")
    refused(server.run("evaluate", "run", "bad.tsv", cwd=here), "bad.tsv:2: 1 column separated by a tab")
    skipped = server.run("evaluate", "run", "bad.tsv", "--skip-bad", cwd=here)
    assert skipped.status == 0 and skipped.stderr.startswith("warning: bad.tsv: 1 bad record left out, first bad.tsv:2")


def test_score_of_translations_from_a_pipe(server: ForkServer, here: Path) -> None:
    (here / "ref.pt").write_text("".join(f"{line}\n" for line in lines(here / "valid.tsv", 1)), encoding="utf-8")
    stdin = "".join(f"{line}\n" for line in lines(here / "valid.tsv", 0))
    out = server.run("translate", "run", cwd=here, stdin=stdin).stdout
    scored = json.loads(server.run("score", "chrf", "-", "ref.pt", "--json", cwd=here, stdin=out).stdout)
    direct = json.loads(server.run("evaluate", "run", "valid.tsv", "--json", cwd=here).stdout)
    assert scored["value"] == direct["chrf"]["value"]


def test_attend_to_html_svg_json_and_png(server: ForkServer, here: Path) -> None:
    text, target = lines(here / "valid.tsv", 0)[0], lines(here / "valid.tsv", 1)[0]
    for name in ("page.html", "map.svg", "all.json"):
        done = server.run("attend", "run", text, "--target", target, "--out", name, cwd=here)
        assert (done.status, done.stdout, done.stderr) == (0, "", f"wrote {name}\n")
    content = json.loads((here / "all.json").read_text(encoding="utf-8"))
    assert set(content["kinds"]) == {"encoder", "decoder", "cross"} and content["tokens"][0] == "<s>"
    assert (here / "map.svg").read_text(encoding="utf-8").startswith("<svg")
    assert "<script" in (here / "page.html").read_text(encoding="utf-8")
    pytest.importorskip("matplotlib")
    assert (
        server.run("attend", "run", text, "--out", "map.png", "--head", "1", "--kind", "encoder", cwd=here).status == 0
    )
    assert (here / "map.png").read_bytes().startswith(b"\x89PNG")


def test_attend_refuses(server: ForkServer, here: Path) -> None:
    refused(server.run("attend", "run", "", "--out", "x.html", cwd=here), "give a text to look at: got an empty one")
    refused(
        server.run("attend", "run", "a", "--out", "x.pdf", cwd=here), "the file must end in .html, .json, .png, .svg"
    )
    refused(server.run("attend", "run", "a", "--out", "x.svg", "--layer", "5", cwd=here), "`layer` must be from 0 to 0")
    refused(server.run("attend", "run", "a", "--out", "x.svg", "--head", "2", cwd=here), "`head` must be from 0 to 1")
    refused(
        server.run("attend", "run", "a", "--out", "x.svg", "--head", "max3", cwd=here), "`head` must be from 0 to 1"
    )
    refused(server.run("attend", "run", "a", "--out", "x.svg", "--kind", "corss", cwd=here), "did you mean 'cross'")
    refused(server.run("attend", "run", "a", "--out", "no/x.svg", cwd=here), "could not write 'no/x.svg'", status=1)
    assert server.run("attend", "run", "a", cwd=here).status == 2
    assert not list(here.glob("x.*"))


def test_a_models_text_is_escaped_in_a_page(server: ForkServer, here: Path) -> None:
    evil = "<script>alert(1)</script><img src=x onerror=alert(2)>"
    assert server.run("attend", "run", evil, "--target", evil, "--out", "page.html", "--words", cwd=here).status == 0
    page = (here / "page.html").read_text(encoding="utf-8")
    assert "<script>alert" not in page and "<img" not in page


def test_the_four_options_win(server: ForkServer, here: Path) -> None:
    stdin = "\n".join(lines(here / "valid.tsv", 0)) + "\n"
    outputs = {
        precision: server.run("translate", "run", "--precision", precision, cwd=here, stdin=stdin)
        for precision in ("float32", "float64", "bfloat16")
    }
    assert all(done.status == 0 and done.stdout.count("\n") == 6 for done in outputs.values())
    more = ["--threads", "2", "--seed", "7", "--device", "cpu"]
    assert server.run("translate", "run", *more, cwd=here, stdin=stdin).stdout == outputs["float32"].stdout
    assert server.run("translate", "run", "--threads", "0", cwd=here).status == 2


def test_tokenizer_commands_on_a_runs_own_tokenizer(server: ForkServer, here: Path) -> None:
    text = "O gato pulou.\n\nA ação é boa.\n"
    encoded = server.run("tokenizer", "encode", "run/tokenizer", "-", cwd=here, stdin=text)
    assert encoded.stdout.count("\n") == 3 and encoded.stdout.split("\n")[1] == ""
    assert server.run("tokenizer", "decode", "run/tokenizer", cwd=here, stdin=encoded.stdout).stdout == text
    info = json.loads(server.run("tokenizer", "info", "run/tokenizer", "--json", cwd=here).stdout)
    assert info["kind"] == "bpe" and info["vocab_size"] == 360
    assert info["fingerprint"] == json.loads((here / "run" / "run.json").read_text("utf-8")).get(
        "tokenizer", info["fingerprint"]
    )


def test_doctor_tells_what_is_here(server: ForkServer, here: Path) -> None:
    facts = json.loads(server.run("doctor", "--json", cwd=here).stdout)
    assert facts["atento"] == atento.__version__ and facts["threads"] == 1
    assert facts["training precision (auto)"] in ("float32", "bfloat16")
    text = server.run("doctor", cwd=here).stdout
    assert all(line.startswith(name) for name, line in zip(facts, text.splitlines(), strict=True))


def test_demo_from_beginning_to_end(server: ForkServer, here: Path) -> None:
    """`atento demo` with the network and the time cut down by the environment, as one would on a small machine."""
    settings = (
        *("DATA__TRAIN__0__COUNT=60", "DATA__VALID__0__COUNT=3", "DATA__TEST__0__COUNT=3", "TOKENIZER__VOCAB_SIZE=340"),
        *("NETWORK__D_MODEL=16", "NETWORK__D_FF=32", "NETWORK__N_HEADS=2", "NETWORK__N_LAYERS=1", "TRAINING__STEPS=2"),
        *("TRAINING__PRECISION=float32", "DECODING__BEAM=1", "DECODING__MAX_NEW_TOKENS=4"),
    )
    small = {f"ATENTO_{name}": value for name, _, value in (setting.partition("=") for setting in settings)}
    done = server.run("demo", "My dog sleeps.", "--out", "demo", "--threads", "1", cwd=here, env=small)
    assert done.status == 0, done.stderr
    assert "500 unseen combinations" in done.stdout and "BLEU" in done.stdout and "  My dog sleeps.  →  " in done.stdout
    assert "next:" in done.stdout and "atento translate demo" in done.stdout
    assert (here / "demo" / "attention.html").exists() and "step 2: loss" in done.stderr
    again = server.run("demo", "--out", "demo", "--threads", "1", cwd=here, env=small)
    assert again.status == 0 and "already finished" in again.stderr


# Failing ------------------------------------------------------------------------------------------------------------


def test_debug_shows_where_and_keeps_the_status(server: ForkServer, here: Path) -> None:
    for argv in (["--debug", "translate", "no-model"], ["translate", "no-model", "--debug"]):
        done = server.run(*argv, cwd=here)
        assert done.status == 2 and "Traceback" in done.stderr and done.stderr.endswith("hub name (owner/name)\n")


def test_ctrl_c_before_training_is_130(here: Path) -> None:
    import signal
    import time

    process = subprocess.Popen(
        [*PLAIN, "translate", "run"], cwd=here, env={**os.environ, **ENVIRONMENT}, stdin=subprocess.PIPE,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    time.sleep(0.3)
    process.send_signal(signal.SIGINT)
    out, said = process.communicate(timeout=60)
    assert process.returncode in (130, -signal.SIGINT)  # a shell shows both as 130
    assert out == b"" and b"Traceback" not in said
