"""Records out of files and data sets: every kind, every rule of bad input, where each stands (contract "Bad input")."""

import csv
import gzip
import io
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from atento.base.errors import DataError, RecipeError
from atento.config.recipe import SourceConfig
from atento.config.tables.task_spec import Field
from atento.data.files.source_records import header_notes
from atento.data.records.reader import SOURCE_AND_TARGET, Records, read_records, records_in_memory
from atento.data.records.splits import overlap
from atento.data.records.values import Span
from atento_world import write
from failing import fails

EN = ["The cat sleeps.", "He jumps high.", "Good morning."]
PT = ["O gato dorme.", "Ele pula alto.", "Bom dia."]


def put(folder: Path, name: str, content: str | bytes) -> None:
    raw = content.encode("utf-8") if isinstance(content, str) else content
    (folder / name).write_bytes(gzip.compress(raw) if name.endswith(".gz") else raw)


def rows(separator: str, header: bool = False) -> str:
    lines = [("en", "pt")] if header else []
    return "".join(f"{one}{separator}{other}\n" for one, other in [*lines, *zip(EN, PT)])


KEYED = [{"en": one, "pt": other} for one, other in zip(EN, PT)]
KINDS = {
    "a.tsv": (rows("\t"), 0, 1),
    "named.tsv": (rows("\t", header=True), "en", "pt"),
    "a.csv": (rows(","), 0, 1),
    "quoted.csv": ("".join(f'"{one}","{other}"\r\n' for one, other in [("en", "pt"), *zip(EN, PT)]), "en", "pt"),
    "a.jsonl": ("".join(json.dumps(record) + "\n" for record in KEYED), "en", "pt"),
    "nested.jsonl": ("".join(json.dumps({"pair": record}) + "\n" for record in KEYED), "pair.en", "pair.pt"),
    "a.json": (json.dumps(KEYED, indent=2, ensure_ascii=False), "en", "pt"),
}


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("ending", ["", ".gz"])
def test_each_kind_holds_the_same_pairs(tmp_path: Path, name: str, ending: str) -> None:
    content, source, target = KINDS[name]
    put(tmp_path, name + ending, content)
    pairs = read_records(SourceConfig(file=name + ending, source=source, target=target), SOURCE_AND_TARGET, tmp_path)
    assert (pairs["source"], pairs["target"], len(pairs), pairs.empty, pairs.skipped) == (EN, PT, 3, 0, [])
    put(tmp_path, "x.en", "\n".join(EN))
    put(tmp_path, "x.pt.gz", "\r\n".join(PT) + "\r\n")
    parallel = read_records(SourceConfig(source="x.en", target="x.pt.gz"), SOURCE_AND_TARGET, tmp_path)
    assert parallel.fingerprint == pairs.fingerprint  # of the records, not of the file that holds them


def parallel(folder: Path, source: str | bytes, target: str | bytes, **options: bool) -> Records:
    put(folder, "a.en", source)
    put(folder, "a.pt", target)
    return read_records(SourceConfig(source="a.en", target="a.pt"), SOURCE_AND_TARGET, folder, **options)


def test_where_counts_lines_from_one_and_fingerprints_tell_order_content_and_sides_apart(tmp_path: Path) -> None:
    pairs = parallel(tmp_path, "a\n\nb\n \nc\n", "A\nx\nB\ny\nC\n")
    assert pairs["source"] == ["a", "b", "c"] and pairs["target"] == ["A", "B", "C"] and pairs.empty == 2
    assert pairs.where(1) == "a.en:3 / a.pt:3" and pairs.where(2) == "a.en:5 / a.pt:5"
    assert pairs.warnings() == ["a.en / a.pt: 2 pairs with an empty side left out"]
    put(tmp_path, "h.tsv", "en\tpt\na\tA\n\nb\tB\n")
    table = read_records(SourceConfig(file="h.tsv", source="en", target="pt"), SOURCE_AND_TARGET, tmp_path)
    assert [table.where(0), table.where(1)] == ["h.tsv:2", "h.tsv:4"] and table.empty == 1
    put(tmp_path, "r.json", '[\n {"en": "a",\n  "pt": "A"},\n {"en": "b", "pt": "B"}]')
    keyed = read_records(SourceConfig(file="r.json", source="en", target="pt"), SOURCE_AND_TARGET, tmp_path)
    assert keyed.where(1) == "r.json:4"
    sides = [("a\nb", "A\nB"), ("b\na", "B\nA"), ("a\nb", "A\nb"), ("A\nB", "a\nb"), ("aA\nb", "x\nB")]
    prints = [parallel(tmp_path, source, target).fingerprint for source, target in sides]
    assert len(set(prints)) == 5 and parallel(tmp_path, "a\r\nb\r\n", "\ufeffA\nB").fingerprint == prints[0]
    # The eight other separators split nothing
    line = "a\x0bb\x0cc\x1cd\x1de\x1ef\x85g\u2028h\u2029i\rj"
    assert parallel(tmp_path, line + "\n", line + "\r\n")["target"] == [line]


@given(st.lists(st.tuples(st.text(), st.text()), min_size=1, max_size=20))
def test_parallel_lines_equal_a_byte_reference(tmp_path_factory: pytest.TempPathFactory, texts: list) -> None:  # type: ignore[type-arg]
    """Reliability D2: rows as `bytes.split(b"\\n")` gives them, whatever other separators stand inside."""
    clean = [
        tuple(side.replace("\n", " ").replace("\0", "").strip("\r\ufeff") + "x" for side in pair) for pair in texts
    ]
    clean[0] = tuple(side.replace("\r", "") for side in clean[0])  # several in the first line would be line ends
    pairs = parallel(tmp_path_factory.mktemp("p"), *("".join(f"{pair[i]}\n" for pair in clean) for i in (0, 1)))
    assert list(pairs) == clean


def test_unequal_or_empty_files_and_sources_that_make_no_sense(tmp_path: Path) -> None:
    """Interfaces E0201: both counts and the first unpaired line; skipping bad records does not hide it."""
    for source, target, said in (
        ("a\nb\nc\n", "A\n", "a.en has 3 lines and a.pt has 1, .*a.en:2 has no partner"),
        ("a\n", "A\nB", "a.en has 1 lines and a.pt has 2, .*a.pt:2 has no partner"),
        ("a\n", "A\n\n", "a.en has 1 lines and a.pt has 2"),
        ("", "", "a.en / a.pt: holds no sentence pair$"),
        ("\n", "A\n", r"holds no sentence pair \(1 empty, 0 bad\)"),
    ):
        for skip_bad in (False, True):
            fails(DataError, said, parallel, tmp_path, source, target, skip_bad=skip_bad)
    for config, said in (
        (SourceConfig(), "needs `source` and `target` .* got source None and target None"),
        (SourceConfig(source="a.en"), "got source 'a.en' and target None"),
        (SourceConfig(source=0, target=1), "needs `source` and `target`"),
        (SourceConfig(file="a.xls", source=0, target=1), r"must end in one of \.tsv, \.csv, \.xlsx, \.jsonl, \.json"),
        (SourceConfig(file="a.tsv"), "needs `source` and `target`, the columns: got None and None"),
        (SourceConfig(file="a.tsv", source=0, target="pt"), "both columns must be numbers .* got 0 and 'pt'"),
        (SourceConfig(file="a.jsonl", source=0, target=1), "must be keys: got 0 and 1"),
        (SourceConfig(file="a.tsv", source=0, target=-1), "columns are counted from 0: got 0 and -1"),
    ):
        fails(RecipeError, said, read_records, config, SOURCE_AND_TARGET, tmp_path)


def test_bad_lines_leave_both_sides_out_together_and_are_counted(tmp_path: Path) -> None:
    source, target = b"a\nb\xff\nc\nd\n", b"A\nB\nC\0\nD\n"
    fails(DataError, r"a\.en:2: not UTF-8: byte 0xff at byte 3 of the file", parallel, tmp_path, source, target)
    pairs = parallel(tmp_path, source, target, skip_bad=True)
    assert pairs["source"] == ["a", "d"] and pairs["target"] == ["A", "D"] and pairs.where(1) == "a.en:4 / a.pt:4"
    assert [message.split(": ")[0] for message in pairs.skipped] == ["a.en:2", "a.pt:3"]
    assert pairs.warnings()[0].startswith("a.en / a.pt: 2 bad records left out, first a.en:2: not UTF-8")
    with pytest.raises(DataError, match=r"no sentence pair \(0 empty, 2 bad: a\.en:1: not UTF-8"):
        parallel(tmp_path, b"\xff\n\xff\n", "A\nB\n", skip_bad=True)
    put(tmp_path, "a.jsonl", '{"en": "a", "pt": "A"}\n{\n{"en": "b", "pt": 1}\n{"en": "c", "pt": "C"}\n')
    keyed = SourceConfig(file="a.jsonl", source="en", target="pt")
    pairs = read_records(keyed, SOURCE_AND_TARGET, tmp_path, skip_bad=True)
    assert pairs["source"] == ["a", "c"] and len(pairs.skipped) == 2 and pairs.where(1) == "a.jsonl:4"
    put(tmp_path, "a.csv", b'a,A\nb\n"c\n\xff","C"\nd,"D"\n')
    pairs = read_records(SourceConfig(file="a.csv", source=0, target=1), SOURCE_AND_TARGET, tmp_path, skip_bad=True)
    assert pairs["source"] == ["a", "d"]  # the record of lines 3 and 4 is one record, and one message
    assert len(pairs.skipped) == 2 and "a.csv:2" in pairs.skipped[0] and "a.csv:4: not UTF-8" in pairs.skipped[1]


def table(folder: Path, name: str, content: str | bytes, source: int | str = 0, target: int | str = 1) -> Records:
    put(folder, name, content)
    return read_records(SourceConfig(file=name, source=source, target=target), SOURCE_AND_TARGET, folder)


def test_broken_records_name_file_line_and_rule(tmp_path) -> None:
    for name, content, columns, said in (
        ("a.tsv", "a\tA\nb\n", (0, 1), r"a\.tsv:2: 1 column separated by a tab, and column 1 \(counted from 0\)"),
        ("a.tsv", "a,A\nb,B,C\n", (0, 1), "1 column separated by a tab"),
        ("a.tsv", "a\tA\nb\tB\tB2\n", (0, 1), r"a\.tsv:2: 3 columns, and line 1 has 2"),
        ("a.tsv", "en\tpt\na\tA\tx\n", ("en", "pt"), r"a\.tsv:2: 3 columns, and line 1 has 2"),
        ("a.tsv", "en\tpt\na\tA\n", ("en", "es"), r"a\.tsv:1: column 'es' is not in the header; .* 'en', 'pt'"),
        ("a.csv", "title,\nen,pt\na,A\n", ("en", "pt"), "are 'title', ''; line 2 is such a header: remove the lines"),
        ("a.csv", "title\n\nen,pt\na,A\n", ("en", "pt"), "line 3 is such a header: remove the lines above it"),
        ("a.tsv", "en\ten\na\tA\n", ("en", "en"), r"a\.tsv:1: column 'en' appears twice in the header: rename one of"),
        ("a.tsv", "", ("en", "pt"), "is empty, and its first line must name the columns 'en' and 'pt'"),
        ("a.tsv", b"e\xff\tpt\n", ("en", "pt"), r"a\.tsv:1: not UTF-8"),
        ("a.csv", "a;A\nb\n", (0, 1), "1 column separated by a comma"),
        ("a.csv", 'a,A\n"b,B\nc,C\n', (0, 1), r"a\.csv:2: the quote opened here is never closed .* ends at line 3"),
        ("a.csv", 'a 5" pipe,A\n', (0, 1), r"a\.csv:1: a quote inside a field"),
        ("a.csv", 'a;"b;c"\nd\n', (0, 1), r"a quote inside a field; .*; `delimiter: .;.` in a recipe"),
        ("a.csv", '"a";b\nd\n', (0, 1), r"a\.csv:1: ';' behind a quoted field; `delimiter: .;.`"),
        ("a.csv", "a;b\nc\n", (0, 1), r"column 1 \(counted from 0\) is requested; `delimiter: .;.` .* or `--reading"),
        ("a.csv", "a;b\nc\n", ("a", "b"), r"'a' is not in the header, 'a;b'; `delimiter: .;.` .* .delimiter=;.`"),
        ("a.csv", '"a"b,A\n', (0, 1), r"a\.csv:1: a quote inside a field"),
        ("a.csv", '"a\nb"c,A\n', (0, 1), r"a\.csv:1: a quote inside a field"),
        ("a.jsonl", '{"en": "a"}\n', ("en", "pt"), r"a\.jsonl:1: key 'pt' is not in the record; its keys are 'en'"),
        ("a.jsonl", "\n[1]\n", ("en", "pt"), r"a\.jsonl:2: each record must be an object, not a list"),
        ("a.jsonl", '{"en": 3, "pt": "A"}', ("en", "pt"), "key 'en' must hold a string, not a number"),
        ("a.jsonl", '{"en": null, "pt": "A"}', ("en", "pt"), "key 'en' must hold a string, not null"),
        ("a.jsonl", '{"en": true, "pt": "A"}', ("en", "pt"), "key 'en' must hold a string, not true or false"),
        ("a.jsonl", '{"en": "a", "en": "b", "pt": "A"}', ("en", "pt"), "key 'en' appears twice in one object"),
        ("a.jsonl", '{"en": "a", "pt": "A", "x": NaN}', ("en", "pt"), "NaN is not JSON"),
        ("a.jsonl", '{"en": "a", "pt": "A", "x": -Infinity}', ("en", "pt"), "-Infinity is not JSON"),
        ("a.jsonl", '{"en": "a", "pt": "A", "x": 1e999}', ("en", "pt"), "the number 1e999 is too large"),
        ("a.jsonl", '{"en": "a", "x": ' + "1" * 9999 + "}", ("en", "pt"), "a whole number of 9999 digits does not fit"),
        ("a.jsonl", '{"en": ' + "[" * 99999, ("en", "pt"), "the record is nested too deeply"),
        ("a.jsonl", '{"en": "a"', ("en", "pt"), r"a\.jsonl:1: not JSON: expecting ',' delimiter at character 11"),
        ("a.jsonl", '{"en": "a"} {}', ("en", "pt"), "more text after the record, at character 13"),
        ("a.jsonl", '{"en": "\\u0000", "pt": "A"}', ("en", "pt"), "key 'en' holds a NUL character"),
        ("a.jsonl", '{"en": "\\ud83d", "pt": "A"}', ("en", "pt"), "half of a surrogate pair"),
        ("a.json", '{"en": "a"}', ("en", "pt"), r"a\.json:1: a \.json file must hold a list of objects"),
        ("a.json", '[\n"a"]', ("en", "pt"), r"a\.json:2: each record must be an object, not a string"),
        ("a.json", '[{"en": "a",\n "pt": "A"}\n {}]', ("en", "pt"), r"a\.json:3: a comma or the end of the list is"),
        ("a.json", '[{"en": "a", "pt": "A"},]', ("en", "pt"), "a comma before the end of the list"),
        ("a.json", '[{"en": "a", "pt": "A"}] x', ("en", "pt"), "more text after the list"),
        ("a.json", '[{"en": "a",\n "pt": }]', ("en", "pt"), r"a\.json:2: not JSON: expecting value at character 8"),
        ("a.json", '[{"en": "a", "pt": "A"}, {"en": "b"}]', ("en", "pt"), r"a\.json:1: key 'pt' is not in"),
        ("a.json", b'[\n{"en": "\xff"}]', ("en", "pt"), r"a\.json:2: not UTF-8: byte 0xff at byte 10"),
        ("a.json", b'[\n{"en": "a\0"}]', ("en", "pt"), r"a\.json:2: a NUL character at byte 11"),
    ):
        fails(DataError, said, table, tmp_path, name, content, *columns)


def test_csv_follows_rfc_4180_tsv_has_no_quotes_count_stops_overlap_counts_and_the_micro_world_is_a_source(
    tmp_path: Path,
) -> None:
    content = '"She said ""no"", twice","Ela disse ""não"", duas vezes"\r\n"two\r\nlines",duas\nc,\n,d\nlast,"última"'
    pairs = table(tmp_path, "a.csv", content)
    assert pairs["source"] == ['She said "no", twice', "two\nlines", "last"] and pairs["target"][2] == "última"
    assert pairs.where(2) == "a.csv:6" and pairs.empty == 2
    pairs = table(tmp_path, "a.tsv", 'a "b\tA\n"c"\t"C\n')
    assert pairs["source"] == ['a "b', '"c"'] and pairs["target"] == ["A", '"C']
    put(tmp_path, "a.tsv", "a\tA\n\t\nb\tB\nbroken\n")
    pairs = read_records(SourceConfig(file="a.tsv", source=0, target=1, count=2), SOURCE_AND_TARGET, tmp_path)
    assert pairs["source"] == ["a", "b"]
    with pytest.raises(RecipeError, match="`count` must be at least 1: got 0"):
        read_records(SourceConfig(file="a.tsv", source=0, target=1, count=0), SOURCE_AND_TARGET, tmp_path)
    train = parallel(tmp_path, "a\nb\nc\nc\n", "A\nB\nC\nC\n")
    valid = parallel(tmp_path, "a\na\nb\nd\nc\n", "A\nA\nX\nD\nC\n")
    assert overlap([train], valid) == 3  # "a" twice and "c"; "b" has another translation there
    assert overlap([valid], parallel(tmp_path, "x\n", "X\n")) == 0
    pairs = read_records(SourceConfig(world="train", count=20, seed=3), SOURCE_AND_TARGET, tmp_path)
    again = read_records(SourceConfig(world="train", count=20, seed=3), SOURCE_AND_TARGET, tmp_path)
    assert len(pairs) == 20 and pairs.fingerprint == again.fingerprint
    assert pairs["source"] == [pair.source for pair in write("train", 20, 3)] and pairs.where(4) == "world train:5"


field = st.text(st.characters(blacklist_characters="\0\r", blacklist_categories=("Cs",)), max_size=8)


@given(st.lists(st.tuples(field, field), min_size=1, max_size=8))
@example([('"\n', "")])
def test_csv_equals_the_standard_library(tmp_path_factory: pytest.TempPathFactory, texts: list) -> None:  # type: ignore[type-arg]
    texts = [(one.lstrip("\ufeff") + ".", other + ".") for one, other in texts]
    out = io.StringIO(newline="")
    csv.writer(out).writerows(texts)
    assert list(table(tmp_path_factory.mktemp("c"), "a.csv", out.getvalue())) == texts


def test_reading_and_fetching_load_no_torch() -> None:
    code = "import sys, atento.data.records.reader, atento_cli.corpus.fetch, atento_cli.commands.score;"
    code += "print('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout == b"False\n"


def test_a_header_that_is_read_as_a_record_is_a_warning_of_every_use(tmp_path: Path) -> None:
    def told(first: tuple[str, str], *others: tuple[str, str]) -> list[str]:
        columns = dict(zip(("source", "target"), zip(first, *others)))
        return list(header_notes(columns, lambda row: f"pairs.tsv:{row + 1}"))

    sentence = ("The cat sleeps.", "O gato dorme.")
    (said,) = told(("English", "Portuguese"), sentence, sentence)
    assert said.startswith("'English' and 'Portuguese' of line 1 are read as a record; if line 1 is a header")
    assert told(("The cat", "O gato"), sentence) == [] == told(("cat", "gato"), ("dog", "cão")) == told(("cat", "gato"))
    # It is a note of the records, so training, `evaluate` and `data` have it; columns by name have read the header
    table = tmp_path / "pairs.tsv"
    table.write_text("Cats\tGatos\n" + "The cat sleeps.\tO gato dorme.\n" * 3, encoding="utf-8")
    records = read_records(SourceConfig(file="pairs.tsv", source=0, target=1), SOURCE_AND_TARGET, tmp_path)
    (warning,) = records.warnings()
    assert warning.startswith("pairs.tsv: 'Cats' and 'Gatos' of line 1 are read as a record")
    named = SourceConfig(file="pairs.tsv", source="Cats", target="Gatos")
    assert read_records(named, SOURCE_AND_TARGET, tmp_path).warnings() == []


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
    for form in (data, data.to_iterable_dataset(), data.with_format("numpy")):
        assert list(records_in_memory(form, CLASSES, "data", skip_bad=True)) == [("a", "good"), ("b", "bad")]
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
