"""ASSIN's XML, SQuAD's JSON, columns of words and tags: their encodings, versions, separators, and every bad input."""

import gzip
import json
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from atento.base.errors import DataError, RecipeError
from atento.config.recipe import SourceConfig
from atento.config.tables.task_spec import Field
from atento.data.files import conll, translation_units
from atento.data.records.labelled_data import source_of
from atento.data.records.reader import Records, read_records
from atento.data.records.values import Span
from failing import fails

CLASSES = (Field("text"), Field("pair", optional=True), Field("label", "class"))
SCORES = (Field("text"), Field("pair", optional=True), Field("score", "number"))
HEAD = "<?xml version='1.0' encoding='utf-8'?>\n<entailment-corpus>\n"
PAIR = """  <pair entailment="{}" id="{}" similarity="{}">
    <t>{}</t>
    <h>{}</h>
  </pair>
"""
XML = HEAD + PAIR.format("Entailment", 1, 4.5, "O gato dorme", "Um gato dorme")
XML += PAIR.format("None", 2, 1, "caf&#233; &lt;3 &amp;", "não") + "</entailment-corpus>"


def read(folder: Path, content: Any, *, fields: Any, file: str, skip_bad: bool = False, **keys: Any) -> Records:
    text = content if isinstance(content, str | bytes) else json.dumps(content, indent=1, ensure_ascii=False)
    raw = text.encode() if isinstance(text, str) else text
    (folder / file).write_bytes(gzip.compress(raw) if file.endswith(".gz") else raw)
    return read_records(SourceConfig(file=file, **keys), fields, folder, skip_bad=skip_bad)


assin = partial(read, fields=CLASSES, file="a.xml")
squad = partial(read, fields=(Field("question"), Field("context"), Field("answers", "spans")), file="a.json")
columns = partial(read, fields=(Field("tokens", "words"), Field("tags", "tags")), file="a.conll")


def refused(reader: Callable[..., Records], folder: Path, content: Any, **keys: Any) -> str:
    with pytest.raises(DataError) as error:
        reader(folder, content, **keys)
    return str(error.value)


@pytest.mark.parametrize("file", ["a.xml", "a.xml.gz"])
def test_labels_and_scores_of_pairs(tmp_path: Path, file: str) -> None:
    labels = assin(tmp_path, XML, file=file)
    assert list(labels) == [("O gato dorme", "Um gato dorme", "Entailment"), ("café <3 &", "não", "None")]
    assert labels.where(0) == f"{file}:3" and labels.where(1) == f"{file}:7"
    assert assin(tmp_path, XML, fields=SCORES, file=file)["score"] == [4.5, 1.0]
    assert assin(tmp_path, XML, file=file, label="id")["label"] == ["1", "2"]
    assert len(assin(tmp_path, XML, file=file, count=1)) == 1


def test_encodings_that_the_file_declares_and_elements_in_texts(tmp_path: Path) -> None:
    latin = XML.replace("utf-8", "iso-8859-1").replace("&#233;", "é")
    assert assin(tmp_path, latin.encode("iso-8859-1"))["text"][1] == "café <3 &"
    assert assin(tmp_path, XML.replace("utf-8", "utf-16").encode("utf-16"))["pair"] == ["Um gato dorme", "não"]
    nested = XML.replace("O gato dorme", "\n  O <b>gato</b>\ndorme <!-- mal --> <![CDATA[<t>]]>\n")
    assert assin(tmp_path, nested)["text"][0] == "O gato\ndorme  <t>"


def test_a_bad_pair_is_one_sentence_with_its_line_or_left_out(tmp_path: Path) -> None:
    comma = " (with a decimal point; `decimal: ','` reads a decimal comma in .csv, .tsv and .xlsx sources)"
    cases = (
        (' entailment="None"', "", CLASSES, "the pair has no 'entailment'; it has 'id', 'similarity', 't', 'h'"),
        ("<h>não</h>", "", CLASSES, "the pair has no 'h'; it has 'entailment', 'id', 'similarity', 't'"),
        ('similarity="1"', 'similarity="1,5"', SCORES, f"`score` must hold a number{comma}: got '1,5'"),
    )
    for old, new, fields, says in cases:
        content = XML.replace(old, new)
        assert refused(assin, tmp_path, content, fields=fields) == f"a.xml:7: {says}"
        records = assin(tmp_path, content, fields=fields, skip_bad=True)
        assert len(records) == 1 and records.skipped == [f"a.xml:7: {says}"]
    empty = assin(tmp_path, XML.replace("<h>não</h>", "<h> </h>"))
    assert len(empty) == 1 and empty.empty == 1


def test_what_is_not_xml_has_no_pairs_or_no_end_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert refused(assin, tmp_path, XML.replace("</t>", "", 1)) == "a.xml:6: not XML: mismatched tag"
    assert refused(assin, tmp_path, XML[:-5]) == "a.xml:11: not XML: unclosed token"
    assert refused(assin, tmp_path, "") == "a.xml:1: not XML: no element found"
    assert refused(assin, tmp_path, XML.replace("&amp;", "& ")).startswith("a.xml:8: not XML: ")
    assert refused(assin, tmp_path, XML.encode("iso-8859-1")).startswith("a.xml:9: not XML: ")
    said = "a.xml:1: not XML that can be read: unknown encoding: klingon"
    assert refused(assin, tmp_path, XML.replace("utf-8", "klingon")) == said
    assert refused(assin, tmp_path, HEAD + "</entailment-corpus>") == "a.xml: holds no example"
    monkeypatch.setattr(translation_units, "LINE_LIMIT", 1 << 20)
    long = "a " * (1 << 20)
    assert refused(assin, tmp_path, XML.replace("O gato dorme", long)) == "a.xml:3: the pair is longer than 1 MiB"
    assert "is longer than 1 MiB" in refused(assin, tmp_path, XML.replace('id="1"', f'id="{long}"'))
    fails(DataError, "data grow more than 200", assin, tmp_path, HEAD.encode() + b" " * (33 << 20), file="a.xml.gz")


def test_entities_are_refused_whatever_they_would_do(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("secret")
    lol = "".join(f'<!ENTITY l{n} "{f"&l{n - 1};" * 10}">' for n in range(1, 10))
    for declared in (
        f'<!ENTITY x SYSTEM "{secret.as_uri()}">',
        f'<!ENTITY l0 "lol">{lol}<!ENTITY x "&l9;">',
        '<!ENTITY x "plain">',
    ):
        content = XML.replace("<entailment-corpus>", f"<!DOCTYPE d [{declared}]>\n<entailment-corpus>")
        told = refused(assin, tmp_path, content.replace("não", "&x;"))
        assert told.startswith("a.xml:2: the entity ") and told.endswith("is declared or used; entities are refused")
    outside = XML.replace("<entailment-corpus>", f'<!DOCTYPE d SYSTEM "{secret.as_uri()}">\n<entailment-corpus>')
    assert len(assin(tmp_path, outside)) == 2  # not read
    said = "a.xml:10: the entity 'x' is declared or used; entities are refused"
    assert refused(assin, tmp_path, outside.replace("não", "&x;")) == said
    assert "not XML: undefined entity" in refused(assin, tmp_path, XML.replace("não", "&x;"))


CONTEXT = "Ana 😀 nasceu em São João em 1984."


def entry(id: str, *answers: tuple[str, int], **more: Any) -> dict[str, Any]:
    found = [{"text": text, "answer_start": start} for text, start in answers]
    return {"question": f"Pergunta {id}?", "id": id, "answers": found, **more}


def document(*entries: Any, version: str = "1.1", context: Any = CONTEXT) -> dict[str, Any]:
    return {"version": version, "data": [{"title": "Ana", "paragraphs": [{"qas": list(entries), "context": context}]}]}


def test_both_versions_are_read_with_lines_and_the_unanswerable_without_answers(tmp_path: Path) -> None:
    for file in ("a.json", "a.json.gz"):
        one = squad(tmp_path, document(entry("q1", ("São João", 16), ("João", 20)), entry("q2", ("😀", 4))), file=file)
        found = (Span("São João", 16), Span("João", 20)), (Span("😀", 4),)
        assert list(one) == [(f"Pergunta q{n}?", CONTEXT, spans) for n, spans in enumerate(found, 1)]
        unanswerable = entry("q2", is_impossible=True, plausible_answers=[{"text": "Ana", "answer_start": 0}])
        second = document(entry("q1", ("Ana", 0), is_impossible=False), unanswerable, version="v2.0")
        assert squad(tmp_path, second, file=file)["answers"] == [(Span("Ana", 0),), ()]
    content = document(entry("q1", ("Ana", 0)), entry('q"2', ("Ana", 0)), entry("q3", ("Ana", 0)))
    records = squad(tmp_path, content)
    lines = (tmp_path / "a.json").read_text().split("\n")
    for number, id in enumerate(("q1", 'q"2', "q3")):
        assert f'"id": {json.dumps(id)}' in lines[int(records.where(number).partition(":")[2]) - 1]
    flat = squad(tmp_path, json.dumps(content))
    assert flat.where(2) == "a.json:1" and flat.fingerprint == records.fingerprint
    record = {"id": "q1", "question": "?", "context": CONTEXT, "answers": {"text": ["Ana"], "answer_start": [0]}}
    without = record | {"answers": {"text": [], "answer_start": []}}
    expected = [("?", CONTEXT, (Span("Ana", 0),)), ("?", CONTEXT, ())]
    assert list(squad(tmp_path, [record, without])) == expected
    assert list(squad(tmp_path, f"{json.dumps(record)}\n{json.dumps(without)}\n", file="a.jsonl.gz")) == expected
    renamed = {"q": "?", "doc": {"text": CONTEXT}, "answers": [{"text": "Ana", "start": 0}]}
    assert list(squad(tmp_path, [renamed], question="q", context="doc.text")) == expected[:1]


def test_an_answer_that_does_not_stand_at_its_offset_is_an_error_or_left_out(tmp_path: Path) -> None:
    content = document(entry("q1", ("Ana", 0)), entry("q2", ("São João", 15)), entry("q3", ("em", 0)))
    says = "question 'q2': answer 'São João' is not at character 15 of its context, which has ' São Joã' there; it is"
    told = refused(squad, tmp_path, content)
    assert f"{says} only at 16" in told and "one of 2 such records" in told
    assert told.startswith("a.json:") and int(told.split(":")[1]) > 1
    records = squad(tmp_path, content, skip_bad=True)
    assert records["question"] == ["Pergunta q1?"] and len(records.skipped) == 2
    assert "question 'q3': answer 'em' is not at character 0" in records.skipped[1]
    bytes_not_characters = CONTEXT.encode().index("São João".encode())
    assert "is not at character" in refused(squad, tmp_path, document(entry("q", ("São João", bytes_not_characters))))
    utf16 = len(CONTEXT[:16].encode("utf-16-le")) // 2
    assert "it is only at 16" in refused(squad, tmp_path, document(entry("q", ("São João", utf16))))


def test_bad_questions_and_files_of_another_structure_are_refused(tmp_path: Path) -> None:
    for broken, says in (
        ({"question": 3}, "`question` must hold a string, not a number"),
        ({"answers": None}, "`answers` must be a list, not null"),
        ({"answers": [3]}, "an answer must be an object, not a number"),
        ({"answers": [{"text": "Ana"}]}, "`answer_start` must be a whole number, not null"),
        ({"answers": [{"text": "Ana", "answer_start": 0.0}]}, "`answer_start` must be a whole number, not a number"),
        ({"answers": [{"text": None, "answer_start": 0}]}, "`text` of an answer must hold a string, not null"),
        ({"answers": [{"text": "", "answer_start": 0}]}, "an answer is empty"),
        ({"is_impossible": True}, "is marked `is_impossible` and has answers"),
    ):
        told = refused(squad, tmp_path, document(entry("q1", ("Ana", 0)) | broken))
        assert told.startswith("a.json:") and f": question 'q1': {says}" in told
        without_id = {key: value for key, value in (entry("q1", ("Ana", 0)) | broken).items() if key != "id"}
        told = refused(squad, tmp_path, document(entry("q0", ("Ana", 0)), without_id))
        assert told.partition(": question ")[2].startswith("2: ")
    for content, says in (
        ("{", "a.json:1: not JSON: "),
        ('{"data": [],}', "a.json:1: not JSON: "),
        ('{"data": []} {}', "a.json: more text after the object"),
        ('{"data": 3}', "a.json: the file must have a list 'data', as SQuAD's files have (data, paragraphs, qas): got"),
        ({"text": "a"}, "a.json: the file must have a list 'data', as SQuAD's files have"),
        ({"data": [3]}, "a.json: data[0] of the file must be an object, not a number"),
        ({"data": [{"title": "a"}]}, "a.json: data[0] must have a list 'paragraphs', as SQuAD's files have"),
        ({"data": [{"paragraphs": [{"context": "a"}]}]}, "a.json: data[0].paragraphs[0] must have a list 'qas'"),
        (document(context=None), "a.json: data[0].paragraphs[0]: `context` must hold a string, not null"),
        ('{"a": 1, "a": 2}', "a.json: key 'a' appears twice in one object"),
        ('{"data": ' + "[" * 100_000, "a.json: the record is nested too deeply"),
        (document(), "a.json: holds no example"),
    ):
        assert refused(squad, tmp_path, content).startswith(says)
    (tmp_path / "a.json").write_text(json.dumps(document()))
    with pytest.raises(DataError, match=r"a \.json file must hold a list of objects"):
        read_records(SourceConfig(file="a.json", text="context"), (Field("text"),), tmp_path)


TWO = [(("Ana", "mora", "aqui"), ("B-PER", "O", "O")), (("Lisboa",), ("B-LOC",))]


@pytest.mark.parametrize("file", ["a.conll", "a.bio", "a.iob", "a.txt", "esp.train", "a.conll.gz", "esp.train.gz"])
def test_the_first_and_the_last_column_are_read_of_every_ending(tmp_path: Path, file: str) -> None:
    content = "Ana NP B-PER\nmora V O\naqui ADV O\n\nLisboa NP B-LOC\n"
    records = columns(tmp_path, content, file=file)
    assert list(records) == TWO and (records.where(0), records.where(1)) == (f"{file}:1", f"{file}:5")
    assert records.warnings() == []
    assert columns(tmp_path, content.replace(" ", "\t"), file=file).fingerprint == records.fingerprint


def test_separators_line_ends_comments_columns_and_formats(tmp_path: Path) -> None:
    records = columns(tmp_path, "\ufeff\r\n\r\n Ana   B-PER \r\nmora O\r\naqui O\r\n\t\r\n \r\nLisboa B-LOC")
    assert list(records) == TWO and records.where(0) == "a.conll:3" and records.where(1) == "a.conll:8"
    joined = columns(tmp_path, "São Paulo\tB-LOC\n10\u00a0000\tO\n\n10\u00a0000 O\n")
    assert joined["tokens"] == [("São Paulo", "10\u00a0000"), ("10\u00a0000",)]
    content = (
        "-DOCSTART- -X- O\n\n# sent_id = 1\n# text = Ana mora\nAna NP B-PER\n# NP O\n#1 NP O\n"
        "-DOCSTART- -X- O\n# NP O\n\n# a comment of five columns\nfim NP O\n"
    )
    assert columns(tmp_path, content)["tokens"] == [("Ana", "#", "#1"), ("#",), ("fim",)]
    assert columns(tmp_path, "# O\nAna B-PER\n")["tokens"] == [("#", "Ana")]
    found = columns(tmp_path, "# text = Ana\nAna\tB-PER\n\n# no\nfim\tO\n\n#sonho\tO\n")["tokens"]
    assert found == [("Ana",), ("fim",), ("#sonho",)]
    content = "1 Ana NP B-PER\n2 mora V O\n"
    for tags, expected in ((2, ("NP", "V")), (-2, ("NP", "V")), (-1, ("B-PER", "O")), (None, ("B-PER", "O"))):
        assert list(columns(tmp_path, content, tokens=1, tags=tags)) == [(("Ana", "mora"), expected)]
    table = "Ana\tB-PER\nmora\tO\n\nfim\tO\n"
    assert len(columns(tmp_path, table, file="a.tsv", format="conll")) == 2
    words = columns(tmp_path, table, file="a.tsv", tokens=0, tags=1)
    assert len(words) == 3
    said = "a.tsv: each sentence is one word; where a row is a word, `format: conll` reads sentences"
    assert said in words.warnings()


def test_conll_u_reads_words_and_tags_and_iob1_is_read_as_iob2(tmp_path: Path) -> None:
    def line(*columns: str) -> str:
        return "\t".join([*columns, *"_" * (10 - len(columns))]) + "\n"

    ud = (
        "# sent_id = 1\n# text = Vou ao mar\n" + line("1", "Vou", "ir", "VERB") + line("2-3", "ao", "_", "_")
        + line("2", "a", "a", "ADP") + line("3", "o", "o", "DET") + line("3.1", "x", "x", "X")
        + line("4", "mar", "mar", "NOUN", "N") + "\n"
    )  # fmt: skip
    assert list(columns(tmp_path, ud, file="a.conllu")) == [(("Vou", "a", "o", "mar"), ("VERB", "ADP", "DET", "NOUN"))]
    assert columns(tmp_path, ud, file="a.conllu", tags=4)["tags"] == [("_", "_", "_", "N")]
    records = columns(tmp_path, "a I-X\nb B-X\nc I-Y\n\nd O\n")
    assert records["tags"] == [("B-X", "B-X", "B-Y"), ("O",)]
    assert records.warnings() == ["a.conll: its tags are IOB1, and are read as IOB2"]
    slips = columns(tmp_path, "a B-X\nb O\n\nc O\nd I-X\n")
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
    assert refused(columns, tmp_path, raw).startswith(says)
    records = columns(tmp_path, raw + b"y\tO\n\nLisboa\tB-LOC\n", skip_bad=True)
    assert list(records) == TWO and len(records.skipped) == 1 and records.skipped[0].startswith(says)


def test_columns_that_the_file_has_not_are_refused(tmp_path: Path) -> None:
    for keys, says in (
        ({"tags": 2}, "a.conll:1: 2 columns, and column 2 is requested; columns are counted from 0"),
        ({"tokens": -3}, "a.conll:1: 2 columns, and column -3 is requested; columns are counted from 0"),
        ({"tokens": 1}, "a.conll:1: 2 columns, and a word and its tag must stand in two"),
    ):
        fails(DataError, f"^{re.escape(says)}$", columns, tmp_path, "Ana B-PER\n", **keys)
    fails(DataError, r"a\.conll:1: 1 column, and a word and its tag must stand in two", columns, tmp_path, "Ana\n")
    fails(RecipeError, r"`file: a\.conll` has no column names", columns, tmp_path, "Ana O\n", tokens="word", tags="tag")
    fails(DataError, r"a\.conll: holds no example", columns, tmp_path, "-DOCSTART- O\n\n\n")
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
    fails(DataError, "the gzip data grow more than 200 times", columns, tmp_path, bomb, file="a.conll.gz")
    monkeypatch.setattr(conll, "LINE_LIMIT", 1 << 20)
    said = r"a.conll:\d+: the sentence is longer than 1 MiB; a blank line ends a sentence"
    fails(DataError, said, columns, tmp_path, "abcdefgh O\n" * 120_000)
    # they have as many columns as words; the word # and its tag stay
    words = "Ana B-PER\nmora O\n"
    for comment in ("# newdoc", "# newpar", "# newdoc id = a", "# sent_id = 1"):
        records = columns(tmp_path, f"{words}\n{comment}\n{words}\n# O\nfim O\n")
        assert records["tokens"] == [("Ana", "mora"), ("Ana", "mora"), ("#", "fim")], comment
        assert records.warnings() == []
    four = "Ana NP x B-PER\n"
    assert columns(tmp_path, f"{four}\n# sent_id = 1\n{four}")["tokens"] == [("Ana",), ("Ana",)]
