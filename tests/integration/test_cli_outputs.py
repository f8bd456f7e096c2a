"""Every command with an output refuses one that cannot be written before any work, with exit status 2 (found.md)."""

from pathlib import Path

import pytest

from atento.inspection import attention_record
from atento_cli.commands.attend import ENDINGS
from conftest import ForkServer, refused


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
