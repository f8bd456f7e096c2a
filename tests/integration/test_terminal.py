"""Text of models, data and arguments cannot steer a terminal; a pipe gets results as they are."""

import contextlib
import json
import os
import pty
import subprocess
import sys
import unicodedata
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from atento.base.terminal import printable
from atento.config.recipe import TokenizerConfig
from atento.config.sections.network import NetworkConfig
from atento.config.tables.head_kinds import HeadConfig
from atento.model import Model
from atento.networks import build_network
from atento.text import train_tokenizer
from conftest import fork_server

EVIL = "a\x1b[31m\x9b2J\x07\u202eb"
# what is typed, with {} where the text is steered from; FILE holds it in every line, the model in its labels
LINES = """
classify model file.txt; classify model file.txt --json; classify model {}; classify {} file.txt; notes {}; {}
classify x/{} file.txt; tag model file.txt; tag model file.txt --conll; tokenizer encode ./{} file.txt; collect {}
config show recipe.yaml; config check {}.yaml; config check recipe.yaml {}=1; config check recipe.yaml task={}
config explain {}; data stats recipe.yaml; data peek recipe.yaml; data stats {}; score {} file.txt file.txt
score report file.txt file.txt; evaluate model bad.tsv --task classification; runs show {}; recipes show {}; serve {}
translate model --{}; translate model --beam={}
"""
WALK = [line.replace("{}", EVIL).split(" ") for line in LINES.strip().replace("\n", "; ").split("; ")]


def run_all(commands: Path) -> None:
    """In a process of its own: the command lines of a file."""
    from atento_cli.main import main

    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]  as on a terminal
    for argv in json.loads(commands.read_text(encoding="utf-8")):
        sys.argv = ["atento", *argv]
        with contextlib.suppress(SystemExit):
            main()
        sys.stdout.write("\x1eend\n")  # not ours: it arrives as it is


def written(here: Path, commands: Sequence[list[str]]) -> Path:
    (here / "commands.json").write_text(json.dumps(commands), encoding="utf-8")
    return here / "commands.json"


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model, files and a recipe that hold the text wherever they can."""
    folder = tmp_path_factory.mktemp("terminal")
    tokenizer = train_tokenizer(TokenizerConfig(kind="byte"), ["a"])
    classes = HeadConfig("classification", (EVIL, f"{EVIL}2"), pooling="first")
    heads = (classes, HeadConfig("tagging", (f"B-{EVIL}", f"I-{EVIL}")))
    sizes = {"d_model": 16, "d_ff": 32, "n_heads": 2, "n_layers": 1, "max_len": 128}
    of_tokens: Any = {"vocab_size": tokenizer.vocab_size, "tokenizer_fingerprint": tokenizer.fingerprint}
    config = NetworkConfig(architecture="encoder", heads=heads, **of_tokens | sizes)
    Model(build_network(config), tokenizer, {"name": "tiny", "task": "classification"}, None).save(folder / "model")
    (folder / "file.txt").write_text(f"{EVIL}\n{EVIL} c\n", encoding="utf-8")
    (folder / "bad.tsv").write_text(f"text\tlabel\nx\t{EVIL}9\n", encoding="utf-8")
    (folder / "train.tsv").write_text(f"text\tlabel\n{EVIL}\t{EVIL}1\nc\t{EVIL}2\n" * 4, encoding="utf-8")
    data = {"train": {"file": "train.tsv", "text": "text", "label": "label"}}
    recipe = {"task": "classification", "name": EVIL, "data": data, "tokenizer": {"kind": "byte"}}
    recipe |= {"network": {"d_model": 16, "d_ff": 32, "n_heads": 2, "n_layers": 1}, "training": {"steps": 1}}
    (folder / "recipe.yaml").write_text(json.dumps(recipe), encoding="utf-8")
    return folder


def on_terminal(here: Path, *commands: list[str], term: str = "dumb") -> list[str]:
    """What a terminal gets from each command, as its standard output and standard error; a dumb one gets no bar."""
    ours, theirs = pty.openpty()
    terminal, file = Path(os.ttyname(theirs)), written(here, commands)
    options: dict[str, Any] = {"env": {"TERM": term, "COLUMNS": "500"}, "commands": str(file)}
    running = fork_server().start(cwd=here, stdout=terminal, stderr=terminal, test="test_terminal:run_all", **options)
    with ThreadPoolExecutor(1) as pool:
        reading = pool.submit(read_all, ours)
        status = running.status(60)
        os.close(theirs)
        content = reading.result()
    os.close(ours)
    assert status == 0
    return content.decode("utf-8").replace("\r\n", "\n").split("\x1eend\n")[:-1]


def read_all(file: int) -> bytes:
    content = b""
    with contextlib.suppress(OSError):
        while part := os.read(file, 1 << 16):
            content += part
    return content


def controls(text: str) -> set[str]:
    return {one for one in text if (unicodedata.category(one) == "Cc" or one in "\u202d\u202e") and one not in "\n\t"}


def test_no_command_lets_a_text_steer_the_terminal(here: Path) -> None:
    seen = on_terminal(here, *WALK)
    assert len(seen) == len(WALK)
    wrong = [(argv, text) for argv, text in zip(WALK, seen) if controls(text)]
    assert not wrong, wrong
    hidden = [(argv, text) for argv, text in zip(WALK, seen) if "[31m" not in text and "x1b" not in text]
    assert not hidden, hidden  # each of them shows the text


def test_files_and_pipes_get_text_as_it_is(here: Path) -> None:
    (text,) = on_terminal(here, ["classify", "--help"], term="xterm")
    assert "\x1b[" in text and "\\u001b" not in text
    file = str(written(here, [["classify", "model", "file.txt"], ["classify", EVIL, "file.txt"]]))
    done = fork_server().run(cwd=here, test="test_terminal:run_all", commands=file)
    assert done.status == 0, done
    labels = done.stdout.partition("\x1eend\n")[0].splitlines()
    assert len(labels) == 2 and all(line.startswith(EVIL) for line in labels), done
    assert EVIL in done.stderr


def test_what_is_written_while_a_bar_is_drawn(here: Path) -> None:
    program = f"""
import io, logging
from atento_cli.command_progress import Progress
from atento_serve.http.logs import Log
from atento.base.terminal import echo, show_log
from atento.training.progress import Reporter
show_log()
log = io.StringIO()
with Progress("x"):
    echo("one " + {EVIL!r}, err=True)
    logging.getLogger("x").warning("two %s", {EVIL!r})
reporter = Reporter(10, bar=True, log=log)
reporter.line("three " + {EVIL!r})
echo("four " + {EVIL!r}, err=True)
reporter.close()
Reporter(10, bar=False, log=log).line("five " + {EVIL!r})
Log(texts=True).event("six " + {EVIL!r})
assert log.getvalue().count({EVIL!r}) == 2
"""
    ours, theirs = pty.openpty()
    done = subprocess.run([sys.executable, "-c", program], cwd=here, stdout=theirs, stderr=theirs, timeout=60)
    os.close(theirs)
    text = os.read(ours, 1 << 16).decode()
    os.close(ours)
    assert done.returncode == 0, text
    assert all(f"{word} {printable(EVIL)}" in text for word in ("one", "two", "three", "four", "five", "six")), text
    assert "\x1b[?25h" in text  # the bars are drawn
    assert not {"\x9b", "\x07", "\u202e"} & set(text) and "\x1b[31m" not in text


def test_ordinary_text_is_shown_as_it_is_every_control_character_escaped_and_json_stays_json() -> None:
    for text in ("", "a\tb\nc", "مرحبا \u2067x\u2069", "😀\u200d👩", "日本"):
        assert printable(text) == text
    assert not controls(printable("".join(map(chr, range(0x110000)))))
    assert json.loads(printable(json.dumps(EVIL, ensure_ascii=False))) == EVIL
