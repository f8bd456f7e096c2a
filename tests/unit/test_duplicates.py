"""Repeated texts: near-duplicates against a comparison of all pairs, overlap of two files, the two commands."""

import json
import random
import unicodedata
from collections.abc import Iterable, Iterator
from contextlib import closing
from itertools import count, islice
from pathlib import Path

import pytest

from atento.base.errors import DataError, UsageError
from atento.config.tables.tasks import TASKS
from atento.data.records.reader import records_in_memory
from atento.data.records.splits import held_out
from atento.data.records.splits import overlap as repeated_records
from atento_cli.commands.duplicates import deduplicate, overlap
from atento_cli.commands.evaluate import columns_given, key_and_value
from atento_cli.commands.mine import _pairs
from atento_cli.corpus import find_duplicates as finding
from atento_cli.corpus.corpus_statistics import suspicious
from atento_cli.scale.columns import parser
from atento_world import write
from failing import fails


def corpus() -> list[str]:
    """Sentences of the micro-world joined in threes, and changed copies of some of them."""
    sentences = [pair.source for pair in write("train", 360)]
    texts = [" ".join(sentences[first : first + 3]) for first in range(0, 360, 3)]
    draw = random.Random(1)
    for text in draw.sample(texts, 30):
        words = text.split()
        words[draw.randrange(len(words))] = "changed"
        texts.insert(draw.randrange(len(texts)), " ".join(words))
    return texts


def jaccard(first: str, second: str, ngram: int) -> float:
    def grams(text: str) -> set[str]:
        words = "".join(c if c.isalnum() or c == "_" else " " for c in text.lower()).split()
        return {" ".join(words[i : i + ngram]) for i in range(max(1, len(words) - ngram + 1))}

    return len(grams(first) & grams(second)) / len(grams(first) | grams(second))


def duplicates(texts: Iterable[tuple[int, str]], threshold: float | None) -> Iterator[finding.Duplicate]:
    return (duplicate for duplicate in finding.marked(texts, threshold) if duplicate is not None)


def test_near_duplicates_are_those_that_a_comparison_of_all_pairs_finds() -> None:
    texts, threshold = corpus(), 0.6
    found = {duplicate.number: duplicate for duplicate in duplicates(enumerate(texts), threshold)}
    left: list[int] = []
    for number, text in enumerate(texts):
        similar = [(jaccard(text, texts[earlier], 3), earlier) for earlier in left]
        best = max((value for value, _ in similar), default=0.0)
        if best < threshold:
            left.append(number)
            assert number not in found, (text, found[number])
        else:
            assert found[number].similarity == pytest.approx(best)
            assert found[number].of in [earlier for value, earlier in similar if value == pytest.approx(best)]
    assert len(found) >= 15
    assert found == {duplicate.number: duplicate for duplicate in duplicates(enumerate(texts), threshold)}


def test_equal_texts_similar_ones_and_texts_that_training_has_seen() -> None:
    texts = ["a b c d", "A b c d", " a b c d ", "", "", "x", "x"]
    for threshold, near in ((None, []), (0.9, [(1, 0, False)])):
        found = [(one.number, one.of, one.equal) for one in duplicates(enumerate(texts), threshold)]
        assert found == [*near, (2, 0, True), (6, 5, True)]
    assert finding.shingles("O gato, pulou!", 2) == {("o", "gato"), ("gato", "pulou")}
    assert finding.shingles("gato", 3) == {("gato",)} and finding.shingles("...", 3) == frozenset()
    assert finding.similarity(finding.shingles("a b c", 1), finding.shingles("b c d", 1)) == 0.5
    assert finding.similarity(frozenset(), frozenset()) == 0
    train = [(1, "the cat sat on the mat today"), (2, "a dog barked")]
    test = [(1, "a dog barked"), (2, "the cat sat on the mat tonight"), (3, "nothing like it"), (4, "")]
    assert [(d.number, d.of, d.equal) for d in finding.shared(train, test, 0.5)] == [(1, 2, True), (2, 1, False)]
    texts = [text for _, text in test]
    assert finding.seen_ngrams((text for _, text in train), texts, 5) == [1]
    assert finding.seen_ngrams((text for _, text in train), texts, 3) == [0, 1]


def test_the_most_similar_training_text_is_named_whichever_file_is_in_memory() -> None:
    texts = corpus()
    train, test = list(enumerate(texts[::2])), list(enumerate(texts[1::2]))
    train[40] = (40, f" {texts[1]} ")
    index = {duplicate.number: duplicate for duplicate in finding.shared(train, test, 0.6)}
    for number, text in test:
        best, of = max((jaccard(text, other, 3), -other_number) for other_number, other in train)
        equal = [other_number for other_number, other in train if other.strip() == text]
        if equal:
            assert (index[number].of, index[number].equal) == (equal[0], True)
        elif best >= 0.6:
            assert index[number].similarity == pytest.approx(best) and index[number].of == -of
        else:
            assert number not in index
    assert len(index) >= 10 and any(duplicate.equal for duplicate in index.values())


def test_the_command_removes_lines_and_replaces_its_own_file(tmp_path: Path, capsys) -> None:
    endless = ((number, f"text {number % 3}") for number in count())
    assert [mark and mark.of for mark in islice(finding.marked(endless, None), 5)] == [None, None, None, 0, 1]
    source = tmp_path / "a.tsv"
    source.write_text("x\ty\nx\ty\nz\tw\n", encoding="utf-8")
    deduplicate(str(source), source)
    assert source.read_text(encoding="utf-8") == "x\ty\nz\tw\n"
    fails(DataError, "2 columns separated by a tab, and column 2", deduplicate, str(source), source, text="2")
    assert source.read_text(encoding="utf-8") == "x\ty\nz\tw\n" and list(tmp_path.iterdir()) == [source]
    capsys.readouterr()
    source, out = tmp_path / "a.txt", tmp_path / "b.txt"
    source.write_text("one two three four\nb\n\nb\none two three four!\n", encoding="utf-8")
    deduplicate(str(source), out, near=0.9, as_json=True)
    report = json.loads(capsys.readouterr().out)
    assert (report["lines"], report["equal"], report["near"], report["left"]) == (5, 1, 1, 3)
    assert report["first"][0] == {"line": 4, "of": 2, "similarity": 1.0}
    assert out.read_text(encoding="utf-8") == "one two three four\nb\n\n"
    deduplicate(str(source), out)
    assert "5 lines, 1 equal to an earlier one and 0 near-duplicates removed, 4 left" in capsys.readouterr().out


@pytest.mark.parametrize("columns", ["query=0,positive=2", "text=0,pair=2", "query=pergunta,positive=resposta"])
def test_pairs_and_texts_are_read_as_training_reads_them(columns: str, tmp_path: Path) -> None:
    """A .csv with semicolons, quoted cells with line ends and another encoding; keys inside objects of JSON."""
    header = "pergunta;n;resposta\n" if "pergunta" in columns else ""
    table, out = tmp_path / "a.csv", tmp_path / "out.csv"
    table.write_text(f'{header}quem?;1;"a; avó\nou não"\nonde?;2;"a; avó\nou não"\nquando?;3;hoje\n', "latin-1")
    reading = ["delimiter=;", "encoding=latin-1"]
    pairs = _pairs(str(table), columns_given(columns), dict(map(key_and_value, reading)))
    assert pairs == [("quem?", "a; avó\nou não"), ("onde?", "a; avó\nou não"), ("quando?", "hoje")]
    deduplicate(str(table), out, text="resposta" if header else "2", reading=reading)
    assert out.read_text(encoding="utf-8") == f'{header}quem?;1;"a; avó\nou não"\nquando?;3;hoje\n'
    begin, twice, end = 'n,mail\n1,"Dear,\nthanks\nAna"\n', '2,"Hello,\nthanks\nAna"\n', '3,"a\n'
    table.write_text(begin + twice + twice + end, "utf-8")
    deduplicate(str(table), out)  # whole records are compared, whose lines belong together
    assert out.read_text(encoding="utf-8") == begin + twice + end
    lines = tmp_path / "a.jsonl"
    lines.write_text("".join(f'{{"pair": {{"q": "{n}", "a": "same"}}}}\n' for n in range(2)), encoding="utf-8")
    assert _pairs(str(lines), {"query": "pair.q", "positive": "pair.a"}, {}) == [("0", "same"), ("1", "same")]
    deduplicate(str(lines), out, text="pair.a")
    assert out.read_text(encoding="utf-8").count("\n") == 1
    assert parser("a.jsonl", ["pair.a"])('{"pair": {"a": "x"}}', "a.jsonl:1") == "x"  # of --cluster --columns
    table.write_text("anchor,positive\nquem?,Ana\n", encoding="utf-8")  # as data sets of embeddings name them
    assert _pairs(str(table), None, {}) == [("quem?", "Ana")]
    fails(UsageError, r"no columns query and positive, nor .* and pair: got", _pairs, str(table), {"query": 0}, {})


def test_columns_are_compared_where_one_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table, lines = tmp_path / "a.tsv", tmp_path / "a.jsonl"
    table.write_text("1\tsame\n2\tsame\n", encoding="utf-8")
    lines.write_text('{"id": 1, "t": "same"}\n{"id": 2, "t": "same"}\n', encoding="utf-8")
    deduplicate(str(table), tmp_path / "out", text="1")
    assert (tmp_path / "out").read_text(encoding="utf-8") == "1\tsame\n"
    deduplicate(str(lines), tmp_path / "out", text="t")
    assert json.loads((tmp_path / "out").read_text(encoding="utf-8"))["id"] == 1
    for file, text, said in (
        (table, "7", r"a\.tsv:1: 2 columns separated by a tab, and column 7"),
        (lines, "x", r"a\.jsonl:1: has no text 'x': key 'x' is not in the record"),
        (table, "name", r"a\.tsv:1: column 'name' is not in the header"),
    ):
        fails(DataError, said, deduplicate, str(file), tmp_path / "out", text=text)
    fails(UsageError, r"--near must .* at most 1: got 1\.5", deduplicate, str(table), tmp_path / "out", near=1.5)
    overlap(str(table), str(lines), as_json=True)
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["equal"] == 0


def test_files_without_lines_are_read_as_by_other_commands(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A workbook, Parquet, a list of JSON, catalogues: the texts of the column are what is left."""
    openpyxl, pandas = pytest.importorskip("openpyxl"), pytest.importorskip("pandas")
    pytest.importorskip("pyarrow")
    rows = [{"id": number, "t": text} for number, text in enumerate(["one two", "x", "one two"])]
    (tmp_path / "a.json").write_text(json.dumps(rows), encoding="utf-8")
    pandas.DataFrame(rows).to_parquet(tmp_path / "a.parquet")
    fails(UsageError, "a.parquet: name its columns by --columns", _pairs, str(tmp_path / "a.parquet"), None, {})
    pytest.importorskip("datasets")
    assert _pairs(str(tmp_path / "a.parquet"), {"positive": "t", "query": "t"}, {})[1] == ("x", "x")
    book = openpyxl.Workbook()
    for row in (("id", "t"), *(tuple(row.values()) for row in rows)):
        book.active.append(row)
    book.save(tmp_path / "a.xlsx")
    messages = "".join(f'msgctxt "{row["id"]}"\nmsgid "{row["t"]}"\nmsgstr ""\n\n' for row in rows)
    (tmp_path / "a.po").write_text(messages, encoding="utf-8")
    (tmp_path / "test.txt").write_text("x\ny\n", encoding="utf-8")
    for name, column, first in (("a.json", "t", 1), ("a.parquet", "t", 1), ("a.xlsx", "t", 2), ("a.po", "en", 1)):
        deduplicate(str(tmp_path / name), tmp_path / "out", text=column, as_json=True)
        report = json.loads(capsys.readouterr().out)
        assert (report["equal"], report["left"], report["first"][0]["of"]) == (1, 2, first)
        assert (tmp_path / "out").read_text(encoding="utf-8") == "one two\nx\n"
        fails(UsageError, f"{name}: has no lines: .* --text", overlap, str(tmp_path / name), str(tmp_path / "test.txt"))
    for other, equal in (("a.parquet", 3), ("test.txt", 1)):  # a file that is no table has lines
        overlap(str(tmp_path / "a.xlsx"), str(tmp_path / other), text="t", as_json=True)
        assert json.loads(capsys.readouterr().out)["equal"] == equal
    with pytest.raises(UsageError, match="--text names a column of a table, and neither file is one: "):
        overlap(str(tmp_path / "test.txt"), str(tmp_path / "test.txt"), text="t")


def test_workers_compute_the_same_hashes_for_near_ones_alone(tmp_path: Path, capsys) -> None:
    """Blank texts, texts without words, and what is no UTF-8 included; the command writes the same file."""
    texts = [*corpus(), "", "...", "a \ud800 b", "a\0b c", "a b c"]
    alone = list(finding.marked(enumerate(texts), 0.6))
    with closing(finding.signing_processes(3, 2)) as workers:
        assert list(finding.marked(enumerate(texts), 0.6, 3, workers)) == alone
    assert sum(duplicate is not None for duplicate in alone) >= 15
    (tmp_path / "in.txt").write_text("".join(f"{text}\n" for text in corpus()), encoding="utf-8", newline="\n")
    reports = []
    for out, options in (("alone", {}), ("together", {"cluster": "local", "workers": 2})):
        deduplicate(str(tmp_path / "in.txt"), tmp_path / out, near=0.6, as_json=True, **options)
        reports.append(capsys.readouterr().out)
    assert reports[0] == reports[1] and json.loads(reports[0])["near"] >= 15
    assert (tmp_path / "alone").read_bytes() == (tmp_path / "together").read_bytes()
    (tmp_path / "in.txt").write_text("a\n", encoding="utf-8")
    for options, said in (
        ({"cluster": "local"}, "it needs --near"),
        ({"cluster": "here", "near": 0.8}, "must be local, ray or ray://HOST:PORT: got 'here'"),
        ({"workers": 2, "near": 0.8}, "number of workers of --cluster local"),
    ):
        fails(UsageError, said, deduplicate, str(tmp_path / "in.txt"), tmp_path / "out", **options)
    assert not (tmp_path / "out").exists()
    fails(UsageError, "standard input can be read once", overlap, "-", "-")


def test_texts_that_look_the_same_are_repeated_however_their_accents_are_written() -> None:
    """A letter and its accent in one code point or in two, as files of macOS and of PDF readers have them."""
    text = "a avaliação não é tão ótima assim, mas é um bom princípio de discussão"
    other = unicodedata.normalize("NFD", text)
    assert [(one.number, one.equal) for one in finding.marked([(1, text), (2, other)], None) if one] == [(2, True)]
    assert finding.shingles(other, 3) == finding.shingles(text, 3) and finding.seen_ngrams([text], [other], 13) == [0]
    assert [one.equal for one in finding.shared([(1, text)], [(1, other)], None)] == [True]
    records = records_in_memory([(text, "sim"), ("um", "sim")], TASKS["classification"].fields, "data")
    again = records_in_memory([(other, "sim")], TASKS["classification"].fields, "data")
    assert repeated_records([records], again) == 1 and suspicious([records, again])["repeated"]["count"] == 1
    train, valid = held_out({"text": [text, other] * 15 + ["um", "dois"]}, 3)
    assert not {30, 31}.intersection(valid) and train == [30, 31]  # none that equals a held-out one is trained on
