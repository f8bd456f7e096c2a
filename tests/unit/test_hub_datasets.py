"""Data sets of the library `datasets`, from folders that the test writes: columns, splits, and every refusal."""

import sys
from pathlib import Path
from typing import Any

import pytest

from atento.base.errors import DataError, RecipeError
from atento.config.recipe import SourceConfig
from atento.config.tables.task_spec import Field
from atento.data.records.reader import Records, read_records, records_in_memory
from atento.data.records.values import Span
from failing import fails

CLASSES = (Field("text"), Field("pair", optional=True), Field("label", "class"))
TAGGING = (Field("tokens", "words"), Field("tags", "tags"))
ANSWERING = (Field("question"), Field("context"), Field("answers", "spans"))
PAIRS = (Field("source"), Field("target"))


def test_without_the_library_the_extra_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(RecipeError, match=r"`dataset` needs the library datasets: pip install -e '\.\[data\]'"):
        read_records(SourceConfig(dataset="folder"), CLASSES, tmp_path)


@pytest.fixture
def datasets(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    library = pytest.importorskip("datasets", reason="needs the extra data: datasets is missing")
    monkeypatch.setattr(library.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    return library


def read(folder: Path, fields: Any, *, skip_bad: bool = False, **keys: Any) -> Records:
    return read_records(SourceConfig(dataset="set", **keys), fields, folder, skip_bad=skip_bad)


def test_a_data_set_has_the_names_of_its_classes_in_memory_too(datasets: Any, tmp_path: Path) -> None:
    """Numbers would be labels 0 and 1 of a classifier, and plain tags instead of entities."""
    classes = datasets.ClassLabel(names=["bad", "good"])
    columns = {"text": ["a", "b", "c"], "label": [1, 0, -1], "id": [7, 8, 9]}
    features = datasets.Features({"text": datasets.Value("string"), "label": classes, "id": datasets.Value("int64")})
    data = datasets.Dataset.from_dict(columns, features=features)
    for given in (data, data.to_iterable_dataset(), data.with_format("numpy")):
        assert list(records_in_memory(given, CLASSES, "data", skip_bad=True)) == [("a", "good"), ("b", "bad")]
    fails(DataError, r"^data\[2\]: -1 is not .* there are 2, bad, good", records_in_memory, data, CLASSES, "data")
    fails(DataError, r"^data\[0\]: .*'label'", records_in_memory, data.remove_columns("label"), CLASSES, "data")
    tags = datasets.Sequence(datasets.ClassLabel(names=["O", "B-PER"]))
    tagged = datasets.Features({"tokens": datasets.Sequence(datasets.Value("string")), "tags": tags})
    named = datasets.Dataset.from_dict({"tokens": [["Ana", "runs"]], "tags": [[1, 0]]}, features=tagged)
    assert list(records_in_memory(named, TAGGING, "data")) == [(("Ana", "runs"), ("B-PER", "O"))]
    columns["label"] = [1, 0, 1]
    datasets.Dataset.from_dict(columns, features=features).save_to_disk(str(tmp_path / "set"))
    records = read(tmp_path, CLASSES)
    assert list(records) == [("a", "good"), ("b", "bad"), ("c", "good")]
    assert records.where(2) == "set:2" and records.warnings() == []
    assert read(tmp_path, CLASSES, label="id")["label"] == ["7", "8", "9"]
    assert len(read(tmp_path, CLASSES, count=2)) == 2
    hidden = datasets.Dataset.from_dict({"text": ["a"], "label": [-1], "id": [1]}, features=features)
    hidden.save_to_disk(str(tmp_path / "hidden"))
    with pytest.raises(DataError, match=r"^hidden:0: -1 is not the number of a class: there are 2, bad, good \.\.\.$"):
        read_records(SourceConfig(dataset="hidden"), CLASSES, tmp_path)
    with pytest.raises(DataError) as error:
        read(tmp_path, CLASSES, text="sentence")
    assert str(error.value) == "set: has no column 'sentence' for `text`; its columns are 'text', 'label', 'id'"
    fails(DataError, r"set: is one split, None, and `split` is 'train'", read, tmp_path, CLASSES, split="train")


def test_tags_of_class_labels_and_answers_of_two_lists(datasets: Any, tmp_path: Path) -> None:
    names = datasets.ClassLabel(names=["O", "B-PER"])
    words = datasets.Sequence(datasets.Value("string"))
    tagged = datasets.Features({"tokens": words, "ner_tags": datasets.Sequence(names)})
    train = {"tokens": [["Ana", "mora"], ["Rui"]], "ner_tags": [[1, 0], [1]]}
    test = {"tokens": [["Eva", "e"], ["x"]], "ner_tags": [[1], [1]]}
    both = {name: datasets.Dataset.from_dict(one, features=tagged) for name, one in (("train", train), ("test", test))}
    datasets.DatasetDict(both).save_to_disk(str(tmp_path / "set"))
    right = [(("Ana", "mora"), ("B-PER", "O")), (("Rui",), ("B-PER",))]
    assert list(read(tmp_path, TAGGING, tags="ner_tags", split="train")) == right
    with pytest.raises(DataError) as error:
        read(tmp_path, TAGGING, tags="ner_tags", split="test")
    assert str(error.value) == "set[test]:0: 2 words and 1 tag; each word needs one tag"
    assert len(read(tmp_path, TAGGING, tags="ner_tags", split="test", skip_bad=True)) == 1
    for name, said in {
        None: "has several splits: name one as `split`",
        "tset": r"has no split 'tset'; did you mean 'test'\?",
        "other": "set: has no split 'other'",
    }.items():
        said += "; its splits are 'train', 'test'"
        fails(DataError, said, read, tmp_path, TAGGING, tags="ner_tags", **({"split": name} if name else {}))


def test_parquet_files_sequences_of_objects_and_translations(datasets: Any, tmp_path: Path) -> None:
    (tmp_path / "set").mkdir()
    answers = [{"text": ["Ana"], "answer_start": [0]}, {"text": [], "answer_start": []}]
    rows = {"question": ["Quem?", "?"], "context": ["Ana mora aqui", "b"], "answers": answers}
    datasets.Dataset.from_dict(rows).to_parquet(str(tmp_path / "set" / "train-00000.parquet"))
    records = read(tmp_path, ANSWERING, split="train")
    assert list(records) == [("Quem?", "Ana mora aqui", (Span("Ana", 0),)), ("?", "b", ())]
    assert read(tmp_path, ANSWERING).fingerprint == records.fingerprint  # of the only split
    file = SourceConfig(dataset="set/train-00000.parquet")
    assert read_records(file, ANSWERING, tmp_path).fingerprint == records.fingerprint
    word = datasets.Value("string")
    answers = datasets.Sequence({"text": word, "answer_start": datasets.Value("int32")})
    features = datasets.Features({"question": word, "context": word, "answers": answers})
    rows = {"question": ["Quem?"], "context": ["Ana"], "answers": [{"text": ["Ana"], "answer_start": [0]}]}
    datasets.Dataset.from_dict(rows, features=features).save_to_disk(str(tmp_path / "set"))
    assert read(tmp_path, ANSWERING)["answers"] == [(Span("Ana", 0),)]
    both = {"translation": [{"en": "cat", "pt": "gato"}, {"en": "dog", "pt": None}]}
    datasets.Dataset.from_dict(both).save_to_disk(str(tmp_path / "pairs"))
    source = SourceConfig(dataset="pairs", source="translation.en", target="translation.pt")
    fails(DataError, r"pairs:1: key 'translation.pt' must hold a string", read_records, source, PAIRS, tmp_path)
    assert list(read_records(source, PAIRS, tmp_path, skip_bad=True)) == [("cat", "gato")]


def test_what_is_no_data_set_is_one_sentence(datasets: Any, tmp_path: Path) -> None:
    (tmp_path / "set").mkdir()
    fails(DataError, r"^set: the data set cannot be read: [^\n]+$", read, tmp_path, CLASSES)
    with pytest.raises(DataError, match=r"^\./none: no such folder \(looked for [^\n]+\)$"):
        read_records(SourceConfig(dataset="./none"), CLASSES, tmp_path)
    (tmp_path / "a.tsv").write_text("a\tb\n")
    with pytest.raises(DataError, match=r"^a\.tsv: is a file, and `dataset` is a folder, .*; give it as `file`$"):
        read_records(SourceConfig(dataset="a.tsv"), CLASSES, tmp_path)
    (tmp_path / "set" / "dataset_info.json").write_text("{")
    fails(DataError, r"^set: the data set cannot be read: [^\n]+$", read, tmp_path, CLASSES)
