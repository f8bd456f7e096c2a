"""Text of models, data and arguments cannot steer a terminal; a pipe gets results as they are."""

import json
import os
import pty
import subprocess
import sys
import unicodedata
from pathlib import Path

import pytest

from atento.config.heads import HeadConfig
from atento.config.network import NetworkConfig
from atento.config.recipe import TokenizerConfig
from atento.model import Model
from atento.networks import build_network
from atento.terminal import printable
from atento.text import train_tokenizer

EVIL = "a\x1b[31m\x9b2J\x07\u202eb"
RUN = """
import json, sys
from atento.cli.main import main
for argv in json.loads(sys.argv[1]):
    sys.argv = ["atento", *argv]
    try:
        main()
    except SystemExit:
        pass
    sys.stdout.write("\\x1eend\\n")
"""
# what is typed, with {} where the text is steered from; FILE holds it in every line, the model in its labels
WALK = [
    ["classify", "model", "file.txt"],
    ["classify", "model", "file.txt", "--json"],
    ["classify", "model", EVIL],
    ["classify", EVIL, "file.txt"],
    ["classify", f"x/{EVIL}", "file.txt"],
    ["tag", "model", "file.txt"],
    ["tag", "model", "file.txt", "--conll"],
    ["tokenizer", "encode", f"./{EVIL}", "file.txt"],
    ["config", "show", "recipe.yaml"],
    ["config", "check", f"{EVIL}.yaml"],
    ["config", "check", "recipe.yaml", f"{EVIL}=1"],
    ["config", "check", "recipe.yaml", f"task={EVIL}"],
    ["config", "explain", EVIL],
    ["data", "stats", "recipe.yaml"],
    ["data", "peek", "recipe.yaml"],
    ["data", "stats", EVIL],
    ["score", EVIL, "file.txt", "file.txt"],
    ["score", "report", "file.txt", "file.txt"],
    ["evaluate", "model", "bad.tsv", "--task", "classification"],
    ["runs", "show", EVIL],
    ["recipes", "show", EVIL],
    ["serve", EVIL],
    ["notes", EVIL],
    ["collect", EVIL],
    [EVIL],
    ["translate", "model", f"--{EVIL}"],
    ["translate", "model", f"--beam={EVIL}"],
]


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model, files and a recipe that hold the text wherever they can."""
    folder = tmp_path_factory.mktemp("terminal")
    tokenizer = train_tokenizer(TokenizerConfig(kind="byte"), ["a"])
    heads = (
        HeadConfig("classification", (EVIL, f"{EVIL}2"), pooling="first"),
        HeadConfig("tagging", (f"B-{EVIL}", f"I-{EVIL}")),
    )
    sizes = {"d_model": 16, "d_ff": 32, "n_heads": 2, "n_layers": 1, "max_len": 128}
    config = NetworkConfig(
        architecture="encoder",
        vocab_size=tokenizer.vocab_size,
        tokenizer_fingerprint=tokenizer.fingerprint,
        heads=heads,
        **sizes,  # type: ignore[arg-type]
    )
    Model(build_network(config), tokenizer, {"name": "tiny", "task": "classification"}, None).save(folder / "model")
    (folder / "file.txt").write_text(f"{EVIL}\n{EVIL} c\n", encoding="utf-8")
    (folder / "bad.tsv").write_text(f"text\tlabel\nx\t{EVIL}9\n", encoding="utf-8")
    (folder / "train.tsv").write_text(f"text\tlabel\n{EVIL}\t{EVIL}1\nc\t{EVIL}2\n" * 4, encoding="utf-8")
    recipe = {
        "task": "classification",
        "name": EVIL,
        "data": {"train": {"file": "train.tsv", "text": "text", "label": "label"}},
        "tokenizer": {"kind": "byte"},
        "network": {"d_model": 16, "d_ff": 32, "n_heads": 2, "n_layers": 1},
        "training": {"steps": 1},
    }
    (folder / "recipe.yaml").write_text(json.dumps(recipe), encoding="utf-8")
    return folder


def on_terminal(here: Path, *commands: list[str]) -> list[str]:
    """What a terminal gets from each command, as its standard output and standard error."""
    ours, theirs = pty.openpty()
    argv = [sys.executable, "-c", RUN, json.dumps(commands)]
    environment = os.environ | {"TERM": "xterm", "COLUMNS": "500"}
    process = subprocess.Popen(argv, cwd=here, stdin=subprocess.DEVNULL, stdout=theirs, stderr=theirs, env=environment)
    os.close(theirs)
    content = b""
    while True:
        try:
            part = os.read(ours, 1 << 16)
        except OSError:  # the other end is closed
            break
        if not part:
            break
        content += part
    os.close(ours)
    assert process.wait(60) == 0
    return content.decode("utf-8").replace("\r\n", "\n").split("\\u001eend\n")[:-1]


def controls(text: str) -> set[str]:
    return {
        char for char in text if (unicodedata.category(char) == "Cc" or char in "\u202d\u202e") and char not in "\n\t"
    }


def test_no_command_lets_a_text_steer_the_terminal(here: Path) -> None:
    seen = on_terminal(here, *WALK)
    assert len(seen) == len(WALK)
    wrong = [(argv, text) for argv, text in zip(WALK, seen) if controls(text)]
    assert not wrong, wrong
    hidden = [(argv, text) for argv, text in zip(WALK, seen) if "[31m" not in text and "x1b" not in text]
    assert not hidden, hidden  # each of them shows the text


def test_help_keeps_its_colours(here: Path) -> None:
    (text,) = on_terminal(here, ["classify", "--help"])
    assert "\x1b[" in text and "\\u001b" not in text


def test_a_pipe_gets_results_as_they_are_and_errors_escaped(here: Path) -> None:
    def run(*argv: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "atento", *argv]
        return subprocess.run(command, cwd=here, capture_output=True, encoding="utf-8", check=False, timeout=60)

    done = run("classify", "model", "file.txt")
    assert all(line.startswith(EVIL) for line in done.stdout.splitlines(keepends=False)), done
    failed = run("classify", "model", EVIL)
    assert failed.returncode == 2 and printable(EVIL) in failed.stderr and not controls(failed.stderr)


def test_what_is_written_while_a_bar_is_drawn(here: Path) -> None:
    program = f"""
import sys
from atento.cli.progress import Progress
from atento.terminal import protect
from atento.training.progress import Reporter
protect()
with Progress("x"):
    sys.stderr.write("one " + {EVIL!r} + "\\n")
reporter = Reporter(10, bar=True)
reporter.line("two " + {EVIL!r})
sys.stderr.write("three " + {EVIL!r} + "\\n")
reporter.close()
sys.stderr.write("four " + {EVIL!r} + "\\n")
sys.stdout.buffer.write(("five " + {EVIL!r} + "\\n").encode())
sys.stdout.flush()
"""
    ours, theirs = pty.openpty()
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=here, stdout=theirs, stderr=theirs, check=True, timeout=60
    )
    os.close(theirs)
    text = os.read(ours, 1 << 16).decode()
    os.close(ours)
    assert done.returncode == 0
    assert all(f"{word} {printable(EVIL)}" in text for word in ("one", "two", "three", "four", "five")), text
    assert not {"\x9b", "\x07", "\u202e"} & set(text) and "\x1b[31m" not in text


@pytest.mark.parametrize("text", ["", "a\tb\nc", "مرحبا \u2067x\u2069", "😀\u200d👩", "日本"])
def test_ordinary_text_is_shown_as_it_is(text: str) -> None:
    assert printable(text) == text


def test_every_control_character_is_escaped_and_json_stays_json() -> None:
    every = "".join(map(chr, range(0x110000)))
    assert not controls(printable(every))
    assert json.loads(printable(json.dumps(EVIL, ensure_ascii=False))) == EVIL
