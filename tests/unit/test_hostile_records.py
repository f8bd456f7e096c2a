"""The same hostile records through every reader and every consumer of files: they keep the same, or refuse alike."""

import io
import json
import re
import unicodedata
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from atento.base.errors import AtentoError, DataError, RecipeError
from atento.config.recipe import SourceConfig
from atento.config.tables.formats import FORMATS
from atento.config.tables.task_spec import Field
from atento.config.tables.tasks import TASKS
from atento.data.files.source_lines import iter_lines, read_lines, scan_many
from atento.data.files.source_records import header_hint
from atento.data.files.text_sources import texts_of
from atento.data.records.labelled_data import source_of
from atento.data.records.reader import read_records, records_in_memory
from atento.evaluation import _refuse_unknown_labels
from atento.metrics import METRICS
from atento.tasks.score_files import read_items
from failing import fails

TEXT, PAIR = (Field("text"),), (Field("source"), Field("target"))
LABELLED, TAGGED = TASKS["classification"].fields, TASKS["tagging"].fields
LINES = ["um gato", "não sei", "o fim"]


def _many(path: Path) -> list[str]:
    lines: list[str] = []
    with path.open("rb") as stream:
        for part in scan_many(stream, path.name):
            if isinstance(part, DataError):
                raise part
            lines += part
    return lines


def _of_table(path: Path, ending: str) -> list[str]:
    table = path.with_suffix(ending)
    table.write_bytes(path.read_bytes())
    return read_records(SourceConfig(file=table.name, text=0), TEXT, path.parent)["text"]


# Each reads the lines of a file of texts; the commands of lines, `score`, training, and what a tokenizer learns from.
READERS_OF_LINES: dict[str, Callable[[Path], list[str]]] = {
    "a file of a command": read_lines,
    "standard input": lambda path: list(iter_lines(io.BytesIO(path.read_bytes()), path.name)),
    "a file in blocks": _many,
    "score": lambda path: read_items(str(path), "texts").values,
    "training": lambda path: read_records(SourceConfig(file=path.name), TEXT, path.parent)["text"],
    "tokenizing": lambda path: list(texts_of(SourceConfig(file=path.name), path.parent)),
    "a parallel file": lambda p: read_records(SourceConfig(source=p.name, target=p.name), PAIR, p.parent)["source"],
    "a table of tabs": lambda path: _of_table(path, ".tsv"),
    "a table of commas": lambda path: _of_table(path, ".csv"),
}

# How a file may spell the lines: its bytes, and the refusal of every reader; None: the lines are read.
_ENCODED = [line.encode() for line in LINES]
SPELLINGS: dict[str, tuple[bytes, str | None]] = {
    "newlines": (b"\n".join([*_ENCODED, b""]), None),
    "no last newline": (b"\n".join(_ENCODED), None),
    "carriage returns and newlines": (b"\r\n".join([*_ENCODED, b""]), None),
    "a byte order mark": (b"\xef\xbb\xbf" + b"\n".join([*_ENCODED, b""]), None),
    "carriage returns alone": (b"\r".join([*_ENCODED, b""]), "carriage returns alone"),
    "no last carriage return": (b"\r".join(_ENCODED), "carriage returns alone"),
    "carriage returns, then a newline": (b"\r".join(_ENCODED) + b"\n", "carriage returns alone"),
    "UTF-16 without a mark": ("\n".join(LINES).encode("utf-16le"), "UTF-16"),
    "damaged UTF-8": (b"\n".join(_ENCODED) + b" \xe9\n", "not UTF-8"),
    "a NUL": (b"a\0b\n", "a NUL character"),
    "gzip": (b"\x1f\x8b\x08\x00", "gzip"),
    "Parquet": (b"PAR1\x00", r"`dataset: "),
}


@pytest.mark.parametrize("spelling", SPELLINGS)
@pytest.mark.parametrize("reader", READERS_OF_LINES)
def test_lines_are_the_same_to_every_reader(reader: str, spelling: str, tmp_path: Path) -> None:
    content, refusal = SPELLINGS[spelling]
    path = tmp_path / "lines.txt"
    path.write_bytes(content)
    if refusal is None:
        assert READERS_OF_LINES[reader](path) == LINES
    else:
        fails(DataError, rf"^({re.escape(str(tmp_path))}/)?lines\..*{refusal}", READERS_OF_LINES[reader], path)


@pytest.mark.parametrize("encoding", ["utf-16", "latin-1", "windows-1252", "utf-8-sig"])
@pytest.mark.parametrize("reader", [n for n in READERS_OF_LINES if n not in ("standard input", "a file in blocks")])
def test_an_encoding_is_found_by_every_reader_of_files(reader: str, encoding: str, tmp_path: Path) -> None:
    """Standard input and blocks of a corpus are read once, from their first byte on."""
    path = tmp_path / "lines.txt"
    path.write_bytes("\n".join(LINES).encode(encoding))
    with warnings.catch_warnings(record=True, action="always") as caught:
        assert READERS_OF_LINES[reader](path) == LINES
    said = {str(one.message).rpartition("lines")[2] for one in caught}
    assert said == set() if encoding == "utf-8-sig" else len(said) == 1 and "as found in the file" in said.pop()


NAMES = ["não", "sim", "1", "True"]
SPELLED = {  # ways to write each of `NAMES`, and of which a table of cells has strings alone
    "NFC": ["não", "sim", "1", "True"],
    "NFD": [unicodedata.normalize("NFD", name) for name in NAMES],
    "white space": [" não", "sim ", " 1 ", "True\u00a0"],
    "values": ["não", "sim", 1, True],
    "decimals": ["não", "sim", 1.0, "True"],
}


def _write(folder: Path, name: str, lines: list[str]) -> str:
    (folder / name).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return name


NAMED, TAGS_NAMED = {"text": "text", "label": "label"}, {"tokens": "tokens", "tags": "tags"}
FILES_OF_LABELS: dict[str, tuple[str, Callable[[list[Any]], list[str]], dict[str, Any]]] = {  # name, lines, columns
    "TSV": ("a.tsv", lambda labels: [f"t\t{label}" for label in labels], {"text": 0, "label": 1}),
    "CSV": ("a.csv", lambda labels: ["text,label", *(f'"t","{label}"' for label in labels)], NAMED),
    "JSONL": ("a.jsonl", lambda labels: [json.dumps({"text": "t", "label": label}) for label in labels], NAMED),
    "JSON": ("a.json", lambda labels: [json.dumps([{"text": "t", "label": label} for label in labels])], NAMED),
    "tags in columns": ("t.conll", lambda tags: [f"t\t{str(tag).strip()}" for tag in tags], {}),
    "tags in JSONL": ("t.jsonl", lambda tags: [json.dumps({"tokens": ["t"] * len(tags), "tags": tags})], TAGS_NAMED),
}


def _of_file(kind: str, folder: Path, labels: list[Any]) -> list[Any]:
    name, lines, columns = FILES_OF_LABELS[kind]
    source = SourceConfig(file=_write(folder, name, lines(labels)), **columns)
    if "tags" in kind:
        return list(read_records(source, TAGGED, folder)["tags"][0])
    return read_records(source, LABELLED, folder)["label"]


def _scored(folder: Path, labels: list[Any]) -> list[Any]:
    file = folder / _write(folder, "p.txt", [str(label) for label in labels])
    return _in_metrics(folder, read_items(str(file), "classes").values)


def _in_metrics(folder: Path, labels: list[Any]) -> list[Any]:
    scores = [METRICS["accuracy"].score([label], [name]).value for label, name in zip(labels, NAMES)]
    return [name if score == 1 else None for name, score in zip(NAMES, scores)]


READERS_OF_LABELS: dict[str, Callable[[Path, list[Any]], list[Any]]] = {
    **{kind: partial(_of_file, kind) for kind in FILES_OF_LABELS},
    "memory": lambda _, labels: records_in_memory([("t", label) for label in labels], LABELLED, "data")["label"],
    "score": _scored,
    "metrics": _in_metrics,
}


@pytest.mark.parametrize("spelling", SPELLED)
@pytest.mark.parametrize("reader", READERS_OF_LABELS)
def test_labels_that_look_the_same_are_one_to_every_reader(reader: str, spelling: str, tmp_path: Path) -> None:
    assert READERS_OF_LABELS[reader](tmp_path, list(SPELLED[spelling])) == NAMES


def test_sets_of_labels_have_the_same_names_in_cells_and_in_lists(tmp_path: Path) -> None:
    nfd = unicodedata.normalize("NFD", "não")
    fields = TASKS["multi-label-classification"].fields
    name = next(field.name for field in fields if field.kind == "classes")
    cells = _write(tmp_path, "a.tsv", [f"t\t {nfd} |1"])
    lists = _write(tmp_path, "a.jsonl", [json.dumps({"text": "t", name: [f"{nfd} ", 1]})])
    for source in ({"file": cells, "text": 0, name: 1}, {"file": lists, "text": "text", name: name}):
        assert read_records(SourceConfig(**source), fields, tmp_path)[name] == [("não", "1")]  # type: ignore[arg-type]


TAGS = ["B-PER", "I-PER", "O", "B-LOC"]
SPELLINGS_OF_TAGS: dict[str, tuple[list[str], list[str]]] = {  # as written, as read
    "IOB2": (TAGS, TAGS),
    "underscores": (["B_PER", "I_PER", "O", "B_LOC"], TAGS),
    "small prefixes": (["b-PER", "i-PER", "o", "b-LOC"], TAGS),
    "types stay as they are": (["b-per", "i-per", "O", "b-loc"], ["B-per", "I-per", "O", "B-loc"]),
    "BMES": (["B-PER", "M-PER", "E-PER", "S-LOC"], ["B-PER", "I-PER", "E-PER", "S-LOC"]),
    "BMEWO": (["B-PER", "M-PER", "E-PER", "W-LOC"], ["B-PER", "I-PER", "E-PER", "S-LOC"]),
    "BIOES": (["B-PER", "I-PER", "E-PER", "S-LOC"], ["B-PER", "I-PER", "E-PER", "S-LOC"]),
    "parts of speech": (["NOUN", "B_X", "M-x", "O"], ["NOUN", "B_X", "M-x", "O"]),
}


@pytest.mark.parametrize("spelling", SPELLINGS_OF_TAGS)
def test_tags_are_spelled_alike_in_training_and_in_score(spelling: str, tmp_path: Path) -> None:
    written, read = SPELLINGS_OF_TAGS[spelling]
    file = _write(tmp_path, "t.conll", [f"w {tag}" for tag in written])
    records = read_records(SourceConfig(file=file), TAGGED, tmp_path)
    assert list(records["tags"][0]) == read
    assert len([line for line in records.warnings() if "are read as" in line]) == (written != read)
    of_columns = read_items(str(tmp_path / file), "tags").values
    of_lines = read_items(str(tmp_path / _write(tmp_path, "t.txt", [" ".join(written)])), "tags").values
    assert [list(tags) for tags in (*of_columns, *of_lines)] == [read, read]


def test_a_tag_that_makes_all_tags_plain_is_named(tmp_path: Path) -> None:
    file = _write(tmp_path, "t.conll", ["Ana B-PER", "mora O", "", "em O", "Faro LOC", "", "Rui B-PER"])
    (note,) = read_records(SourceConfig(file=file), TAGGED, tmp_path).warnings()
    assert "1 tag is not of entities, so all tags are plain tags and no entities" in note
    assert "the first is 'LOC' of word 2 of the sentence at t.conll:4" in note
    file = _write(tmp_path, "zero.conll", ["Ana B-PER", "mora 0", "", "em 0", "a 0", "", "Rui B-PER"])  # 0 for O
    (note,) = read_records(SourceConfig(file=file), TAGGED, tmp_path).warnings()
    assert "3 tags are not of entities" in note and "the first is '0' of word 2" in note
    file = _write(tmp_path, "kinds.conll", ["Ana NOUN", "mora VERB", "", "em ADP", "a DET", "", "B B-NOUN"])
    assert read_records(SourceConfig(file=file), TAGGED, tmp_path).warnings() == []


def test_quotes_of_a_table_of_tabs_are_said_and_the_way_out_reads_them(tmp_path: Path) -> None:
    """As pandas writes them: it quotes cells that have quotes, tabs or newlines."""
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"text": ['He said "no"', "plain", "a\tb"], "label": ["x", "y", "x"]})
    frame[:2].to_csv(tmp_path / "a.tsv", sep="\t", index=False)
    columns: dict[str, Any] = {"text": "text", "label": "label"}
    (note,) = read_records(SourceConfig(file="a.tsv", **columns), LABELLED, tmp_path).warnings()
    way_out = r'`format: csv, delimiter: "\t"` in the source'
    assert "1 record quoted as in CSV, whose quotes are read as letters" in note and way_out in note
    assert "the first is a.tsv:2" in note
    frame.to_csv(tmp_path / "b.tsv", sep="\t", index=False)
    said = f"^b.tsv:4: 3 columns, and line 1 has 2; {re.escape(way_out)} reads cells that are quoted as in CSV$"
    fails(DataError, said, read_records, SourceConfig(file="b.tsv", **columns), LABELLED, tmp_path)
    read = read_records(SourceConfig(file="b.tsv", format="csv", delimiter="\t", **columns), LABELLED, tmp_path)
    assert read["text"] == frame["text"].to_list() and read.warnings() == []
    plain = _write(tmp_path, "c.tsv", ['"Sim", disse ela.\tx', '"Uma frase inteira."\ty', "a\tx"])
    assert read_records(SourceConfig(file=plain, text=0, label=1), LABELLED, tmp_path).warnings() == []


@pytest.mark.parametrize("task", [name for name, spec in TASKS.items() if spec.outputs is not None])
@pytest.mark.parametrize("ending", [".parquet", ".arrow"])
def test_a_file_of_the_library_datasets_is_given_as_one(task: str, ending: str, tmp_path: Path) -> None:
    """Where the ending says no format, the message does; else the content of a Parquet file does."""
    (tmp_path / f"x{ending}").write_bytes(b"PAR1 or Arrow")
    assert source_of(f"x{ending}", task).dataset == f"x{ending}"  # of `atento evaluate`
    if not {"words", "tags"} <= {field.kind for field in TASKS[task].fields}:
        said, source = rf"`dataset: x\{ending}` in place of `file` reads it", SourceConfig(file=f"x{ending}")
        fails(RecipeError, said, read_records, source, TASKS[task].fields, tmp_path)


def test_a_header_read_as_a_record_is_hinted_at_by_training_and_evaluation(tmp_path: Path) -> None:
    hint = "if line 1 is a header, give the columns by its names (in the source of a recipe, or by --columns)"
    file = _write(tmp_path, "a.tsv", ["Gatos\tCores", "um\tsim", "dois\tnao"])
    records = read_records(SourceConfig(file=file, text=0, label=1), LABELLED, tmp_path)
    said = "a.tsv:1: unknown label 'Cores', the first of 2 such records; the model's labels are {}; " + hint
    named = re.escape(said.format("'nem', 'nunca', 'não', 'sim', 'talvez'"))  # in order, which a set has not
    known = {"sim", "não", "nunca", "talvez", "nem"}
    fails(DataError, f"^{named}$", _refuse_unknown_labels, records, "classification", known)
    _refuse_unknown_labels(records, "classification", {"sim", "nao", "Cores"})
    assert header_hint("a.jsonl:1") == header_hint("data['train']:1") == header_hint("a.tsv:2") == ""
    numbers = _write(tmp_path, "n.tsv", ["Gatos\tPeso", "um\t1", "dois\tx"])
    with pytest.raises(AtentoError, match=rf"n.tsv:1: `score` must hold a number: got 'Peso'; {re.escape(hint)}"):
        read_records(SourceConfig(file=numbers, text=0, score=1), TASKS["regression"].fields, tmp_path)


def test_every_format_is_among_the_readers_here() -> None:
    """A new format needs a reader above, or a line here that says why not."""
    elsewhere = dict.fromkeys(("conllu", "assin"), "test_published_formats")
    elsewhere |= dict.fromkeys(("xlsx", "folders"), "test_own_tables")
    elsewhere |= dict.fromkeys(("tmx", "xliff", "po"), "test_translation_memories")
    assert FORMATS.keys() == {"tsv", "csv", "jsonl", "json", "conll", "text"} | elsewhere.keys()
    assert all((Path(__file__).parent / f"{test}.py").exists() for test in elsewhere.values())
