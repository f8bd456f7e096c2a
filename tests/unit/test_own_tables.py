"""Tables as people have them: Excel's CSV of Brazil and Germany, workbooks, folders of labels, data frames."""

import io
import json
import re
import warnings
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any
from unicodedata import normalize

import numpy as np
import openpyxl
import pandas
import polars
import pytest

from atento.base.errors import DataError, MissingPartError, ReadingNotice, RecipeError, UsageError
from atento.config.recipe import SourceConfig
from atento.config.tables.formats import FORMATS
from atento.config.tables.tasks import TASKS
from atento.data.files.source_lines import recoded
from atento.data.files.text_sources import reading_options
from atento.data.records.memory import by_split, frame_texts
from atento.data.records.reader import read_records, records_in_memory
from atento.data.records.splits import Split
from atento.metrics import accuracy
from atento.metrics.label_counts import label_streams
from atento.runs.data_checks import without_difference
from atento.tasks.text_outputs import texts_and_pairs
from atento.tasks.verb_calls import listed
from atento.training.replica.joined import said_once
from atento_cli.corpus.corpus_statistics import columns_seen
from atento_cli.scale.columns import ParquetTexts
from failing import fails

REGRESSION = TASKS["regression"].fields
CLASSIFICATION = TASKS["classification"].fields
PAIRS = TASKS["translation"].fields
ROWS = [("O gato pulou; não caiu.", 9.5), ('Disse "olá"', -0.25), ("Ação", 3.0)]


def excel(rows: list[tuple[str, float]], delimiter: str = ";", decimal: str = ",") -> str:
    """What Excel writes: semicolons, a decimal comma, quotes where they are needed, CR LF."""
    lines = [f"text{delimiter}score"]
    for text, number in rows:
        cell = '"' + text.replace('"', '""') + '"' if delimiter in text or '"' in text else text
        lines.append(f"{cell}{delimiter}{str(number).replace('.', decimal)}")
    return "".join(f"{line}\r\n" for line in lines)


@pytest.mark.parametrize("encoding", ["windows-1252", "latin-1", "utf-16", "utf-16le", "utf-8-sig", "cp850"])
@pytest.mark.parametrize("delimiter", [";", "\t", "|", ":"])
@pytest.mark.parametrize("form", ["csv", "tsv"])
def test_a_table_is_what_the_source_says(tmp_path: Path, encoding: str, delimiter: str, form: str) -> None:
    rows = ROWS if form == "csv" else ROWS[2:]
    (tmp_path / "a.x").write_bytes(excel(rows, delimiter).encode(encoding))
    keys: dict[str, Any] = {"format": form, "delimiter": delimiter, "decimal": ",", "encoding": encoding}
    source = SourceConfig(file="a.x", text="text", score="score", **keys)
    records = read_records(source, REGRESSION, tmp_path)
    assert list(zip(records["text"], records["score"])) == rows
    assert columns_seen([source], tmp_path, REGRESSION)[0]["columns"] == ["text", "score"]


def test_pandas_reads_the_same_file_and_labels_of_one_cell_are_a_warning(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes(excel(ROWS).encode("windows-1252"))
    theirs = pandas.read_csv(tmp_path / "a.csv", sep=";", decimal=",", encoding="windows-1252")
    source = SourceConfig(file="a.csv", delimiter=";", decimal=",", encoding="windows-1252", text="text", score="score")
    ours = read_records(source, REGRESSION, tmp_path)
    assert ours["text"] == theirs["text"].to_list() and ours["score"] == theirs["score"].to_list()
    # pandas and spreadsheets join by commas: each combination would be a label of its own
    for labels in ([("a,b",), (), ("c",)], [("['a', 'b']",), ("['c']",)], [("a; b",)]):
        splits = {"train": Split({"label": labels}, ""), "test": None}
        said = list(without_difference("multi-label-classification", splits))
        assert len(said) == 1 and re.search(f"{re.escape(repr(labels[0][0]))} counts as one; `separator`", said[0])
    for right in ([("a", "b"), ("c, d",)], [("a",), ()], []):
        assert not list(without_difference("multi-label-classification", {"train": Split({"label": right}, "")}))


def test_what_a_file_leaves_open_is_named_and_not_guessed(tmp_path) -> None:
    for more, content, said in (
        ({"delimiter": ","}, excel(ROWS).encode(), '`delimiter: ";"` in a recipe\'s source'),
        ({"delimiter": ";"}, excel(ROWS).encode("cp850"), "`encoding: windows-1252` in a recipe's source"),
        ({"delimiter": ";"}, excel(ROWS).encode("windows-1252").replace(b"\xe3", b"\x93"), "`encoding: windows-1252`"),
        ({"decimal": ".", "encoding": "latin-1"}, excel(ROWS).encode("latin-1"), "`decimal: ','` reads"),
        ({"delimiter": ";", "decimal": ","}, excel(ROWS, decimal=".").encode(), "`decimal: '.'` reads"),
        ({"delimiter": ";", "encoding": "ascii"}, excel(ROWS).encode(), "a.csv:2: is not ascii"),
        ({"delimiter": ","}, excel(ROWS, "\t").encode(), '`delimiter: "\\t"` in a recipe\'s source'),
        ({}, b"text;score\na;1,5\nb;2.5\n", "`score` has decimal commas and decimal points ('1,5' in line 2 and"),
        ({}, b"text;score\na;1,250\nb;2,500\n", "a.csv:2: the comma of '1,250' may be a decimal one or stand between"),
    ):
        (tmp_path / "a.csv").write_bytes(content)
        source = SourceConfig(file="a.csv", text="text", score="score", **more)
        fails(DataError, re.escape(said), read_records, source, REGRESSION, tmp_path)


@pytest.mark.parametrize("encoding", ["windows-1252", "utf-16", "utf-8-sig", "utf-8"])
@pytest.mark.parametrize("delimiter", [";", "\t", "|", ","])
@pytest.mark.parametrize("form", ["csv", "tsv"])
@pytest.mark.parametrize("columns", [("text", "score"), (0, 1)])
def test_a_table_is_what_its_file_shows(tmp_path, encoding, delimiter, form, columns) -> None:
    """The same records as by keys that say all of it, and one line that says what was found."""
    rows = ROWS if form == "csv" and delimiter != "," else [("O gato pulou.", 9.0), ("Olá", -1.0), ("Ação", 3.0)]
    (tmp_path / f"a.{form}").write_bytes(excel(rows, delimiter).replace(",0\r", "\r").encode(encoding))
    source = SourceConfig(file=f"a.{form}", text=columns[0], score=columns[1])
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        records = read_records(source, REGRESSION, tmp_path)
    assert list(zip(records["text"], records["score"])) == rows
    expected = {
        "encoding": encoding if encoding in ("windows-1252", "utf-16") else None,
        "delimiter": delimiter if delimiter != {"csv": ",", "tsv": "\t"}[form] else None,
        "decimal": "," if rows is ROWS else None,
        "header": True if columns == (0, 1) else None,
    }
    said = [f"`{key}: {json.dumps(value)}`" for key, value in expected.items() if value is not None]
    line = f"a.{form}: read with {', '.join(said)}, as found in the file"
    assert [str(one.message) for one in caught] == [line] * bool(said)
    stated = replace(source, **{key: value for key, value in expected.items() if value is not None})
    assert read_records(stated, REGRESSION, tmp_path).fingerprint == records.fingerprint


@pytest.mark.parametrize("rank", [0, 1])
def test_one_process_of_a_machine_says_how_a_file_is_read(tmp_path, monkeypatch, rank) -> None:
    for name, value in (("RANK", rank), ("LOCAL_RANK", rank), ("WORLD_SIZE", 2)):
        monkeypatch.setenv(name, str(value))
    (tmp_path / "a.csv").write_text("text;score\na;1\n", encoding="utf-8")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with said_once():
            read_records(SourceConfig(file="a.csv", text="text", score="score"), REGRESSION, tmp_path)
    assert len(caught) == 1 - rank


def test_what_divides_a_table_in_two_ways_and_what_is_no_number_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("a;b|1\nc;d|2\n", encoding="utf-8")
    source = SourceConfig(file="a.csv", text=0, score=1)
    said = r"a\.csv: its columns may be separated by a semicolon \(2 columns\) or a bar \(2 columns\): `delimiter` says"
    fails(DataError, said, read_records, source, REGRESSION, tmp_path)
    assert read_records(replace(source, delimiter="|"), REGRESSION, tmp_path)["text"] == ["a;b", "c;d"]
    (tmp_path / "b.csv").write_text("bom;4,5\nmau;1,5\n", encoding="utf-8")  # commas stand in numbers alone
    assert read_records(SourceConfig(file="b.csv", text=0, score=1), REGRESSION, tmp_path)["score"] == [4.5, 1.5]
    (tmp_path / "c.csv").write_text("um; dois,1\ntrês; quatro,2\n", encoding="utf-8")  # the sign of the format fits
    assert read_records(SourceConfig(file="c.csv", text=0, score=1), REGRESSION, tmp_path)["score"] == [1.0, 2.0]
    for value in ("1.234,5", "9.5", "1_0", "nove", "1,2,3"):
        (tmp_path / "a.tsv").write_text(f"x\t{value}\n", encoding="utf-8")
        with pytest.raises(DataError, match="must hold a number"):
            read_records(SourceConfig(file="a.tsv", decimal=",", text=0, score=1), REGRESSION, tmp_path)
    # The first line that is not UTF-8 has no quotes or dashes of Windows, a later one has
    (tmp_path / "a.csv").write_bytes("avaliação,nota\n“bom” – 5 €,5\n".encode("windows-1252"))
    columns = {"file": "a.csv", "text": "avaliação", "score": "nota"}
    with pytest.warns(ReadingNotice, match="windows-1252"):
        assert read_records(SourceConfig(**columns), REGRESSION, tmp_path)["text"] == ["“bom” – 5 €"]


def test_another_code_page_is_not_taken_for_western(tmp_path: Path) -> None:
    for text, encoding in (
        *(("Příliš žluťoučký kůň úpěl ďábelské ódy", "cp1250"), ("Zażółć gęślą jaźń", "cp1250")),
        *(("árvíztűrő tükörfúrógép", "cp1250"), ("Привет, мир", "cp1251"), ("Καλημέρα κόσμε", "cp1253")),
        *(("şeker ağacı çiçek güzel", "cp1254"), ("não é difícil à noite; ótimo", "cp850")),
        *(("não é difícil à noite; ótimo", "mac_roman"), ("日本語のテキスト", "shift_jis"), ("中文文本测试", "gbk")),
        ("não", "utf-16le"),
    ):
        (tmp_path / "a.tsv").write_bytes(f"{text}\t1\n".encode(encoding))
        with pytest.raises(DataError, match=r"a\.tsv:1: (not UTF-8|a NUL)"):
            read_records(SourceConfig(file="a.tsv", text=0, score=1), REGRESSION, tmp_path)
        source = SourceConfig(file="a.tsv", text=0, score=1, encoding=encoding)
        assert read_records(source, REGRESSION, tmp_path)["text"] == [text]


def test_every_reader_of_text_files_knows_the_encoding(tmp_path: Path) -> None:
    for encoding in ("latin-1", "utf-16"):
        write = {
            "a.pt": "não\nsim\n",
            "a.en": "no\nyes\n",
            "a.txt": "não\n\nsim\n",
            "a.jsonl": '{"text": "não", "label": "é"}\n',
            "a.json": '[{"text": "não", "label": "é"}]',
            "a.conll": "não ADV\nsim ADV\n\n",
        }
        for name, text in write.items():
            (tmp_path / name).write_bytes(text.encode(encoding))
        pairs = read_records(SourceConfig(source="a.en", target="a.pt", encoding=encoding), PAIRS, tmp_path)
        assert pairs["target"] == ["não", "sim"]
        texts = TASKS["language-modeling"].fields
        for more in ({}, {"paragraphs": True}, {"documents": "blank-lines"}):
            source = SourceConfig(file="a.txt", encoding=encoding, **more)  # type: ignore[arg-type]
            assert read_records(source, texts, tmp_path)["text"] == ["não", "sim"]
        for name in ("a.jsonl", "a.json"):
            source = SourceConfig(file=name, encoding=encoding, text="text", label="label")
            assert read_records(source, CLASSIFICATION, tmp_path)["label"] == ["é"]
        words = read_records(SourceConfig(file="a.conll", encoding=encoding), TASKS["tagging"].fields, tmp_path)
        assert words["tokens"] == [("não", "sim")]


def test_keys_of_a_source_are_checked_and_change_reading_options_only_where_given() -> None:
    wrong = {"delimiter": ("", ";;", '"'), "encoding": ("latim", "rot13", "hex"), "decimal": (";",)}
    said = {"delimiter": "one character", "encoding": "name of an encoding", "decimal": "decimal"}
    for key, value in ((key, value) for key, values in wrong.items() for value in values):
        fails(RecipeError, said[key], SourceConfig, file="a.csv", **{key: value})
    # The store of token ids of an older version stays good
    assert {"delimiter", "encoding", "sheet"}.isdisjoint(reading_options(SourceConfig(file="a.csv")))
    assert reading_options(SourceConfig(file="a.csv", encoding="latin-1"))["encoding"] == "latin-1"


def workbook(path: Path, sheets: dict[str, list[list[Any]]]) -> None:
    book = openpyxl.Workbook()
    book.remove(book.active)
    for title, rows in sheets.items():
        sheet = book.create_sheet(title)
        for row in rows:
            sheet.append(row)
    book.save(path)


def test_a_workbook_is_read_as_pandas_reads_it_and_a_boolean_is_one_label(tmp_path: Path) -> None:
    rows = [["text", "score", "note"], *([text, number, None] for text, number in ROWS), [None, None, None], ["fim", 1]]
    workbook(tmp_path / "a.xlsx", {"dados": rows, "vazia": []})
    records = read_records(SourceConfig(file="a.xlsx", text="text", score="score"), REGRESSION, tmp_path)
    theirs = pandas.read_excel(tmp_path / "a.xlsx").dropna(subset=["text"])
    assert records["text"] == theirs["text"].to_list() and records["score"] == theirs["score"].to_list()
    assert records.where(3) == "a.xlsx:6"
    by_number = read_records(SourceConfig(file="a.xlsx", text=0, label=1), CLASSIFICATION, tmp_path)  # with the header
    assert by_number["label"] == ["score", "9.5", "-0.25", "3", "1"]
    # Python, JSON and pandas write True; a .csv of Excel has TRUE, one of polars true, whose letters stay
    values = [True, False, True]
    workbook(tmp_path / "a.xlsx", {"dados": [["text", "label"], *([f"t{n}", value] for n, value in enumerate(values))]})
    frame = pandas.DataFrame({"text": ["t0", "t1", "t2"], "label": values})
    frame.to_csv(tmp_path / "a.csv", index=False)
    frame.to_json(tmp_path / "a.jsonl", orient="records", lines=True)
    for name in ("a.xlsx", "a.csv", "a.jsonl"):
        records = read_records(SourceConfig(file=name, text="text", label="label"), CLASSIFICATION, tmp_path)
        assert records["label"] == ["True", "False", "True"], name
        for written in (str.upper, str.lower):
            assert accuracy(records["label"], [written(str(value)) for value in values]).value == 1.0
    assert label_streams(["true", "mostly"], ["true", "false"]) == (["true", "mostly"], [["true", "false"]])


def test_sheets_are_named_where_there_are_several_and_the_library_where_it_is_missing(tmp_path, monkeypatch) -> None:
    rows = [["text", "score"], ["a", 1]]
    workbook(tmp_path / "a.xlsx", {"um": rows, "dois": [*rows, ["b", 2]]})
    source = SourceConfig(file="a.xlsx", text="text", score="score")
    fails(DataError, "several sheets, 'um', 'dois': name one as `sheet`", read_records, source, REGRESSION, tmp_path)
    fails(DataError, "no sheet 'tres'", read_records, replace(source, sheet="tres"), REGRESSION, tmp_path)
    assert len(read_records(replace(source, sheet="dois"), REGRESSION, tmp_path)) == 2
    workbook(tmp_path / "a.xlsx", {"um": rows})
    monkeypatch.setitem(__import__("sys").modules, "openpyxl.reader.excel", None)
    fails(MissingPartError, r"\[data\]", read_records, source, REGRESSION, tmp_path)


def test_a_workbook_that_swells_or_is_none_is_refused(tmp_path: Path) -> None:
    workbook(tmp_path / "good.xlsx", {"um": [["text", "score"], ["a", 1]]})
    swollen = io.BytesIO()
    with zipfile.ZipFile(tmp_path / "good.xlsx") as old, zipfile.ZipFile(swollen, "w", zipfile.ZIP_DEFLATED) as new:
        for name in old.namelist():
            new.writestr(name, old.read(name) + (b" " * (64 << 20) if "sheet1" in name else b""))
    with zipfile.ZipFile(other := io.BytesIO(), "w") as archive:
        archive.writestr("a.txt", "no workbook")
    for content, said in (
        (swollen.getvalue(), "grows more than 200 times"),
        (b"text,score\n", "the workbook cannot be read: it is no .xlsx file; name a table of text .csv or .tsv"),
        (b"PK\x03\x04" + b"\0" * 50, "the workbook cannot be read"),
        (other.getvalue(), "the workbook cannot be read"),
    ):
        (tmp_path / "bad.xlsx").write_bytes(content)
        with pytest.raises(DataError, match=said):
            read_records(SourceConfig(file="bad.xlsx", text="text", score="score"), REGRESSION, tmp_path)


@pytest.fixture
def imdb(tmp_path: Path) -> Path:
    for label, names in {"pos": "13", "neg": "24", "unsup": "0"}.items():
        (tmp_path / "aclImdb/train" / label).mkdir(parents=True)
        for name in names:
            file = tmp_path / "aclImdb/train" / label / f"{name}_9.txt"
            file.write_text(f"{label} {name}\nmore\n", encoding="utf-8")
    (tmp_path / "aclImdb/train/urls_pos.txt").write_text("http://a\n", encoding="utf-8")
    return tmp_path


def test_folders_of_labels(imdb: Path) -> None:
    records = read_records(SourceConfig(file="aclImdb/train"), CLASSIFICATION, imdb)
    assert records["text"] == ["pos 1\nmore", "neg 2\nmore", "pos 3\nmore", "neg 4\nmore"]
    assert records["label"] == ["pos", "neg", "pos", "neg"]
    assert read_records(SourceConfig(file="aclImdb/train", count=2), CLASSIFICATION, imdb)["label"] == ["pos", "neg"]
    (imdb / "empty").mkdir()
    (imdb / "table").write_text("a\tb\n", encoding="utf-8")
    for name, said in (("empty", "no folder of text files"), ("table", "is a file"), ("gone", "no such folder")):
        fails(DataError, said, read_records, SourceConfig(file=name), CLASSIFICATION, imdb)
    (imdb / "aclImdb/train/pos/1_9.txt").write_bytes(b"n\xe3o \xff")
    with pytest.raises(DataError, match=r"aclImdb/train/pos/1_9\.txt:1: not UTF-8"):
        read_records(SourceConfig(file="aclImdb/train"), CLASSIFICATION, imdb)
    records = read_records(SourceConfig(file="aclImdb/train", encoding="latin-1"), CLASSIFICATION, imdb)
    assert records["text"][0] == "não ÿ"


FRAMES = [pandas.DataFrame, polars.DataFrame]
COLUMNS: dict[str, dict[str, list[Any]]] = {
    "translation": {"source": ["a", "b"], "target": ["A", "B"]},
    "classification": {"text": ["a", "b"], "label": ["x", "y"]},
    "multi-label-classification": {"text": ["a", "b"], "label": [["x"], ["x", "y"]]},
    "regression": {"text": ["a", "b"], "score": [1.5, 2.0]},
    "tagging": {"tokens": [["a"], ["b", "c"]], "tags": [["O"], ["B-X", "O"]]},
    "language-modeling": {"text": ["a", "b"]},
}


@pytest.mark.parametrize("frame", FRAMES)
@pytest.mark.parametrize("task", COLUMNS)
def test_a_data_frame_is_its_columns(frame: Any, task: str) -> None:
    if task not in TASKS:
        pytest.skip(f"no task {task}")
    fields = TASKS[task].fields
    data = frame(COLUMNS[task] | {"other": [1, 2]})
    expected = records_in_memory(COLUMNS[task], fields, "data")
    found = records_in_memory(data, fields, "data")
    assert found.fingerprint == expected.fingerprint and list(found.columns) == list(expected.columns)
    assert by_split(data)["train"] is data and by_split({"valid": data})["valid"] is data


def test_missing_values_columns_and_texts_of_a_data_frame_and_an_array() -> None:
    for frame in FRAMES:
        records = records_in_memory(frame({"text": ["a", None], "label": ["x", "y"]}), CLASSIFICATION, "data")
        assert records["text"] == ["a"] and records.empty == 1
        with pytest.raises(DataError, match="has no column 'label'; the columns are 'text', 'sentiment'; rename one"):
            records_in_memory(frame({"text": ["a"], "sentiment": ["x"]}), CLASSIFICATION, "data")
        with pytest.raises(DataError, match="must hold a number"):
            records_in_memory(frame({"text": ["a", "b"], "score": [1.0, None]}), REGRESSION, "data")
        # Iterating a frame of pandas gives the names of its columns, which are no texts
        assert listed(frame({"text": ["a", "b"], "other": [1, 2]})) == ["a", "b"]
        assert listed(frame({"review": ["a", "b"]})) == ["a", "b"] == listed(frame({"review": ["a", "b"]})["review"])
        assert texts_and_pairs(frame({"text": ["a"], "pair": ["b"]})) == (["a"], ["b"])
        fails(UsageError, "no column 'text'", frame_texts, frame({"a": ["x"], "b": ["y"]}))
        fails(UsageError, "must be a str", listed, frame({"text": ["a", None]}))
    # An array of two columns is one of pairs; another shape is named, of one number or text too
    assert listed(np.array(["a", "b"])) == ["a", "b"] and listed(np.str_("a")) == ["a"]
    assert texts_and_pairs(np.array([["a", "b"], ["c", "d"]])) == (["a", "c"], ["b", "d"])
    for array, shape in ((np.array([["a"], ["b"]]), r"\(2, 1\); array\[:, 0\] has"), (np.array("a"), r"\(\)$")):
        fails(UsageError, f"a list of texts: got an array of the shape {shape}", texts_and_pairs, array)
    # As `pandas.concat` makes two columns with one name: which one is the label is not guessed
    data = pandas.DataFrame([["a", "x", "y"], ["b", "y", "x"]], columns=["text", "label", "label"])
    with pytest.raises(UsageError, match=r"the data frame has several columns 'label': rename or drop one"):
        records_in_memory(data, CLASSIFICATION, "data")


def test_a_column_is_found_however_its_accents_are_written_a_wrong_one_by_the_nearest(tmp_path) -> None:
    """A header from a Mac, a recipe from elsewhere: the names look the same."""
    for asked, written in (("NFC", "NFD"), ("NFD", "NFC")):
        key, name, sheet = normalize(asked, "opinião"), normalize(written, "opinião"), normalize(written, "avaliação")
        frame = pandas.DataFrame({name: ["a", "b"], "label": ["x", "y"]})
        frame.to_csv(tmp_path / "a.csv", index=False)
        frame.to_csv(tmp_path / "a.tsv", index=False, sep="\t")
        frame.to_json(tmp_path / "a.jsonl", orient="records", lines=True, force_ascii=False)
        frame.to_json(tmp_path / "a.json", orient="records")
        frame.to_parquet(tmp_path / "a.parquet")
        workbook(tmp_path / "a.xlsx", {sheet: [[name, "label"], ["a", "x"], ["b", "y"]], "outra": [["z"]]})
        (tmp_path / "in.jsonl").write_text(f'{{"{name}": {{"{name}": "a"}}, "label": "x"}}\n', encoding="utf-8")
        more: dict[str, dict[str, Any]] = {"a.xlsx": {"sheet": normalize(asked, "avaliação")}}
        for file in ("a.csv", "a.tsv", "a.jsonl", "a.json", "a.xlsx"):
            source = SourceConfig(file=file, text=key, label="label", **more.get(file, {}))
            assert read_records(source, CLASSIFICATION, tmp_path)["text"] == ["a", "b"], file
        nested = SourceConfig(file="in.jsonl", text=f"{key}.{key}", label="label")
        assert read_records(nested, CLASSIFICATION, tmp_path)["text"] == ["a"]
        dataset = SourceConfig(dataset="a.parquet", text=key, label="label")
        assert read_records(dataset, CLASSIFICATION, tmp_path)["text"] == ["a", "b"]
        with (tmp_path / "a.parquet").open("rb") as stream:
            assert ParquetTexts(stream, "a.parquet", [key]).columns == [name]
        (tmp_path / f"{name}.tsv").touch()
        with pytest.raises(DataError, match=re.escape(f"did you mean {ascii(name)[:-1]}.tsv'?")):
            read_records(SourceConfig(file=f"{key}.tsv", text="text", label="label"), CLASSIFICATION, tmp_path)
        (tmp_path / f"{name}.tsv").unlink()
    for form in [name for name, form in FORMATS.items() if form.any_field]:
        names = ["Label", *(f"question {number} of a long survey of many words" for number in range(300))]
        if form == "xlsx":
            workbook(tmp_path / "a.xlsx", {"um": [names, names]})
        elif form in ("csv", "tsv"):
            text = {"csv": ",", "tsv": "\t"}[form].join(names) + "\n"
            (tmp_path / f"a.{form}").write_text(text * 2, encoding="utf-8")
        else:
            record = json.dumps(dict.fromkeys(names, "a"))
            (tmp_path / f"a.{form}").write_text(record if form == "jsonl" else f"[{record}]", encoding="utf-8")
        with pytest.raises(DataError) as error:
            read_records(SourceConfig(file=f"a.{form}", text=names[1], label="label"), CLASSIFICATION, tmp_path)
        assert "did you mean 'Label'?" in str(error.value) and "more" in str(error.value)
        assert len(str(error.value)) < 900


@pytest.mark.parametrize("before", [5, 1 << 16, (1 << 16) - 1, 200_001])
def test_a_byte_that_is_no_text_is_counted_from_the_beginning_of_the_file(before: int) -> None:
    """Files are decoded by parts of 64 kB; a character may begin in one part and be broken in the next."""
    for wrong, encoding in ((b"\x81", "cp1252"), (b"\xe9\xff", "shift_jis"), (b"\xe9\xff", "utf-8")):
        content = b"a\n" * (before // 2) + b"a" * (before % 2) + wrong
        said = rf"a\.csv:{before // 2 + 1}: is not .*: byte 0x(81|e9) at byte {before} of the file: \w"
        fails(DataError, said, recoded(io.BytesIO(content), "a.csv", encoding).read)
    fails(DataError, r"a\.csv:1: is not utf-16, .*BOM", recoded(io.BytesIO(b"a\nb\n"), "a.csv", "utf-16").read)
