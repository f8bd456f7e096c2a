"""Records of every kind of field, from tables, JSON and memory: values, labels, bad ones, fingerprints."""

import json
import re
from collections import namedtuple
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from atento.base.errors import DataError, RecipeError, TokenizerError, UsageError
from atento.config.reading.loading import load_recipe
from atento.config.recipe import SourceConfig, TokenizerConfig
from atento.config.tables.task_spec import Field
from atento.config.tables.tasks import TASKS
from atento.data.records.reader import Records, read_records, records_in_memory
from atento.data.records.splits import held_out, overlap, split_of
from atento.data.records.values import Span
from atento.metrics import accuracy, bleu
from atento.metrics.label_counts import class_name, label_name
from atento.runs.prepare import read_data
from atento.sklearn import Tagger
from atento.tasks.mask_filling import target_ids
from atento.tasks.verb_calls import listed
from atento.text import train_tokenizer
from atento.text.bulk import BulkEncoder
from atento.text.kinds import check_texts
from failing import fails

TAGGING = (Field("tokens", "words"), Field("tags", "tags"))
ASKED = (Field("question"), Field("context"), Field("answers", "spans"))
REGRESSION = (Field("text"), Field("pair", optional=True), Field("score", "number"))
SEVERAL = (Field("text"), Field("label", "classes"))
LABELLED = (Field("text"), Field("label", "class"))
CONTEXT = "Ana mora em São Paulo 😀 desde 1999."


def in_file(folder: Path, name: str, content: str, fields: Sequence[Field], **columns: Any) -> Records:
    (folder / name).write_text(content, encoding="utf-8")
    skip_bad = columns.pop("skip_bad", False)
    named = {field.name: field.name for field in fields if not field.optional} | columns
    return read_records(SourceConfig(file=name, **named), fields, folder, skip_bad=skip_bad)


def lines(*records: Any) -> str:
    return "".join(f"{json.dumps(record)}\n" for record in records)


@pytest.mark.parametrize("entities", [
    [[0, 3, "PER"], [12, 24, "LOC"]],
    [{"start": 12, "end": 24, "label": "LOC"}, {"start": 0, "end": 3, "label": "PER"}],
    [{"start": 0, "end": 3, "labels": ["PER"]}, (12, 23, "LOC")],  # inside of its last word
])  # fmt: skip
def test_entities_marked_by_characters_are_words_with_tags(tmp_path: Path, entities: list[Any]) -> None:
    text = "Ana mora em Porto Alegre. 😀"
    expected = ["Ana", "mora", "em", "Porto", "Alegre", ".", "😀"], ["B-PER", "O", "O", "B-LOC", "I-LOC", "O", "O"]
    record = {"tokens": text, "tags": entities}
    memory = records_in_memory([record, {"tokens": "Nada.", "tags": []}], TAGGING, "data")
    assert list(zip(memory["tokens"], memory["tags"])) == [tuple(map(tuple, expected)), (("Nada", "."), ("O", "O"))]
    written = lines({"text": text, "label": json.loads(json.dumps(record, default=int))["tags"]})
    read = in_file(tmp_path, "a.jsonl", written, TAGGING, tokens="text", tags="label")
    assert (read["tokens"][0], read["tags"][0]) == tuple(map(tuple, expected))


def test_an_export_of_label_studio_is_read(tmp_path: Path) -> None:
    """Tasks with nested annotations: entities, whose emoji count twice as in JavaScript, and choices."""

    def task(*values: dict[str, Any], **facts: Any) -> dict[str, Any]:
        given = {"id": 7, "result": [{"value": value, "from_name": "x", "type": "labels"} for value in values], **facts}
        return {"id": 1, "data": {"text": "😀 Ana mora\nem Porto Alegre."}, "annotations": [given], "predictions": []}

    ana = {"start": 3, "end": 6, "text": "Ana", "labels": ["PER"]}
    porto = {"start": 14, "end": 26, "text": "Porto Alegre", "labels": ["LOC"]}  # as newer versions count
    fine = task(ana, porto, {"choices": ["viagem", "casa"]})
    fine["annotations"].insert(0, {"result": [], "was_cancelled": True})
    entities = {"tokens": "data.text", "tags": "annotations"}
    read = in_file(tmp_path, "a.json", json.dumps([fine]), TAGGING, **entities)
    assert read["tags"] == [("O", "B-PER", "O", "O", "B-LOC", "I-LOC", "O")]
    waiting = [{**fine, "annotations": []}, task(was_cancelled=True), fine, {**fine, "annotations": []}]
    some = in_file(tmp_path, "a.json", json.dumps(waiting), TAGGING, **entities)
    assert len(some) == 1 and some.warnings() == ["a.json: 3 records not labelled yet, left out"]
    choices = {"text": "data.text", "label": "annotations"}
    assert in_file(tmp_path, "a.json", json.dumps([fine]), SEVERAL, **choices)["label"] == [("viagem", "casa")]
    one = json.dumps([task({"choices": ["casa"]})])
    assert in_file(tmp_path, "a.json", one, LABELLED, **choices)["label"] == ["casa"]
    for record, fields, columns, said in (
        (fine, LABELLED, choices, r"a\.json:1: key 'annotations' must have one choice: got 2"),
        (task(was_cancelled=True), TAGGING, entities, r"a\.json: holds no example \(1 record not labelled yet\)"),
        ({**fine, "annotations": []}, LABELLED, choices, r"a\.json: holds no example \(1 record not labelled yet\)"),
        (task(result=None), TAGGING, entities, "key 'annotations' has no annotation with a list of results"),
        (task({"choices": "casa"}), SEVERAL, choices, "key 'annotations' must have its choices in a list"),
        (task({"choices": None}), LABELLED, choices, "must have its choices in a list"),
        (task(ana | {"start": 4, "end": 7}), TAGGING, entities, "entity 1, is 'Ana', and its text has 'a m' from 4 to"),
    ):
        fails(DataError, said, in_file, tmp_path, "a.json", json.dumps([record]), fields, **columns)


def test_every_kind_reads_the_same_from_tables_json_and_memory(tmp_path: Path) -> None:
    span = {"text": ["São Paulo"], "answer_start": [12]}
    tagged = {"tokens": ["Ana", "mora", "aqui"], "tags": ["B-PER", "O", "O"]}
    answered = {"question": "Onde?", "context": CONTEXT, "answers": span}
    cases: list[tuple[Sequence[Field], list[str], dict[str, Any], tuple[Any, ...]]] = [
        (TAGGING, ["Ana  mora aqui", "B-PER O O"], tagged, tuple(map(tuple, tagged.values()))),
        (REGRESSION, ["a b", "4.25"], {"text": "a b", "score": 4.25}, ("a b", 4.25)),
        (SEVERAL, ["a b", "x|y"], {"text": "a b", "label": ["x", "y"]}, ("a b", ("x", "y"))),
        (ASKED, ["Onde?", CONTEXT, json.dumps(span)], answered, ("Onde?", CONTEXT, (Span("São Paulo", 12),))),
    ]
    for fields, cells, record, expected in cases:
        names = [field.name for field in fields if not field.optional]
        table = in_file(tmp_path, "a.tsv", "\t".join(names) + "\n" + "\t".join(cells) + "\n", fields)
        quoted = ",".join('"' + cell.replace('"', '""') + '"' for cell in cells)
        comma = in_file(tmp_path, "a.csv", ",".join(names) + "\n" + quoted + "\n", fields)
        keyed = in_file(tmp_path, "a.jsonl", lines(record), fields)
        listed = in_file(tmp_path, "a.json", json.dumps([record]), fields)
        in_memory: list[Any] = [[record], [tuple(record.values())], tuple([value] for value in record.values())]
        in_memory.append({name: [value] for name, value in record.items()})
        memory = [records_in_memory(records, fields, "data") for records in in_memory]
        for records in (table, comma, keyed, listed, *memory):
            assert list(records) == [expected] and records.fingerprint == table.fingerprint
            assert hash(next(iter(records))) == hash(expected)
        assert table.where(0) == "a.tsv:2" and keyed.where(0) == "a.jsonl:1"


def test_numbers_and_words_of_arrays_and_named_tuples_are_plain_and_other_shapes_are_refused() -> None:
    scored = records_in_memory((np.array(["a", "b"]), np.array([1.5, 2.0], dtype=np.float32)), REGRESSION, "data")
    assert scored["score"] == [1.5, 2.0] and {type(score) for score in scored["score"]} == {float}
    tagged = records_in_memory([(np.array(["a", "b"]), [3, 4])], TAGGING, "data")
    assert list(tagged) == [(("a", "b"), ("3", "4"))] and {type(word) for word in tagged["tokens"][0]} == {str}
    pairs = records_in_memory([("a", "b"), ("ç", "d")], (Field("source"), Field("target")), "data")
    assert pairs.fingerprint == sha256("a\0b\0ç\0d\0".encode()).hexdigest()
    several = [[("a", ["x", "y"])], [("a", ["x|y"])], [("a", ["xy"])], [("a", [])], [("a", ["y", "x"])]]
    assert len({records_in_memory(records, SEVERAL, "data").fingerprint for records in several}) == 5
    scores = [[("a", 1.0)], [("a", 1.5)], [("a", -1.0)]]
    assert len({records_in_memory(records, REGRESSION, "data").fingerprint for records in scores}) == 3
    many = [(f"a{number}", [f"x{number % 3}", "y"]) for number in range(100)]
    train, valid = records_in_memory(many, SEVERAL, "train"), records_in_memory(many[:7], SEVERAL, "valid")
    assert overlap([train], valid) == 7
    split = split_of([train, valid])
    assert split is not None and len(split) == 107 and split["label"][100] == ("x0", "y")
    rest, chosen = held_out(train.columns, 10)
    assert len(chosen) == 10 and len(rest) == 90
    assert split.characters() == {"text": sum(len(f"a{n}") for n in (*range(100), *range(7))), "label": 107 * 3}
    tagged = split_of([records_in_memory([(["Ana", "mora"], ["B", "O"])], TAGGING, "train")])
    assert tagged is not None and list(tagged.texts(("tokens",))) == ["Ana mora"]
    with pytest.raises(DataError, match="data has 2 tokens and 1 tags; the numbers must be equal"):
        records_in_memory(([["a"], ["b"]], [["O"]]), TAGGING, "data")
    arrow = SimpleNamespace(to_pylist=list)  # a table of pyarrow is not iterable; a lazy frame has `collect`
    fails(UsageError, r"got SimpleNamespace; its `to_pylist\(\)` does$", records_in_memory, arrow, TAGGING, "data")
    with pytest.raises(UsageError, match="data must be an iterable of dicts with the keys 'tokens', 'tags': got int"):
        records_in_memory(3, TAGGING, "data")  # type: ignore[arg-type]
    for score in (float("nan"), float("inf")):
        with pytest.raises(DataError, match=r"data\[1\]: key 'score' must hold a finite number: got "):
            records_in_memory([("a", 1), ("b", score)], REGRESSION, "data")
    # The rows of pandas' `itertuples`: by position, texts became labels without a word
    label, text, score = Field("label", "class"), Field("text"), Field("score", "number", optional=True)
    row = namedtuple("Row", "Index label text")
    records = records_in_memory([row(0, "a", "one text"), row(1, "b", "another")], (text, label, score), "data")
    assert records.columns == {"text": ["one text", "another"], "label": ["a", "b"]}
    pair = namedtuple("Pair", "en pt")  # other names: by position
    assert records_in_memory([pair("one text", "a")], (text, label), "data").columns["label"] == ["a"]
    part = namedtuple("Part", "label body")
    with pytest.raises(DataError, match=r"key 'text' is not in the record.*; its keys are 'label', 'body'"):
        records_in_memory([part("a", "one text")], (text, label), "data")


def test_records_and_labels_that_say_nothing_are_left_out_and_counted_by_the_separator_of_the_source(tmp_path) -> None:
    tagged = in_file(tmp_path, "a.jsonl", lines({"tokens": [], "tags": []}, {"tokens": ["a"], "tags": ["O"]}), TAGGING)
    assert len(tagged) == 1 and tagged.empty == 1
    table = in_file(tmp_path, "b.tsv", "a b\tO O\n \tO\n\t\n\nc\tO\n", TAGGING, tokens=0, tags=1)
    assert list(table) == [(("a", "b"), ("O", "O")), (("c",), ("O",))] and table.empty == 3
    assert table.where(1) == "b.tsv:5"
    unlabelled = in_file(tmp_path, "c.tsv", "a\tx\nb\t\n", SEVERAL, text=0, label=1)
    assert unlabelled["label"] == [("x",), ()] and not unlabelled.empty  # no label is an answer too
    two = lines({"question": "Quem?", "context": CONTEXT, "answers": []}, {})
    answered = in_file(tmp_path, "d.jsonl", two, ASKED, skip_bad=True)
    assert answered["answers"] == [()] and len(answered.skipped) == 1
    records = in_file(tmp_path, "a.tsv", "a\tx, y\nb\tx|y\n", SEVERAL, text=0, label=1, separator=",")
    assert records["label"] == [("x", "y"), ("x|y",)]
    fails(RecipeError, "`separator` must not be empty", SourceConfig, separator="")
    # Left out and counted; where a text may have several labels, it has none
    for several in (False, True):
        fields = SEVERAL if several else LABELLED
        (tmp_path / "a.csv").write_text("text,label\nx,a\ny,\n", encoding="utf-8")
        rows = [{"text": "x", "label": ["a"] if several else "a"}, {"text": "y", "label": None}]
        (tmp_path / "a.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
        sources = [SourceConfig(file=str(tmp_path / name), text="text", label="label") for name in ("a.csv", "a.jsonl")]
        read = [read_records(source, fields) for source in sources] + [records_in_memory(rows, fields, "data")]
        cell, *nulls = [(dict(one.columns), [text.split(": ", 1)[1] for text in one.warnings()]) for one in read]
        assert all(null == cell for null in nulls)
        assert len(cell[0]["label"]) == 1 + several and bool(cell[1]) is not several


SHARED = "shares the word 'b' with another one; each word has one tag"
SEVERAL_NEED = "several labels of one text need `task: multi-label-classification`"
NOT_AT = "answer {} is not at character {} of its context, which has {} there; it is only at {}"
BLANK = "an answer is empty; a question without an answer has an empty list of answers"
START = "the start of an answer must be a whole number"
PARTS = 'must have a start, an end and a label: [0, 3, "PER"], or an object of the three'


def marked(*entities: Any) -> dict[str, Any]:
    return {"tokens": "a b", "tags": list(entities)}


def asked(answers: Any) -> dict[str, Any]:
    return {"question": "?", "context": CONTEXT, "answers": answers}


def test_a_bad_record_of_json_is_one_sentence_with_its_line(tmp_path) -> None:
    for fields, record, says in (
        (TAGGING, {"tokens": ["a", "b"], "tags": ["O"]}, "2 words and 1 tag; each word needs one tag"),
        (TAGGING, {"tokens": ["a"], "tags": []}, "1 word and 0 tags; each word needs one tag"),
        (TAGGING, {"tokens": "a b", "tags": ["O"]}, "key 'tokens' must hold a list of strings, not a string"),
        (TAGGING, marked([0, "PER"]), f"key 'tags', entity 1, {PARTS}"),
        (TAGGING, marked([True, 1, "PER"]), f"key 'tags', entity 1, {PARTS}"),
        (TAGGING, marked({"start": 0, "end": 1}), f"key 'tags', entity 1, {PARTS}"),
        (TAGGING, marked([0, 4, "PER"]), "key 'tags', entity 1, must lie in its text of 3 characters: got 0 to 4"),
        (TAGGING, marked([1, 1, "PER"]), "key 'tags', entity 1, must lie in its text of 3 characters: got 1 to 1"),
        (TAGGING, marked([1, 2, "PER"]), "key 'tags', entity 1, has no word: characters 1 to 2 are blank"),
        (TAGGING, marked([0, 3, "X"], [2, 3, "Y"]), f"key 'tags', entity 2, {SHARED}"),
        (TAGGING, {"tokens": ["a", None], "tags": ["O", "O"]}, "key 'tokens', item 2, must hold a string, not null"),
        (TAGGING, {"tokens": ["a", ""], "tags": ["O", "O"]}, "key 'tokens', item 2, is empty"),
        (TAGGING, {"tokens": ["a", "\0"], "tags": ["O", "O"]}, "key 'tokens', item 2, holds a NUL character"),
        (REGRESSION, {"text": "a", "score": None}, "key 'score' must hold a number, not null"),
        (REGRESSION, {"text": "a", "score": "3"}, "key 'score' must hold a number, not a string"),
        (REGRESSION, {"text": "a", "score": True}, "key 'score' must hold a number, not true or false"),
        (REGRESSION, {"text": "a"}, "key 'score' is not in the record; its keys are 'text'"),
        (SEVERAL, {"text": "a", "label": "x"}, "key 'label' must hold a list of strings, not a string"),
        (SEVERAL, {"text": "a", "label": ["x", "x"]}, "key 'label' has the label 'x' twice"),
        (LABELLED, {"text": "a", "label": ["x", "y"]}, f"key 'label' must hold a string, not a list; {SEVERAL_NEED}"),
        (ASKED, asked({"text": ["Paulo"], "answer_start": [15]}), NOT_AT.format("'Paulo'", 15, "' Paul'", 16)),
        (ASKED, asked([{"text": "", "answer_start": 0}]), BLANK),
        (ASKED, asked([{"text": "Ana", "answer_start": -36}]), NOT_AT.format("'Ana'", -36, "''", 0)),
        (ASKED, asked({"text": [], "answer_start": [0]}), "key 'answers' has 0 texts and 1 values of `answer_start`"),
        (ASKED, asked(["Ana"]), "key 'answers' must hold answers with `text` and `answer_start`: got a string"),
        (ASKED, asked([{"text": "Ana", "answer_start": "0"}]), f"key 'answers': {START}, not a string"),
    ):
        says += " (`data.skip_bad: true` or --skip-bad leaves it out)" if fields is ASKED else ""
        fails(DataError, rf"^a\.jsonl:1: {re.escape(says)}$", in_file, tmp_path, "a.jsonl", lines(record), fields)
        if len(record) == len([field for field in fields if not field.optional]):
            fails(DataError, rf"^data\[0\]: {re.escape(says)}$", records_in_memory, [record], fields, "data")


def test_a_bad_row_of_a_table_is_one_sentence_with_its_line_or_left_out(tmp_path) -> None:
    for fields, row, says in (
        (REGRESSION, "a\tx", "`score` must hold a number: got 'x'"),
        (REGRESSION, "a\t", "`score` must hold a number: got ''"),
        (REGRESSION, "a\t1_0", "`score` must hold a number: got '1_0'"),
        (REGRESSION, "a\tnan", "`score` must hold a finite number: got nan"),
        (REGRESSION, "a\t-inf", "`score` must hold a finite number: got -inf"),
        (TAGGING, "a b\tO", "2 words and 1 tag; each word needs one tag"),
        (SEVERAL, "a\tx||y", "`label` has an empty label between its separators"),
        (SEVERAL, "a\tx|x", "`label` has the label 'x' twice"),
    ):
        columns: dict[str, Any] = {field.name: n for n, field in enumerate(f for f in fields if not f.optional)}
        good = {REGRESSION: "a\t1\n", TAGGING: "a\tO\n", SEVERAL: "a\tx\n"}[tuple(fields)]
        said = rf"^a\.tsv:2: {re.escape(says)}$"
        fails(DataError, said, in_file, tmp_path, "a.tsv", f"{good}{row}\n", fields, **columns)
        records = in_file(tmp_path, "a.tsv", f"{good}{row}\n{good}", fields, skip_bad=True, **columns)
        assert len(records) == 2 and records.skipped == [f"a.tsv:2: {says}"] and records.where(1) == "a.tsv:3"


def test_names_are_whole_numbers_and_texts_in_an_order_and_no_letters() -> None:
    """pandas makes 1.0 of 1 where a value is missing; scikit-learn takes both for one label."""
    assert [label_name(value) for value in (1.0, np.float64(0.0), 1, "1")] == ["1", "0", "1", "1"]
    assert [label_name(value) for value in (0.5, float("nan"), float("inf"), None)] == [None] * 4
    names = [class_name(label) for label in ("1.00", "0.0", "1.5", "1.0.0", "v1.0", "-2.0", "007", "yes ")]
    assert names == ["1", "0", "1.5", "1.0.0", "v1.0", "-2", "007", "yes"]
    assert accuracy([1.0, 0.0, 1.0], [1, 0, 0]).value == pytest.approx(2 / 3)
    for texts in ({"a", "b"}, frozenset({"a"}), {"a": 1}):
        fails(UsageError, "give a text or a list of texts", listed, texts)
    assert listed(("a", "b")) == ["a", "b"]
    # where lists of texts, of words or of tags are wanted, a string would be read letter by letter
    tokenizer = train_tokenizer(TokenizerConfig(kind="word", vocab_size=20), ["o gato", "g"])
    for call in (tokenizer.encode_batch, tokenizer.encode_words, BulkEncoder(tokenizer).encode):
        fails(TokenizerError, r"a list of (texts|words) is needed: got one string", call, "gato")
    with pytest.raises(TokenizerError, match="so are markers: got a single string"):
        train_tokenizer(TokenizerConfig(kind="word"), ["o gato"], markers="[A]")
    fails(UsageError, "give a list of texts: got the text 'ab'", check_texts, "ab")
    fails(UsageError, "strings, or lists of them", bleu, ["a", "b"], [["a", "b"], "ab"])
    assert target_ids(tokenizer, "gato") == target_ids(tokenizer, ["gato"])
    for X, y in (("ab", ["O", "O"]), (["ab"], [["O", "O"]]), ([["a", "b"]], ["OO"])):
        fails(TypeError, "and not a text", Tagger().fit, X, y)


def test_tags_that_are_numbers_or_alike_are_said(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"tokens": ["Ana", "vive"], "tags": [1, 0]}\n' * 2, encoding="utf-8")
    source = SourceConfig(file="a.jsonl", tokens="tokens", tags="tags")
    records = read_records(source, TASKS["tagging"].fields, tmp_path)
    assert records["tags"][0] == ("1", "0")
    said = "a.jsonl: its tags are numbers, and are plain tags; entities need their names, such as B-PER"
    assert records.warnings() == [said]
    for task, rows in (
        ("tagging", [(("a", "b"), ("Noun", "noun")), (("c", "d"), ("X", "noun"))]),
        ("multi-label-classification", [("a", ("yes",)), ("b", ("Yes", "x"))]),
    ):
        recipe = load_recipe({"task": task, "data": {"train": {"memory": "train"}}}, environment={}, memory=["train"])
        said: list[str] = []
        read_data(recipe.recipe, tmp_path, said.append, {"train": rows})
        assert any("are two labels here; write one form if they mean the same" in one for one in said), said
