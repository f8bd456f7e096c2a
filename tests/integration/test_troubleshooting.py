"""docs/troubleshooting.md quotes what is printed: its headings are held against the commands that print them."""

import re
from pathlib import Path

import pytest

from conftest import ForkServer

PAGE = (Path(__file__).parents[2] / "docs" / "troubleshooting.md").read_text(encoding="utf-8")
HEADINGS = re.findall(r"^### `((?:error|warning): .+)`$", PAGE, flags=re.M)

FILES = {"three.en": b"a\nb\nc\n", "two.pt": b"x\ny\n", "latin.en": b"ok\nn\x81o\n", "broken.tsv": b"x\ty\nonly\n"}
FILES |= {"uneven.yaml": b"task: translation\ndata: {train: {source: three.en, target: two.pt}}\n"}
FILES |= {"absent.yaml": b"task: translation\ndata: {train: {source: no.en, target: no.pt}}\n"}
FILES |= {"latin.yaml": b"task: translation\ndata: {train: {source: latin.en, target: two.pt}}\n"}
FILES |= {"broken.yaml": b"task: translation\ndata: {train: {file: broken.tsv, source: 0, target: 1}}\n"}
FILES |= {"nodata.yaml": b"task: translation\n", "other/notes.txt": b"not a run\n"}
WORLD = ("train", "micro-world-en-pt")
COMMANDS = {"no recipe named": ("config", "check", "micro-world-en")}
COMMANDS |= {"unknown key": ("config", "check", "micro-world-en-pt", "training.stepz=3")}
COMMANDS |= {"data is missing": ("config", "check", "nodata.yaml")}
COMMANDS |= {"has no effect": ("config", "check", "micro-world-en-pt", "training.epochs=1", "training.steps=2")}
COMMANDS |= {"no such file": ("train", "absent.yaml"), "must correspond to line N": ("train", "uneven.yaml")}
COMMANDS |= {"not UTF-8": ("train", "latin.yaml"), "1 column separated": ("train", "broken.yaml")}
COMMANDS |= {"not a run;": (*WORLD, "--out", "other"), "no model at": ("translate", "nothing", "three.en")}
COMMANDS |= {"a run of another recipe": ("train", "tiny.yaml", "network.d_model=32", "--out", "run", "--threads", "1")}
COMMANDS |= {"cannot continue": ("generate", "run", "three.en"), "neither a run": ("translate", "other", "three.en")}


def pattern(heading: str) -> re.Pattern[str]:
    return re.compile(".+".join(re.escape(part.strip()) for part in heading.split("…")), flags=re.S)


@pytest.fixture
def folder(here: Path) -> Path:
    for name, content in FILES.items():
        (here / name).parent.mkdir(exist_ok=True)
        (here / name).write_bytes(content)
    return here


@pytest.mark.parametrize(("words", "command"), COMMANDS.items(), ids=COMMANDS)
def test_the_page_quotes_what_is_printed(server: ForkServer, folder: Path, words: str, command: list[str]) -> None:
    done = server.run(*command, cwd=folder)
    (heading,) = [heading for heading in HEADINGS if words in heading]
    assert pattern(heading).search(done.stderr), f"{heading}\n{done.stderr}"
    assert done.status == (0 if heading.startswith("warning") else 2)


def test_there_are_twenty_entries() -> None:
    assert len(re.findall(r"^### ", PAGE, flags=re.M)) >= 20
