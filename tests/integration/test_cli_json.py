"""`--json` for every command: one JSON value, or one a line, on standard output and nothing else there (contract)."""

import json
from pathlib import Path
from typing import Any

import typer

from atento_cli.main import application
from conftest import ForkServer

WITHOUT = {"config schema", "launch", "serve", "studio"}  # JSON in any case, another program's file, HTTP


def commands(group: Any, words: str = "") -> dict[str, Any]:
    """Every command by its words."""
    below = getattr(group, "commands", None)
    if below is None:
        return {words: group}
    return {name: one for part, sub in below.items() for name, one in commands(sub, f"{words} {part}".strip()).items()}


def test_every_command_has_it() -> None:
    every = commands(typer.main.get_command(application()))
    has = {name for name, command in every.items() if any("--json" in param.opts for param in command.params)}
    assert every.keys() - has == WITHOUT


def test_commands_that_write_files_say_what_they_wrote(server: ForkServer, here: Path) -> None:
    def record(*argv: object) -> dict[str, Any]:
        done = server.good(*argv, "--json", cwd=here)
        found: dict[str, Any] = json.loads(done.stdout)
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
