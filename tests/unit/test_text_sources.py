"""Texts out of files and the micro-world: every kind, folders, documents, hard-wrapped lines as paragraphs."""

import gzip
import json
import textwrap
from pathlib import Path

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from atento.base.errors import DataError, RecipeError
from atento.config.reading.loading import load_recipe
from atento.config.recipe import SourceConfig
from atento.data.files.paragraphs import paragraphs
from atento.data.files.several_files import source_files
from atento.data.files.text_sources import texts_of
from atento.data.records.reader import TEXT, read_records
from atento.data.records.splits import overlap
from atento.runs.prepare import read_data
from atento_world import write
from failing import fails

WRAPPED = "Primeira linha da obra, que é bem com-\nprida e segue aqui.\n\nOutra.\nUm comprida livro.\n\n\nFim"


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    (tmp_path / "deep" / "er").mkdir(parents=True)
    (tmp_path / "book.txt").write_text(WRAPPED, encoding="utf-8")
    (tmp_path / "deep" / "a.txt.gz").write_bytes(gzip.compress(b"um\ndois\n"))
    (tmp_path / "deep" / "b.jsonl").write_text('{"body": "x"}\n{"body": " "}\n{"body": "y"}\n')
    (tmp_path / "deep" / "er" / "c.txt.zst").write_bytes(zstandard.compress("três\n".encode()) * 3)
    return tmp_path


def test_they_are_the_texts_of_read_records_of_files_documents_folders_and_patterns(corpus: Path) -> None:
    for keys in (
        {"file": "book.txt"},
        {"file": "book.txt", "paragraphs": True},
        {"file": "book.txt", "documents": "blank-lines"},
        {"file": "book.txt", "documents": "file", "prefix": "pt: "},
        {"file": "book.txt", "count": 2},
        {"file": "deep/a.txt.gz"},
        {"file": "deep/b.jsonl", "text": "body"},
        {"file": "deep/er/c.txt.zst"},
        {"world": "valid", "text": "en", "count": 20},
    ):
        source = SourceConfig(**keys)
        assert list(texts_of(source, corpus)) == read_records(source, TEXT, corpus)["text"]
    lines = SourceConfig(file="book.txt", documents="blank-lines")
    first = "Primeira linha da obra, que é bem com-\nprida e segue aqui."
    assert list(texts_of(lines, corpus)) == [first, "Outra.\nUm comprida livro.", "Fim"]
    assert list(texts_of(SourceConfig(file="book.txt", documents="file"), corpus)) == [WRAPPED]
    assert read_records(lines, TEXT, corpus).origins.where(1) == "book.txt:4"
    with pytest.raises(RecipeError, match="has `documents: file`, which is for text files without `paragraphs`"):
        source = {"file": "book.txt", "paragraphs": True, "documents": "file"}
        load_recipe({"task": "language-modeling", "data": {"train": source}})
    texts = SourceConfig(file="deep")
    assert source_files(texts, corpus) == ["deep/a.txt.gz", "deep/er/c.txt.zst"]
    assert list(texts_of(texts, corpus)) == ["um", "dois", "três", "três", "três"]
    assert source_files(SourceConfig(file="**/*.txt*"), corpus) == ["book.txt", "deep/a.txt.gz", "deep/er/c.txt.zst"]
    assert list(texts_of(SourceConfig(file=str(corpus / "deep" / "*.jsonl"), text="body"), Path("/"))) == ["x", "y"]
    fails(DataError, r"none\*: no file matches", source_files, SourceConfig(file="none*"), corpus)
    (corpus / "empty").mkdir()
    with pytest.raises(DataError, match=r"empty: the folder holds no file that ends in \.txt"):
        source_files(SourceConfig(file="empty"), corpus)
    loaded = load_recipe({"task": "language-modeling", "data": {"train": "deep", "folder": str(corpus)}})
    train = read_data(loaded.recipe, loaded.folder, lambda line: None).train
    assert train["text"] == ["um", "dois", "três", "três", "três"] and train.where(3) == "deep/er/c.txt.zst:2"


def test_bad_records_are_raised_or_passed_on(corpus: Path) -> None:
    (corpus / "bad.jsonl").write_text('{"text": "a"}\n{"text": 1}\n{"text": "b"}\n')
    source = SourceConfig(file="bad.jsonl", text="text")
    fails(DataError, r"bad.jsonl:2", list, texts_of(source, corpus))
    errors: list[DataError] = []
    assert list(texts_of(source, corpus, errors.append)) == ["a", "b"] and len(errors) == 1
    packed = zstandard.compress(b"o gato pulou alto\n" * 5000)
    for name, content, said in (
        ("cut.txt.zst", packed[:-3], "cut.txt.zst: the Zstandard data is cut short"),
        ("bad.txt.zst", packed[:6] + b"\xff" * 20, "bad.txt.zst: the Zstandard data is damaged"),
        ("named.txt.zst", b"text\n", "named .zst but is not compressed by Zstandard"),
        ("unnamed.txt", packed, "is compressed by Zstandard; name it .zst"),
    ):
        (corpus / name).write_bytes(content)
        fails(DataError, said, list, texts_of(SourceConfig(file=name), corpus))


LINES = ["o gato pulou", "", "a menina lê", "   ", "já é tarde"]
KEPT = ["o gato pulou", "a menina lê", "já é tarde"]


def test_every_kind_of_file_and_the_micro_world_give_the_same_texts_and_bad_lines_are_counted(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("\n".join(LINES) + "\n", encoding="utf-8")
    (tmp_path / "a").write_text("\n".join(LINES) + "\n", encoding="utf-8")
    (tmp_path / "a.tsv").write_text("".join(f"x\t{text}\n" for text in LINES), encoding="utf-8")
    (tmp_path / "a.csv").write_text("n,text\n" + "".join(f'1,"{text}"\n' for text in LINES), encoding="utf-8")
    (tmp_path / "a.jsonl").write_text("".join(json.dumps({"text": t}) + "\n" for t in LINES), encoding="utf-8")
    (tmp_path / "a.json").write_text(json.dumps([{"text": t} for t in LINES]), encoding="utf-8")
    (tmp_path / "a.txt.gz").write_bytes(gzip.compress((tmp_path / "a.txt").read_bytes()))
    columns = dict.fromkeys(("a.txt", "a", "a.txt.gz")) | {"a.tsv": 1}
    columns |= dict.fromkeys(("a.csv", "a.jsonl", "a.json"), "text")
    fingerprints = set()
    for name, column in columns.items():
        found = read_records(SourceConfig(file=name, text=column), TEXT, tmp_path)
        assert found["text"] == KEPT and found.empty == 2 and len(found) == 3, name
        fingerprints.add(found.fingerprint)
    assert len(fingerprints) == 1
    assert read_records(SourceConfig(file="a.txt"), TEXT, tmp_path).where(1) == "a.txt:3"
    assert read_records(SourceConfig(file="a.csv", text="text"), TEXT, tmp_path).where(1) == "a.csv:4"
    assert read_records(SourceConfig(file="a.txt", count=2), TEXT, tmp_path)["text"] == KEPT[:2]
    (tmp_path / "b.txt").write_bytes(b"bom\n\xff\xfe ruim\nfim\n")
    fails(DataError, r"b\.txt:2", read_records, SourceConfig(file="b.txt"), TEXT, tmp_path)
    found = read_records(SourceConfig(file="b.txt"), TEXT, tmp_path, skip_bad=True)
    assert found["text"] == ["bom", "fim"]
    assert found.warnings()[0].startswith("b.txt: 1 bad record left out, first b.txt:2")
    for content in ("", "\n  \n"):
        (tmp_path / "c.txt").write_text(content, encoding="utf-8")
        fails(DataError, r"c\.txt: holds no text", read_records, SourceConfig(file="c.txt"), TEXT, tmp_path)
    pairs = write("valid", 20, 1)
    for text, side in ((None, "target"), ("en", "source")):
        texts = read_records(SourceConfig(world="valid", count=20, text=text), TEXT, tmp_path)["text"]
        assert texts == [getattr(pair, side) for pair in pairs]
    for name, lines in (("t.txt", ["um", "dois"]), ("v.txt", ["dois", "três", "dois"])):
        (tmp_path / name).write_text("\n".join(lines), encoding="utf-8")
    train, valid = (read_records(SourceConfig(file=name), TEXT, tmp_path) for name in ("t.txt", "v.txt"))
    assert overlap([train], valid) == 2


BOOK = """CAPÍTULO PRIMEIRO
Aqui está o que contava, há muitos anos, um velho cônego da Capela
Imperial:
— Não desejo ao meu maior inimigo o que me aconteceu no mês de abril
de 1839. Tinha-me dado na cabeça escrever uma obra política, a história
do reinado. Fim.

   Depois disso, o velho cônego da Capela Imperial calou-se, e eu com
   ele, à espera do que viria.
"""
JOINED = [
    (1, "CAPÍTULO PRIMEIRO"),
    (2, "Aqui está o que contava, há muitos anos, um velho cônego da Capela Imperial:"),
    (
        4,
        "— Não desejo ao meu maior inimigo o que me aconteceu no mês de abril de 1839. Tinha-me dado na cabeça "
        "escrever uma obra política, a história do reinado. Fim.",
    ),
    (8, "Depois disso, o velho cônego da Capela Imperial calou-se, e eu com ele, à espera do que viria."),
]


def joined(text: str) -> list[tuple[int, str]]:
    found = paragraphs(lambda: enumerate(text.split("\n"), start=1))
    return [line for line in found if not isinstance(line, DataError)]


def test_a_blank_line_or_room_ends_a_paragraph_and_broken_words_are_joined() -> None:
    assert joined(BOOK) == JOINED and joined("") == [] and joined("\n \n\t\n") == []
    assert joined("one line") == [(1, "one line")]
    for ending, following, wanted in (
        ("um bom exem-", "plo de um exemplo, que se lê inteiro", "um bom exemplo de um exemplo"),
        ("e então disse-", "me que viria amanhã sem falta, disse", "e então disse-me que viria"),
        ("o guarda-", "chuva e outro guarda-chuva que era preto", "o guarda-chuva e outro"),
        ("a viagem Rio-", "São Paulo, que é longa e cansa muito", "a viagem Rio-São Paulo"),
        ("pala\u00advra quebra\u00ad", "da com um hífen que não se vê no texto", "palavra quebrada com"),
        ("isto é um travessão -", "e segue a frase que vai até o fim dela", "um travessão - e segue"),
        ("um intervalo de 10-", "20 metros que se mede com toda a calma", "de 10- 20 metros"),
    ):
        if "\u00ad" in ending:
            wanted = wanted.replace("palavra", "pala\u00advra")
        [(_, text)] = joined(f"{'palavras que enchem a linha ' + ending}\n{following}")
        assert wanted in text


@given(st.integers(1, 400), st.integers(50, 90), st.booleans())
def test_wrapped_text_comes_back_as_it_was(seed: int, width: int, blank: bool) -> None:
    texts = [pair.target for pair in write("train", 60, seed)]
    whole = [" ".join(texts[at : at + 6]) for at in range(0, 60, 6)]
    lines = [textwrap.fill(text, width, break_on_hyphens=False) for text in whole]
    found = [text for _, text in joined(("\n\n" if blank else "\n").join(lines))]
    assert " ".join(found) == " ".join(whole)  # nothing is lost
    if blank:
        assert set(found) >= {text for text in whole if text in found} and len(found) >= len(whole)
        assert sum(text in found for text in whole) >= 6


def test_a_hard_wrapped_file_that_is_read_by_lines_is_told_of_and_recipes_read_paragraphs(tmp_path: Path) -> None:
    texts = [pair.target for pair in write("train", 1200)]
    whole = [" ".join(texts[at : at + 6]) for at in range(0, 1200, 6)]
    (tmp_path / "book.txt").write_text("\n\n".join(textwrap.fill(text, 40) for text in whole), encoding="utf-8")
    [said] = read_records(SourceConfig(file="book.txt"), TEXT, tmp_path).warnings()
    assert said.startswith("book.txt: its lines seem to be broken inside sentences") and "`paragraphs: true`" in said
    assert read_records(SourceConfig(file="book.txt", paragraphs=True), TEXT, tmp_path).warnings() == []
    (tmp_path / "lines.txt").write_text("\n".join(texts), encoding="utf-8")  # a sentence a line
    (tmp_path / "words.txt").write_text("um gato\numa casa\n" * 100, encoding="utf-8")  # too few to tell
    for name in ("lines.txt", "words.txt"):
        assert read_records(SourceConfig(file=name), TEXT, tmp_path).warnings() == []
    (tmp_path / "book.txt").write_text(BOOK, encoding="utf-8")
    found = read_records(SourceConfig(file="book.txt", paragraphs=True), TEXT, tmp_path)
    assert found["text"] == [text for _, text in JOINED] and found.where(3) == "book.txt:8"
    assert len(read_records(SourceConfig(file="book.txt"), TEXT, tmp_path)) == 8
    two = read_records(SourceConfig(file="book.txt", paragraphs=True, count=2), TEXT, tmp_path)
    assert two["text"] == found["text"][:2]
    (tmp_path / "bad.txt").write_bytes(b"um dois tres quatro cinco\nseis \xff\nsete oito nove dez onze\n")
    with pytest.raises(DataError, match=r"bad\.txt:2: not UTF-8"):
        read_records(SourceConfig(file="bad.txt", paragraphs=True), TEXT, tmp_path)
    skipped = read_records(SourceConfig(file="bad.txt", paragraphs=True), TEXT, tmp_path, skip_bad=True)
    assert skipped["text"] == ["um dois tres quatro cinco sete oito nove dez onze"] and len(skipped.skipped) == 1
    for source, said in {
        "{world: train, paragraphs: true}": "is the micro-world: `paragraphs` joins the lines of a text file",
        "{file: a.jsonl, text: t, paragraphs: true}": "is a file with columns: `paragraphs` joins",
    }.items():
        fails(RecipeError, said, load_recipe, "micro-world-lm", [f"data.train={source}"], environment={})
    with pytest.raises(RecipeError, match=r"has `paragraphs`, and line N of one side must correspond to line N"):
        load_recipe("multi30k-en-de", ["data.train.paragraphs=true"], environment={})
