"""The command line through processes of its own: help, exit statuses, what goes where, files, pipes (contract)."""

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import atento
from conftest import ENVIRONMENT, ForkServer, each_refused, lines_of, refused
from test_cli_every_command import COMMANDS as EVERY

PLAIN = [sys.executable, "-c", "from atento_cli.main import main; main()"]


COMMANDS = sorted({tuple(words.split()[:count]) for words in EVERY for count in range(4)})  # groups too


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_every_command_has_help_with_an_example_of_it(server: ForkServer, data: Path, command: tuple[str, ...]) -> None:
    done = server.run(*command, "--help", cwd=data)
    assert done.status == 0 and done.stderr == ""
    text = " ".join(done.stdout.split())
    assert "Usage: " in text and "--help" in text
    if command not in {("tokenizer",), ("recipes",), ("config",), ("data",)}:
        assert re.search(rf"Examples?: (.*[|;] )?atento {' '.join(command)}\b", text)


def test_version_and_help(server: ForkServer, data: Path) -> None:
    done = server.run("--version", cwd=data)
    assert (done.status, done.stdout, done.stderr) == (0, f"atento {atento.__version__}\n", "")
    for command in ([], ["train"], ["tokenizer", "encode"]):
        assert server.run(*command, "-h", cwd=data).stdout == server.run(*command, "--help", cwd=data).stdout
    for command in ("train", "translate", "summarize", "generate", "embed", "similarity", "evaluate", "attend", "demo"):
        text = server.run(command, "--help", cwd=data).stdout
        for option in ("--device", "--seed", "--precision", "--threads"):
            assert option in text, (command, option)
    for command in (["train"], ["translate"], ["embed"], ["evaluate"], ["score"], ["attend"], ["notes"]):
        text = server.run(*command, "--help", cwd=data).stdout
        assert "--seed" in text and "9223372036854775807" not in text and "SEED" in text, command


def test_wrong_words_are_refused(server: ForkServer, data: Path) -> None:
    model = "A run folder, a model folder, a model that comes with Atento or a hub name"
    for words, said in (
        ("trian", "unknown command 'trian'; did you mean 'train'? Known: answer, attend, augment, average, "),
        ("explain x", "unknown command 'explain'; did you mean 'classify --explain'? Known: "),
        ("tokenizer x", "unknown command 'x'. Known: decode, encode, info, train"),
        ("translate", f"`atento translate` needs MODEL ({model}): got none; see: "),
        ("score bleu", "`atento score` needs HYPOTHESES ("),
        ("attend run text", "`atento attend` needs --out (FILE.html"),
        ("translate run --beem 3", "`atento translate` has no option --beem; did you mean --beam?"),
        ("translate run --xyzzy", "`atento translate` has no option --xyzzy; see: atento translate --help"),
        ("translate run --beam", "--beam needs a value: got none"),
        ("translate run --greedy=3", "--greedy takes no value"),
        ("translate a b c", "`atento translate` takes MODEL [FILE]: got 'c' as well"),
        ("doctor x", "`atento doctor` takes no arguments: got 'x' as well"),
        ("translate run --beam 0", "--beam must be at least 1: got 0"),
        ("translate run --beam x", "--beam must be a whole number: got 'x'"),
        ("translate run --temperature warm", "--temperature must be a number: got 'warm'"),
        ("translate run --threads 2000", "--threads must be at most 1024: got 2000"),
        ("train tiny.yaml --seed -1", "--seed must lie between 0 and 9223372036854775807: got -1"),
        ("embed run --seed 9223372036854775808", "--seed must lie between 0 and 9223372036854775807: got 92233720"),
    ):
        done = server.run(*words.split(), cwd=data)
        refused(done, said)
        assert done.stderr.count("\n") == 1 and "╭" not in done.stderr  # one line, no box
    done = server.run("demo", cwd=data, env={"ATENTO_DEMO_STEPS": "few"})
    refused(done, "--steps (from ATENTO_DEMO_STEPS) must be a whole number: got 'few'")


def test_swapped_arguments_and_an_empty_name_of_a_file(server: ForkServer, here: Path) -> None:
    """`translate three.txt RUN` was taken for a model of word vectors."""
    (here / "three.txt").write_text("one\ntwo\nthree\n", encoding="utf-8")
    lines = [f"{command} three.txt run" for command in ("translate", "generate", "embed", "similarity", "evaluate")]
    said = "the first argument must be the model, followed by its input: got three.txt before run"
    empty = dict.fromkeys(("translate run ''", "score bleu '' tiny.yaml"), "must not be empty: got ''")
    each_refused(server, here, dict.fromkeys(lines, said) | empty)


LIGHT = """
import sys
sys.argv = ["atento", *{argv!r}]
from atento_cli.main import main
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
    program = [sys.executable, "-c", LIGHT.format(argv=argv)]
    done = subprocess.run(program, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert set(json.loads(done.stderr.splitlines()[-1].replace("'", '"'))) <= {"pydantic", *allowed}


def test_import_atento_loads_nothing_heavy() -> None:
    code = (
        "import sys, atento; assert {'torch', 'numpy', 'pydantic', 'typer'}.isdisjoint(sys.modules); "
        "assert {'evaluate', 'load', 'train'} < {*atento.__all__}\n"
        "try: atento.nothing\n"
        "except AttributeError as error: print(error)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, "module 'atento' has no attribute 'nothing'\n"), done.stderr
    assert all(callable(getattr(atento, name)) for name in ("evaluate", "load", "train"))


def test_one_line_in_one_line_out(server: ForkServer, here: Path) -> None:
    source = lines_of(here / "valid.tsv", 0)
    text = "\n".join([source[0], "", source[1], "   ", *source[2:]]) + "\n"
    (here / "in.txt").write_text(text, encoding="utf-8", newline="\n")
    from_file = server.run("translate", "run", "in.txt", cwd=here)
    assert from_file.status == 0 and from_file.stderr == ""
    out = from_file.stdout.split("\n")
    assert len(out) == text.count("\n") + 1 and out[1] == out[3] == "" and out[-1] == ""
    for argv in (["run"], ["run", "-"], [here / "run", "-"]):
        assert server.run("translate", *argv, cwd=here, stdin=text).stdout == from_file.stdout
    for same in (text[:-1], text.replace("\n", "\r\n")):  # no last newline
        assert server.run("translate", "run", cwd=here, stdin=same).stdout == from_file.stdout
    for blank in ("", "\n"):
        assert server.run("translate", "run", cwd=here, stdin=blank).stdout == blank
    assert out[:-1] == atento.load(here / "run").translate(text.split("\n")[:-1])
    no_line_ends = "a\x0bb\x0cc\x1cd\x1de\x1ef\x85g\u2028h\u2029i\nj\n"
    assert server.run("translate", "run", cwd=here, stdin=no_line_ends).stdout.count("\n") == 2


def test_a_model_that_writes_line_ends_still_answers_line_by_line(server: ForkServer, here: Path) -> None:
    """A model over bytes may write newlines, returns and tabs; here are random weights that love to."""
    command = ["train", "tiny.yaml", "tokenizer.kind=byte", "~tokenizer.vocab_size", "network.output.tied=false"]
    server.good(*command, "training.steps=1", "--out", "bytes", "--threads", "1", cwd=here)
    model = atento.load(here / "bytes")
    marks = [model.tokenizer.token_id(name) for name in ("<0x0A>", "<0x0D>", "<0x09>")]
    source, seen = lines_of(here / "train.tsv", 0)[:20], ""
    for seed in range(100):
        g = torch.Generator().manual_seed(seed)
        weights = {name: torch.randn(value.shape, generator=g) for name, value in model.network.state_dict().items()}
        weights["heads.vocabulary.output.weight"][marks] *= 3
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


@pytest.mark.parametrize(
    ("streams", "answered", "status"),
    [
        ("< line.txt >&-", False, 1),  # each starts a Python of its own that imports torch
        pytest.param("<&- >&- 2>&-", False, 0, marks=pytest.mark.slow),
        pytest.param("<&-", False, 0, marks=pytest.mark.slow),
        pytest.param("< line.txt 2>&-", True, 0, marks=pytest.mark.slow),
        pytest.param("< line.txt >&- 2>&-", False, 1, marks=pytest.mark.slow),
    ],
)
def test_standard_streams_that_were_closed_at_the_start(here: Path, streams: str, answered: bool, status: int) -> None:
    """Nothing to read is no failure; an output that cannot be handed over is."""
    (here / "line.txt").write_text("A cat.\n", encoding="utf-8")
    typed = f"{shlex.join(PLAIN)} translate run {streams}"
    done = subprocess.run(typed, shell=True, cwd=here, env=ENVIRONMENT, capture_output=True, text=True, timeout=120)
    said = "error: standard output: Bad file descriptor\n" if streams == "< line.txt >&-" else ""
    assert (done.returncode, done.stderr) == (status, said)
    assert done.stdout == (f"{atento.load(here / 'run').translate('A cat.')}\n" if answered else "")


def test_all_streams_may_be_closed_before_a_command_that_needs_no_torch(here: Path) -> None:
    """As above: no descriptor that is opened meanwhile takes the place of one of them."""
    for streams, status in (("<&- >&- 2>&-", 0), ("<&-", 0), ("< valid.tsv >&- 2>&-", 1)):
        typed = f"{shlex.join(PLAIN)} tokenizer encode run/tokenizer {streams}"
        assert subprocess.run(typed, shell=True, cwd=here, env=ENVIRONMENT, timeout=120).returncode == status, streams


def test_decoding_flags(server: ForkServer, here: Path) -> None:
    source = lines_of(here / "valid.tsv", 0)
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
    refusals = {
        "--greedy --beam 2": "--greedy and --beam 2 exclude each",
        "--mbr f1 --beam 2": "--beam has no effect with --mbr",
        "--beam 2000": "error: --beam must be at most 1024: got 2000",
        "--min-new-tokens 9 --max-new-tokens 3": "--min-new-tokens must not exceed --max-new-tokens: got 9 and 3",
        "--mbr blue": "unknown utility 'blue'; did you",
        "--beam 2 --n-best 3": "must not exceed",
        "--n-best 2 --split-sentences": "--n-best and --split-sentences exclude each other",
        "--precision int4": "must be one of float32, bfloat16, float64",
        "--device toaster": "got 'toaster'",
    }
    each_refused(server, here, {f"translate run {flags}": said for flags, said in refusals.items()}, stdin="a\n")


def test_json_holds_every_hypothesis_and_sentences_are_split(server: ForkServer, here: Path) -> None:
    source = lines_of(here / "valid.tsv", 0)[:3]
    stdin = "\n".join([source[0], "", *source[1:]]) + "\n"
    done = server.run("translate", "run", "--json", "--beam", "3", "--n-best", "2", cwd=here, stdin=stdin)
    records = [json.loads(line) for line in done.stdout.splitlines()]
    assert [record["source"] for record in records] == stdin.split("\n")[:-1]
    found = atento.load(here / "run").translations(source, beam=3, n_best=2)
    for record, right in zip([records[0], *records[2:]], found, strict=True):
        assert [one["text"] for one in record["translations"]] == [one.text for one in right]
        log_probs = [one.hypothesis.log_prob for one in right]
        assert [one["log_prob"] for one in record["translations"]] == pytest.approx(log_probs)
        assert set(record["translations"][0]) == {"text", "score", "log_prob", "finished"}
    assert [one["text"] for one in records[1]["translations"]] == [""]
    one, two = lines_of(here / "valid.tsv", 0)[:2]
    model = atento.load(here / "run")
    done = server.run("translate", "run", "--split-sentences", cwd=here, stdin=f"{one} {two}\n\n{two}\n")
    assert done.stdout == f"{model.translate(one)} {model.translate(two)}\n\n{model.translate(two)}\n"


def test_wrong_encodings_are_refused_by_line_or_counted(server: ForkServer, here: Path) -> None:
    (here / "latin.txt").write_bytes("good\na\xe7\x81o\nfine\n".encode("latin-1"))
    done = server.run("translate", "run", "latin.txt", cwd=here)
    refused(done, "latin.txt:2: not UTF-8: byte 0xe7 at byte 6 of the file")
    refused(server.run("translate", "run", cwd=here, stdin=b"\xff\nok\n"), "standard input:1: not UTF-8: byte 0xff")
    for argv, stdin in ((["latin.txt"], b""), (["-"], (here / "latin.txt").read_bytes())):
        done = server.run("translate", "run", *argv, "--skip-bad", cwd=here, stdin=stdin)
        out = done.stdout.split("\n")
        assert done.status == 0 and len(out) == 4 and out[1] == ""
        assert done.stderr.startswith("warning: 1 bad line skipped, first: ") and ":2: not UTF-8" in done.stderr
    (here / "wide.txt").write_bytes("olá\n".encode("utf-16"))
    done = server.run("translate", "run", "wide.txt", cwd=here)
    assert done.status == 0 and 'wide.txt: read with `encoding: "utf-16' in done.stderr
    refused(server.run("translate", "run", "none.txt", cwd=here), "none.txt: no such file")
    refused(server.run("translate", "run", "run", cwd=here), "run: is a directory")


def test_models_that_are_not_there_and_lone_surrogates(server: ForkServer, here: Path) -> None:
    """A shell may hand over bytes that are no UTF-8; Python turns them into half surrogate pairs."""
    offline = {"HF_HUB_OFFLINE": "1", "HF_HUB_CACHE": str(here)}
    (here / "runs").mkdir(exist_ok=True)
    refusals = {
        "no-model": "no model at no-model: give a run folder",
        "runs/none": "no model at runs/none: the folder runs has no none",
        "nobody/a--b": "nobody/a--b is no local folder, and",
        "tiny.yaml": "tiny.yaml is a file; a model is a folder",
        ".": "is neither a run (no checkpoints) nor a model folder",
    }
    each_refused(server, here, {f"translate {name}": said for name, said in refusals.items()}, stdin="a\n", env=offline)
    refused(server.run("attend", "run", os.fsdecode(b"a\xff"), "--out", "x.html", cwd=here), "lone surrogate")


@pytest.mark.parametrize("first", [True, False])
def test_closing_the_pipe_early_is_no_error(here: Path, first: bool) -> None:
    """`| head -1`, with much more to come than a pipe holds; or a reader that leaves before the first line."""
    (here / "long.txt").write_text("the cat sleeps\n" * 8_000, encoding="utf-8")
    files = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    for command in ("tokenizer encode run/tokenizer long.txt --json", "config schema", "--help"):
        words = [*PLAIN, *command.split()]
        with subprocess.Popen(words, cwd=here, env={**os.environ, **ENVIRONMENT}, **files) as process:
            assert not first or process.stdout.readline()
            process.stdout.close()
            assert (process.stderr.read(), process.wait(timeout=60)) == (b"", 0)


def test_a_reader_that_leaves_while_it_translates(server: ForkServer, here: Path) -> None:
    (here / "long.txt").write_text(("the cat sleeps\n" + "\n" * 100_000), encoding="utf-8")
    os.mkfifo(here / "out")
    command = ["translate", "run", "long.txt", "--greedy", "--threads", "1"]
    running = server.start(*command, cwd=here, stdout=here / "out")
    with (here / "out").open(encoding="utf-8") as reader:
        assert reader.readline()
    done = running.end()
    assert (done.status, done.stderr) == (0, "")


def test_standard_input_is_answered_before_it_ends(server: ForkServer, here: Path) -> None:
    """With `--stream` each line as it comes; else a thousand lines at a time, so that an endless input is no harm."""
    argv = ["translate", "run", "--greedy", "--max-new-tokens", "3", "--threads", "1"]
    wanted = atento.load(here / "run").translate("A cat.", beam=1, max_new_tokens=3)
    for name in ("in", "out"):
        os.mkfifo(here / name)
    running = server.start(*argv, "--stream", cwd=here, stdin=here / "in", stdout=here / "out")
    with (here / "in").open("w", encoding="utf-8") as write, (here / "out").open(encoding="utf-8") as read:
        for _ in range(2):
            write.write("A cat.\n")
            write.flush()
            assert read.readline() == f"{wanted}\n"
        write.close()
        assert running.end().status == 0
    running = server.start(*argv, cwd=here, stdin=here / "in", stdout=here / "out")
    with (here / "in").open("w", encoding="utf-8") as write, (here / "out").open(encoding="utf-8") as read:
        write.write("A cat.\n" * 1024)
        write.flush()
        assert read.readline() == f"{wanted}\n"
        write.close()
        assert len(read.readlines()) == 1023 and running.end().status == 0


def test_what_is_drawn_for_a_line_does_not_hang_on_how_it_comes(server: ForkServer, here: Path) -> None:
    """From standard input in parts, from a file at once: line N draws as line N."""
    (here / "many.txt").write_text("a cat\n" * 1500, encoding="utf-8")
    flags = ["translate", "run", "--sample", "--seed", "3", "--max-new-tokens", "3"]
    parts = server.run(*flags, cwd=here, stdin=here / "many.txt").stdout
    assert parts == server.run(*flags, "many.txt", cwd=here).stdout and parts.count("\n") == 1500
    assert parts.split("\n")[:476] != parts.split("\n")[1024:1500]  # the second part does not draw as the first


def test_a_full_disk_behind_standard_output_and_nobody_listens_to_standard_error(here: Path) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("needs /dev/full")
    for argv in (["recipes", "list"], ["tokenizer", "info", "run/tokenizer"]):
        with Path("/dev/full").open("wb") as full:
            files = {"stdout": full, "stderr": subprocess.PIPE}
            done = subprocess.run([*PLAIN, *argv], cwd=here, env={**os.environ, **ENVIRONMENT}, timeout=60, **files)
        assert done.returncode == 1 and done.stderr == b"error: standard output: No space left on device\n"
    files = {"stdin": subprocess.DEVNULL, "stderr": subprocess.PIPE}
    process = subprocess.Popen([*PLAIN, "recipes", "show", "none"], cwd=here, **files)
    process.stderr.close()
    assert process.wait(timeout=60) == 2
