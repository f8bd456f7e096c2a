"""Texts out of files and the micro-world: every kind, blank lines, bad records, where each stands."""

import gzip
import json
from pathlib import Path

from atento.base.errors import DataError
from atento.config.recipe import SourceConfig
from atento.data.records.reader import TEXT, read_records
from atento.data.records.splits import overlap
from atento_world import write
from failing import fails

LINES = ["o gato pulou", "", "a menina lê", "   ", "já é tarde"]
KEPT = ["o gato pulou", "a menina lê", "já é tarde"]


def write_kinds(folder: Path) -> dict[str, SourceConfig]:
    """The same texts in every kind of file."""
    (folder / "a.txt").write_text("\n".join(LINES) + "\n", encoding="utf-8")
    (folder / "a").write_text("\n".join(LINES) + "\n", encoding="utf-8")
    (folder / "a.tsv").write_text("".join(f"x\t{text}\n" for text in LINES), encoding="utf-8")
    (folder / "a.csv").write_text("n,text\n" + "".join(f'1,"{text}"\n' for text in LINES), encoding="utf-8")
    (folder / "a.jsonl").write_text("".join(json.dumps({"text": t}) + "\n" for t in LINES), encoding="utf-8")
    (folder / "a.json").write_text(json.dumps([{"text": t} for t in LINES]), encoding="utf-8")
    (folder / "a.txt.gz").write_bytes(gzip.compress((folder / "a.txt").read_bytes()))
    columns: dict[str, int | str | None] = {
        "a.txt": None, "a": None, "a.txt.gz": None, "a.tsv": 1, "a.csv": "text", "a.jsonl": "text", "a.json": "text"
    }  # fmt: skip
    return {name: SourceConfig(file=name, text=column) for name, column in columns.items()}


def test_every_kind_of_file_and_the_micro_world_give_the_same_texts_and_bad_lines_are_counted(tmp_path: Path) -> None:
    fingerprints = set()
    for name, source in write_kinds(tmp_path).items():
        found = read_records(source, TEXT, tmp_path)
        assert found["text"] == KEPT and found.empty == 2 and len(found) == 3, name
        fingerprints.add(found.fingerprint)
    assert len(fingerprints) == 1
    assert read_records(SourceConfig(file="a.txt"), TEXT, tmp_path).where(1) == "a.txt:3"
    assert read_records(SourceConfig(file="a.csv", text="text"), TEXT, tmp_path).where(1) == "a.csv:4"
    assert read_records(SourceConfig(file="a.txt", count=2), TEXT, tmp_path)["text"] == KEPT[:2]
    (tmp_path / "b.txt").write_bytes(b"bom\n\xff\xfe ruim\nfim\n")
    fails(DataError, r"b\.txt:2", read_records, SourceConfig(file="b.txt"), TEXT, tmp_path)
    found = read_records(SourceConfig(file="b.txt"), TEXT, tmp_path, skip_bad=True)
    assert found["text"] == ["bom", "fim"]
    assert found.warnings()[0].startswith("b.txt: 1 bad record left out, first b.txt:2")
    for content in ("", "\n  \n"):
        (tmp_path / "c.txt").write_text(content, encoding="utf-8")
        fails(DataError, r"c\.txt: holds no text", read_records, SourceConfig(file="c.txt"), TEXT, tmp_path)
    pairs = write("valid", 20, 1)
    for text, side in ((None, "target"), ("en", "source")):
        texts = read_records(SourceConfig(world="valid", count=20, text=text), TEXT, tmp_path)["text"]
        assert texts == [getattr(pair, side) for pair in pairs]
    for name, lines in (("t.txt", ["um", "dois"]), ("v.txt", ["dois", "três", "dois"])):
        (tmp_path / name).write_text("\n".join(lines), encoding="utf-8")
    train, valid = (read_records(SourceConfig(file=name), TEXT, tmp_path) for name in ("t.txt", "v.txt"))
    assert overlap([train], valid) == 2
