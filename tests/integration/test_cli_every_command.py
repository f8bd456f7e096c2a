"""Every command: the example in its help works, it has --json, it refuses outputs that cannot be written (contract)."""

import json
import re
import shlex
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from atento.inspection import attention_record
from atento_cli.commands.attend import ENDINGS
from atento_cli.main import application
from conftest import ForkServer, lines_of, refused


def commands(group: Any, words: str = "") -> Iterator[tuple[str, Any]]:
    below = getattr(group, "commands", None)
    if below is None:
        yield words, group
    for name, command in (below or {}).items():
        yield from commands(command, f"{words} {name}".strip())


COMMANDS = dict(commands(typer.main.get_command(application())))
# what takes minutes, the network, or a model that is not at hand: read by its parser alone
READ_ONLY = {"data fetch", "data mine", "train", "augment", "plan", "serve", "studio", "notes", "demo", "bench"}
READ_ONLY |= {"summarize", "generate", "perplexity", "search", "suspect", "suggest", "classify", "tag", "fill"}
READ_ONLY |= {"answer", "glue", "collect"}


def examples(command: Any) -> list[str]:
    """What stands behind `Example:`, as the command lines in it; words between them are left out."""
    found = re.search(r"Examples?:\s+(.*)", f"{command.help or ''}\n{command.epilog or ''}", re.DOTALL)
    parts = " ".join(found.group(1).split()).split(";") if found else []
    return [re.sub(r"^[a-z ]+: +", "", part.strip()) for part in parts]


@pytest.fixture
def room(here: Path) -> Path:
    source, target = lines_of(here / "valid.tsv", 0), lines_of(here / "valid.tsv", 1)
    for name, lines in (
        ("train.en", lines_of(here / "train.tsv", 0)),
        ("train.pt", lines_of(here / "train.tsv", 1)),
        *((name, target) for name in ("text.pt", "output.pt", "reference.pt", "other.pt", "valid.pt")),
        ("texts.txt", source),
        ("pairs.tsv", [f"{one}\t{two}" for one, two in zip(source, target)]),
    ):
        (here / name).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    questions = {"data": [{"paragraphs": [{"qas": [{"id": "q", "answers": [{"text": "o gato"}]}]}]}]}
    for name, text in (
        ("predicted.txt", "good\nbad\n"),
        ("labels.txt", "good\ngood\n"),
        ("film.srt", "1\n00:00:01,000 --> 00:00:02,000\nThe cat sleeps.\n"),
        ("predicted.conll", "Ana B-PER\nri O\n"),
        ("right.conll", "Ana B-PER\nri O\n"),
        ("answers.json", '{"q": "gato"}'),
        ("my.run", "q Q0 a 1 2.5 me\nq Q0 b 2 1.5 me\n"),
        ("judgements.qrels", "q 0 a 1\nq 0 b 0\n"),
        ("questions.json", json.dumps(questions)),
    ):
        (here / name).write_text(text, encoding="utf-8")
    (here / "runs").mkdir()
    (here / "downloads").mkdir()
    run = (here / "run").resolve()
    shutil.copytree(run, here / "runs" / "demo")
    for name in ("runs/a", "runs/b", "MODEL", "downloads/bert"):
        (here / name).symlink_to(run)
    (here / "spm").symlink_to(run / "tokenizer")
    texts = "{task: language-modeling, data: {train: {file: text.pt}}, tokenizer: {vocab_size: 60}}"
    (here / "lm.yaml").write_text(texts, encoding="utf-8")
    (here / "my.yaml").write_text((here / "tiny.yaml").read_text(encoding="utf-8"), encoding="utf-8")
    return here


def test_arguments_are_named_in_messages_as_in_help() -> None:
    """Typer would show `hypotheses` in one and HYPOTHESES in the other."""
    arguments = [one for command in COMMANDS.values() for one in command.params if one.param_type_name == "argument"]
    assert arguments and [one.name for one in arguments if not one.metavar] == []


@pytest.mark.parametrize("name", COMMANDS)
def test_the_example_of_a_command_works(server: ForkServer, room: Path, name: str) -> None:
    found = examples(COMMANDS[name])
    assert found and any(re.search(rf"\batento {name}\b", line) for line in found), f"{name} has no example of itself"
    if name in ("tokenizer train", "recipes copy"):  # which refuse what is there
        (room / "spm").unlink()
        (room / "my.yaml").unlink()
    for line in found:
        passed = ""
        for part in line.split(" | "):
            words = shlex.split(part.partition(" > ")[0], comments=True)
            if words[0] == "echo":
                passed = f"{words[1]}\n"
                continue
            assert words[0] == "atento", line
            if name in READ_ONLY:
                COMMANDS[name].make_context(name, words[len(name.split()) + 1 :])
                continue
            done = server.run(*words[1:], cwd=room, stdin=passed)
            said = (line, done.status, done.stdout[:3000], done.stderr[-3000:])
            assert done.status in ((0, 3) if "--fail-under" in words else (0,)), said
            passed = done.stdout
    if name == "tokenizer decode":
        assert passed == (room / "text.pt").read_text(encoding="utf-8")


def test_every_command_has_json() -> None:
    has = {name for name, command in COMMANDS.items() if any("--json" in param.opts for param in command.params)}
    assert COMMANDS.keys() - has == {"config schema", "launch", "serve", "studio"}  # JSON in any case, a file, HTTP


def test_commands_that_write_files_say_what_they_wrote(server: ForkServer, here: Path) -> None:
    def record(*argv: object) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(server.good(*argv, "--json", cwd=here).stdout)
        return found

    command = ("train", "tiny.yaml", "--out", "new", "training.steps=2", "--threads", "1")
    trained = record(*command)
    assert trained["folder"] == "new" and trained["step"] == 2 and not trained["already_finished"]
    assert record(*command)["already_finished"]
    averaged = record("average", "new")
    assert Path(here / averaged["path"] / "model.safetensors").exists() and averaged["checkpoints"] == ["step-00000002"]
    made = record("tokenizer", "train", "train.tsv", "--out", "tok", "--kind", "word", "--vocab-size", "60")
    assert made["kind"] == "word" and record("tokenizer", "info", "tok")["fingerprint"] == made["fingerprint"]
    shown = record("attend", "run", "A cat.", "--out", "x.html", "--target", "Um gato.")
    assert shown["wrote"] == "x.html" and "".join(shown["source_tokens"]).replace("▁", " ").strip().startswith("A cat.")
    converted = record("convert", "run", "--to", "atento", "--out", "copy")
    assert (converted["wrote"], converted["layout"]) == ("copy", "atento") and (here / "copy" / "config.json").exists()
    assert record("recipes", "copy", "micro-world-en-pt", "mine.yaml") == {"path": "mine.yaml"}
    assert record("recipes", "show", "micro-world-en-pt")["text"] == (here / "mine.yaml").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("embed MODEL train.tsv --out none/v.npy", "--out none/v.npy cannot be written: there is no folder none"),
        ("embed MODEL train.tsv --out v.bin", "--out must end in .npy, .tsv, .txt or .vec: got 'v.bin'"),
        ("attend MODEL text --out none/x.html", "--out none/x.html cannot be written: there is no folder none"),
        ("attend MODEL text --out x.pdf", "--out must end in .html, .svg, .png or .json: got 'x.pdf'"),
        ("convert MODEL --to huggingface --out data", "--out data must be a new or empty folder"),
        ("convert MODEL --to huggingface --out train.tsv/x", "train.tsv is a file, and a folder is needed"),
        ("tokenizer train none.txt --out train.tsv", "--out train.tsv cannot be written: "),
        ("tokenizer train none.txt --out data", "--out data must be a new or empty folder"),
        ("data fetch --to xx --out train.tsv/x", "train.tsv is a file, and a folder is needed"),
        ("notes A1 --out train.tsv", "--out train.tsv cannot be written: "),
        ("bench mbr --out train.tsv", "--out train.tsv cannot be written: "),
        ("runs plot none --out none/x.svg", "--out none/x.svg cannot be written: there is no folder none"),
        ("runs plot none --out x.pdf", "--out must end in .svg, .png or .html: got 'x.pdf'"),
        ("recipes copy micro-world-en-pt none/x.yaml", "none/x.yaml cannot be written: there is no folder none"),
    ],
)
def test_what_cannot_be_written_is_refused_first(server: ForkServer, place: Path, command: str, said: str) -> None:
    """The model, the text and the network are never reached: none of them is there."""
    (place / "data").mkdir()
    (place / "data" / "mine").touch()
    before = sorted(place.rglob("*"))
    refused(server.run(*command.replace("MODEL", "no-such-model").split(), cwd=place), said)
    assert sorted(place.rglob("*")) == before


def test_the_endings_that_attend_takes_are_those_that_can_be_written() -> None:
    assert set(ENDINGS) == set(attention_record._WRITERS)
