"""SQuAD's JSON: both versions, offsets in characters, lines of questions, and every bad input."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from atento.base.errors import DataError
from atento.config.recipe import SourceConfig
from atento.config.tables.task_spec import Field
from atento.data.records.reader import Records, read_records
from atento.data.records.values import Span

ANSWERING = (Field("question"), Field("context"), Field("answers", "spans"))
CONTEXT = "Ana 😀 nasceu em São João em 1984."


def entry(id: str, *answers: tuple[str, int], **more: Any) -> dict[str, Any]:
    found = [{"text": text, "answer_start": start} for text, start in answers]
    return {"question": f"Pergunta {id}?", "id": id, "answers": found, **more}


def document(*entries: Any, version: str = "1.1", context: Any = CONTEXT) -> dict[str, Any]:
    return {"version": version, "data": [{"title": "Ana", "paragraphs": [{"qas": list(entries), "context": context}]}]}


def read(folder: Path, content: Any, file: str = "a.json", *, skip_bad: bool = False, **keys: Any) -> Records:
    raw = (content if isinstance(content, str) else json.dumps(content, indent=1, ensure_ascii=False)).encode()
    (folder / file).write_bytes(gzip.compress(raw) if file.endswith(".gz") else raw)
    return read_records(SourceConfig(file=file, **keys), ANSWERING, folder, skip_bad=skip_bad)


def refused(folder: Path, content: Any, **keys: Any) -> str:
    with pytest.raises(DataError) as error:
        read(folder, content, **keys)
    return str(error.value)


def test_both_versions_are_read_with_lines_and_the_unanswerable_without_answers(tmp_path: Path) -> None:
    for file in ("a.json", "a.json.gz"):
        first = read(tmp_path, document(entry("q1", ("São João", 16), ("João", 20)), entry("q2", ("😀", 4))), file)
        found = (Span("São João", 16), Span("João", 20)), (Span("😀", 4),)
        assert list(first) == [(f"Pergunta q{n}?", CONTEXT, spans) for n, spans in enumerate(found, 1)]
        unanswerable = entry("q2", is_impossible=True, plausible_answers=[{"text": "Ana", "answer_start": 0}])
        second = document(entry("q1", ("Ana", 0), is_impossible=False), unanswerable, version="v2.0")
        assert read(tmp_path, second, file)["answers"] == [(Span("Ana", 0),), ()]
    content = document(entry("q1", ("Ana", 0)), entry('q"2', ("Ana", 0)), entry("q3", ("Ana", 0)))
    records = read(tmp_path, content)
    lines = (tmp_path / "a.json").read_text().split("\n")
    for number, id in enumerate(("q1", 'q"2', "q3")):
        assert f'"id": {json.dumps(id)}' in lines[int(records.where(number).partition(":")[2]) - 1]
    flat = read(tmp_path, json.dumps(content))
    assert flat.where(2) == "a.json:1" and flat.fingerprint == records.fingerprint
    record = {"id": "q1", "question": "?", "context": CONTEXT, "answers": {"text": ["Ana"], "answer_start": [0]}}
    without = record | {"answers": {"text": [], "answer_start": []}}
    expected = [("?", CONTEXT, (Span("Ana", 0),)), ("?", CONTEXT, ())]
    assert list(read(tmp_path, [record, without])) == expected
    assert list(read(tmp_path, f"{json.dumps(record)}\n{json.dumps(without)}\n", "a.jsonl.gz")) == expected
    renamed = {"q": "?", "doc": {"text": CONTEXT}, "answers": [{"text": "Ana", "start": 0}]}
    assert list(read(tmp_path, [renamed], question="q", context="doc.text")) == expected[:1]


def test_an_answer_that_does_not_stand_at_its_offset_is_an_error_or_left_out(tmp_path: Path) -> None:
    content = document(entry("q1", ("Ana", 0)), entry("q2", ("São João", 15)), entry("q3", ("em", 0)))
    says = "question 'q2': answer 'São João' is not at character 15 of its context, which has ' São Joã' there; it is"
    told = refused(tmp_path, content)
    assert f"{says} only at 16" in told and "one of 2 such records" in told
    assert told.startswith("a.json:") and int(told.split(":")[1]) > 1
    records = read(tmp_path, content, skip_bad=True)
    assert records["question"] == ["Pergunta q1?"] and len(records.skipped) == 2
    assert "question 'q3': answer 'em' is not at character 0" in records.skipped[1]
    bytes_not_characters = CONTEXT.encode().index("São João".encode())
    assert "is not at character" in refused(tmp_path, document(entry("q", ("São João", bytes_not_characters))))
    utf16 = len(CONTEXT[:16].encode("utf-16-le")) // 2
    assert "it is only at 16" in refused(tmp_path, document(entry("q", ("São João", utf16))))


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
        told = refused(tmp_path, document(entry("q1", ("Ana", 0)) | broken))
        assert told.startswith("a.json:") and f": question 'q1': {says}" in told
        without_id = {key: value for key, value in (entry("q1", ("Ana", 0)) | broken).items() if key != "id"}
        told = refused(tmp_path, document(entry("q0", ("Ana", 0)), without_id))
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
        assert refused(tmp_path, content).startswith(says)
    (tmp_path / "a.json").write_text(json.dumps(document()))
    with pytest.raises(DataError, match=r"a \.json file must hold a list of objects"):
        read_records(SourceConfig(file="a.json", text="context"), (Field("text"),), tmp_path)
