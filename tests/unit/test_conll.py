"""Columns of words and tags: separators, documents, comments, columns by number, CoNLL-U, and every bad input."""

import gzip
import re
from pathlib import Path
from typing import Any

import pytest

from atento.base.errors import DataError, RecipeError
from atento.config.recipe import SourceConfig
from atento.config.tables.task_spec import Field
from atento.data.files import conll
from atento.data.records.labelled_data import source_of
from atento.data.records.reader import Records, read_records
from failing import fails

TAGGING = (Field("tokens", "words"), Field("tags", "tags"))
TWO = [(("Ana", "mora", "aqui"), ("B-PER", "O", "O")), (("Lisboa",), ("B-LOC",))]


def read(folder: Path, content: str | bytes, file: str = "a.conll", *, skip_bad: bool = False, **keys: Any) -> Records:
    raw = content.encode() if isinstance(content, str) else content
    (folder / file).write_bytes(gzip.compress(raw) if file.endswith(".gz") else raw)
    return read_records(SourceConfig(file=file, **keys), TAGGING, folder, skip_bad=skip_bad)


@pytest.mark.parametrize("file", ["a.conll", "a.bio", "a.iob", "a.txt", "esp.train", "a.conll.gz", "esp.train.gz"])
def test_the_first_and_the_last_column_are_read_of_every_ending(tmp_path: Path, file: str) -> None:
    content = "Ana NP B-PER\nmora V O\naqui ADV O\n\nLisboa NP B-LOC\n"
    records = read(tmp_path, content, file)
    assert list(records) == TWO and (records.where(0), records.where(1)) == (f"{file}:1", f"{file}:5")
    assert records.warnings() == []
    assert read(tmp_path, content.replace(" ", "\t"), file).fingerprint == records.fingerprint


def test_separators_line_ends_comments_columns_and_formats(tmp_path: Path) -> None:
    records = read(tmp_path, "\ufeff\r\n\r\n Ana   B-PER \r\nmora O\r\naqui O\r\n\t\r\n \r\nLisboa B-LOC")
    assert list(records) == TWO and records.where(0) == "a.conll:3" and records.where(1) == "a.conll:8"
    joined = read(tmp_path, "São Paulo\tB-LOC\n10\u00a0000\tO\n\n10\u00a0000 O\n")
    assert joined["tokens"] == [("São Paulo", "10\u00a0000"), ("10\u00a0000",)]
    content = (
        "-DOCSTART- -X- O\n\n# sent_id = 1\n# text = Ana mora\nAna NP B-PER\n# NP O\n#1 NP O\n"
        "-DOCSTART- -X- O\n# NP O\n\n# a comment of five columns\nfim NP O\n"
    )
    assert read(tmp_path, content)["tokens"] == [("Ana", "#", "#1"), ("#",), ("fim",)]
    assert read(tmp_path, "# O\nAna B-PER\n")["tokens"] == [("#", "Ana")]
    found = read(tmp_path, "# text = Ana\nAna\tB-PER\n\n# no\nfim\tO\n\n#sonho\tO\n")["tokens"]
    assert found == [("Ana",), ("fim",), ("#sonho",)]
    content = "1 Ana NP B-PER\n2 mora V O\n"
    for tags, expected in ((2, ("NP", "V")), (-2, ("NP", "V")), (-1, ("B-PER", "O")), (None, ("B-PER", "O"))):
        assert list(read(tmp_path, content, tokens=1, tags=tags)) == [(("Ana", "mora"), expected)]
    table = "Ana\tB-PER\nmora\tO\n\nfim\tO\n"
    assert len(read(tmp_path, table, "a.tsv", format="conll")) == 2
    words = read(tmp_path, table, "a.tsv", tokens=0, tags=1)
    assert len(words) == 3
    said = "a.tsv: each sentence is one word; where a row is a word, `format: conll` reads sentences"
    assert said in words.warnings()


def test_conll_u_reads_words_and_tags_and_iob1_is_read_as_iob2(tmp_path: Path) -> None:
    def line(*columns: str) -> str:
        return "\t".join([*columns, *"_" * (10 - len(columns))]) + "\n"

    content = (
        "# sent_id = 1\n# text = Vou ao mar\n" + line("1", "Vou", "ir", "VERB") + line("2-3", "ao", "_", "_")
        + line("2", "a", "a", "ADP") + line("3", "o", "o", "DET") + line("3.1", "x", "x", "X")
        + line("4", "mar", "mar", "NOUN", "N") + "\n"
    )  # fmt: skip
    assert list(read(tmp_path, content, "a.conllu")) == [(("Vou", "a", "o", "mar"), ("VERB", "ADP", "DET", "NOUN"))]
    assert read(tmp_path, content, "a.conllu", tags=4)["tags"] == [("_", "_", "_", "N")]
    records = read(tmp_path, "a I-X\nb B-X\nc I-Y\n\nd O\n")
    assert records["tags"] == [("B-X", "B-X", "B-Y"), ("O",)]
    assert records.warnings() == ["a.conll: its tags are IOB1, and are read as IOB2"]
    slips = read(tmp_path, "a B-X\nb O\n\nc O\nd I-X\n")
    assert slips["tags"][1] == ("O", "I-X")
    assert slips.warnings() == [
        "a.conll: 1 tag cannot follow the tag before by the rules of IOB2; the first is 'I-X' of word 2 of the "
        "sentence at a.conll:4"
    ]


@pytest.mark.parametrize(
    ("bad", "says"),
    [
        ("x\n", "a.conll:6: 1 column, and the first word of the file has 2"),
        ("x y O\n", "a.conll:6: 3 columns, and the first word of the file has 2"),
        ("\tO\n", "a.conll:6: column 0 is empty"),
        ("x\t\n", "a.conll:6: column 1 is empty"),
        (b"\xff\tO\n", "a.conll:6: not UTF-8: byte 0xff"),
        ("x\0\tO\n", "a.conll:6: a NUL character at byte"),
    ],
)
def test_a_bad_line_is_one_sentence_or_its_sentence_is_left_out(tmp_path: Path, bad: str | bytes, says: str) -> None:
    raw = b"Ana\tB-PER\nmora\tO\naqui\tO\n\nx\tO\n%b" % (bad if isinstance(bad, bytes) else bad.encode())
    with pytest.raises(DataError) as error:
        read(tmp_path, raw)
    assert str(error.value).startswith(says)
    records = read(tmp_path, raw + b"y\tO\n\nLisboa\tB-LOC\n", skip_bad=True)
    assert list(records) == TWO and len(records.skipped) == 1 and records.skipped[0].startswith(says)


def test_columns_that_the_file_has_not_are_refused(tmp_path: Path) -> None:
    for keys, says in (
        ({"tags": 2}, "a.conll:1: 2 columns, and column 2 is requested; columns are counted from 0"),
        ({"tokens": -3}, "a.conll:1: 2 columns, and column -3 is requested; columns are counted from 0"),
        ({"tokens": 1}, "a.conll:1: 2 columns, and a word and its tag must stand in two"),
    ):
        fails(DataError, f"^{re.escape(says)}$", read, tmp_path, "Ana B-PER\n", **keys)
    fails(DataError, r"a\.conll:1: 1 column, and a word and its tag must stand in two", read, tmp_path, "Ana\n")
    fails(RecipeError, r"`file: a\.conll` has no column names", read, tmp_path, "Ana O\n", tokens="word", tags="tag")
    fails(DataError, r"a\.conll: holds no example", read, tmp_path, "-DOCSTART- O\n\n\n")
    (tmp_path / "a.conll").write_text("a b\n")
    pairs = (Field("source"), Field("target"))
    for keys in ({"file": "a.conll"}, {"file": "a.conll", "format": "text"}):
        with pytest.raises(RecipeError, match=r"`file: a\.conll` must end in one of \.tsv, \.csv, "):
            read_records(SourceConfig(source=0, target=1, **keys), pairs, tmp_path)  # type: ignore[arg-type]
    for task, file in (("tagging", "dev.conll"), ("question-answering", "dev.json.gz"), ("classification", "dev.xml")):
        assert source_of(file, task) == SourceConfig(file=file)
    (tmp_path / "dev.tsv").write_text("tags\ttokens\nO\tAna\n")
    named = str(tmp_path / "dev.tsv")
    assert source_of(named, "tagging") == SourceConfig(file=named, tokens="tokens", tags="tags")
    (tmp_path / "dev.tsv").write_text("Ana\tO\n")
    assert source_of(named, "tagging") == SourceConfig(file=named, tokens=0, tags=1)


def test_comments_bombs_and_a_sentence_without_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bomb = (b" " * (1 << 20) + b"\n") * 34
    fails(DataError, "the gzip data grow more than 200 times", read, tmp_path, bomb, "a.conll.gz")
    monkeypatch.setattr(conll, "LINE_LIMIT", 1 << 20)
    said = r"a.conll:\d+: the sentence is longer than 1 MiB; a blank line ends a sentence"
    fails(DataError, said, read, tmp_path, "abcdefgh O\n" * 120_000)
    # they have as many columns as words; the word # and its tag stay
    words = "Ana B-PER\nmora O\n"
    for comment in ("# newdoc", "# newpar", "# newdoc id = a", "# sent_id = 1"):
        records = read(tmp_path, f"{words}\n{comment}\n{words}\n# O\nfim O\n")
        assert records["tokens"] == [("Ana", "mora"), ("Ana", "mora"), ("#", "fim")], comment
        assert records.warnings() == []
    four = "Ana NP x B-PER\n"
    assert read(tmp_path, f"{four}\n# sent_id = 1\n{four}")["tokens"] == [("Ana",), ("Ana",)]
