"""ASSIN's XML: pairs with labels and scores, encodings, and every bad input, hostile ones among them."""

import gzip
from pathlib import Path
from typing import Any

import pytest

from atento.base.errors import DataError
from atento.config.recipe import SourceConfig
from atento.config.tables.task_spec import Field
from atento.data.files import translation_units
from atento.data.records.reader import Records, read_records
from failing import fails

CLASSES = (Field("text"), Field("pair", optional=True), Field("label", "class"))
SCORES = (Field("text"), Field("pair", optional=True), Field("score", "number"))
HEAD = "<?xml version='1.0' encoding='utf-8'?>\n<entailment-corpus>\n"
PAIR = """  <pair entailment="{}" id="{}" similarity="{}">
    <t>{}</t>
    <h>{}</h>
  </pair>
"""
TWO = HEAD + PAIR.format("Entailment", 1, 4.5, "O gato dorme", "Um gato dorme")
TWO += PAIR.format("None", 2, 1, "caf&#233; &lt;3 &amp;", "não") + "</entailment-corpus>"


def read(
    folder: Path,
    content: str | bytes,
    fields: Any = CLASSES,
    *,
    file: str = "a.xml",
    skip_bad: bool = False,
    **keys: Any,
) -> Records:
    raw = content.encode() if isinstance(content, str) else content
    (folder / file).write_bytes(gzip.compress(raw) if file.endswith(".gz") else raw)
    return read_records(SourceConfig(file=file, **keys), fields, folder, skip_bad=skip_bad)


def refused(folder: Path, content: str | bytes, fields: Any = CLASSES, **keys: Any) -> str:
    with pytest.raises(DataError) as error:
        read(folder, content, fields, **keys)
    return str(error.value)


@pytest.mark.parametrize("file", ["a.xml", "a.xml.gz"])
def test_labels_and_scores_of_pairs(tmp_path: Path, file: str) -> None:
    labels = read(tmp_path, TWO, file=file)
    assert list(labels) == [("O gato dorme", "Um gato dorme", "Entailment"), ("café <3 &", "não", "None")]
    assert labels.where(0) == f"{file}:3" and labels.where(1) == f"{file}:7"
    assert read(tmp_path, TWO, SCORES, file=file)["score"] == [4.5, 1.0]
    assert read(tmp_path, TWO, file=file, label="id")["label"] == ["1", "2"]
    assert len(read(tmp_path, TWO, file=file, count=1)) == 1


def test_encodings_that_the_file_declares_and_elements_in_texts(tmp_path: Path) -> None:
    latin = TWO.replace("utf-8", "iso-8859-1").replace("&#233;", "é")
    assert read(tmp_path, latin.encode("iso-8859-1"))["text"][1] == "café <3 &"
    assert read(tmp_path, TWO.replace("utf-8", "utf-16").encode("utf-16"))["pair"] == ["Um gato dorme", "não"]
    nested = TWO.replace("O gato dorme", "\n  O <b>gato</b>\ndorme <!-- mal --> <![CDATA[<t>]]>\n")
    assert read(tmp_path, nested)["text"][0] == "O gato\ndorme  <t>"


def test_a_bad_pair_is_one_sentence_with_its_line_or_left_out(tmp_path: Path) -> None:
    comma = " (with a decimal point; `decimal: ','` reads a decimal comma in .csv, .tsv and .xlsx sources)"
    cases = (
        (' entailment="None"', "", CLASSES, "the pair has no 'entailment'; it has 'id', 'similarity', 't', 'h'"),
        ("<h>não</h>", "", CLASSES, "the pair has no 'h'; it has 'entailment', 'id', 'similarity', 't'"),
        ('similarity="1"', 'similarity="1,5"', SCORES, f"`score` must hold a number{comma}: got '1,5'"),
        ('similarity="1"', 'similarity="NaN"', SCORES, "`score` must hold a finite number: got nan"),
        ('similarity="1"', 'similarity=""', SCORES, "`score` must hold a number: got ''"),
    )
    for old, new, fields, says in cases:
        content = TWO.replace(old, new)
        assert refused(tmp_path, content, fields) == f"a.xml:7: {says}"
        records = read(tmp_path, content, fields, skip_bad=True)
        assert len(records) == 1 and records.skipped == [f"a.xml:7: {says}"]
    empty = read(tmp_path, TWO.replace("<h>não</h>", "<h> </h>"))
    assert len(empty) == 1 and empty.empty == 1


def test_what_is_not_xml_has_no_pairs_or_no_end_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert refused(tmp_path, TWO.replace("</t>", "", 1)) == "a.xml:6: not XML: mismatched tag"
    assert refused(tmp_path, TWO[:-5]) == "a.xml:11: not XML: unclosed token"
    assert refused(tmp_path, "") == "a.xml:1: not XML: no element found"
    assert refused(tmp_path, TWO.replace("&amp;", "& ")).startswith("a.xml:8: not XML: ")
    assert refused(tmp_path, TWO.encode("iso-8859-1")).startswith("a.xml:9: not XML: ")
    said = "a.xml:1: not XML that can be read: unknown encoding: klingon"
    assert refused(tmp_path, TWO.replace("utf-8", "klingon")) == said
    assert refused(tmp_path, HEAD + "</entailment-corpus>") == "a.xml: holds no example"
    monkeypatch.setattr(translation_units, "LINE_LIMIT", 1 << 20)
    long = "a " * (1 << 20)
    assert refused(tmp_path, TWO.replace("O gato dorme", long)) == "a.xml:3: the pair is longer than 1 MiB"
    assert "is longer than 1 MiB" in refused(tmp_path, TWO.replace('id="1"', f'id="{long}"'))
    fails(DataError, "gzip data grow more than 200", read, tmp_path, HEAD.encode() + b" " * (33 << 20), file="a.xml.gz")


def test_entities_are_refused_whatever_they_would_do(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("secret")
    lol = "".join(f'<!ENTITY l{n} "{f"&l{n - 1};" * 10}">' for n in range(1, 10))
    for declared in (
        f'<!ENTITY x SYSTEM "{secret.as_uri()}">',
        f'<!ENTITY l0 "lol">{lol}<!ENTITY x "&l9;">',
        '<!ENTITY x "plain">',
    ):
        content = TWO.replace("<entailment-corpus>", f"<!DOCTYPE d [{declared}]>\n<entailment-corpus>")
        told = refused(tmp_path, content.replace("não", "&x;"))
        assert told.startswith("a.xml:2: the entity ") and told.endswith("is declared or used; entities are refused")
    outside = TWO.replace("<entailment-corpus>", f'<!DOCTYPE d SYSTEM "{secret.as_uri()}">\n<entailment-corpus>')
    assert len(read(tmp_path, outside)) == 2  # not read
    said = "a.xml:10: the entity 'x' is declared or used; entities are refused"
    assert refused(tmp_path, outside.replace("não", "&x;")) == said
    assert "not XML: undefined entity" in refused(tmp_path, TWO.replace("não", "&x;"))
