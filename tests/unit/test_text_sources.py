"""The texts of a source one at a time: those of `read_records`, from folders, patterns and compressed files too."""

import gzip
from pathlib import Path

import pytest
import zstandard

from atento.base.errors import DataError, RecipeError
from atento.config.reading.loading import load_recipe
from atento.config.recipe import SourceConfig
from atento.data.files.several_files import source_files
from atento.data.files.text_sources import texts_of
from atento.data.records.reader import TEXT, read_records
from atento.runs.prepare import read_data
from failing import fails

BOOK = "Primeira linha da obra, que é bem com-\nprida e segue aqui.\n\nOutra.\nUm comprida livro.\n\n\nFim"


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    (tmp_path / "deep" / "er").mkdir(parents=True)
    (tmp_path / "book.txt").write_text(BOOK, encoding="utf-8")
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
    assert list(texts_of(SourceConfig(file="book.txt", documents="file"), corpus)) == [BOOK]
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
    (corpus / "cut.txt.zst").write_bytes(packed[:-3])
    with pytest.raises(DataError, match=r"cut.txt.zst: the Zstandard data is cut short"):
        list(texts_of(SourceConfig(file="cut.txt.zst"), corpus))
    (corpus / "bad.txt.zst").write_bytes(packed[:6] + b"\xff" * 20)
    with pytest.raises(DataError, match=r"bad.txt.zst: the Zstandard data is damaged"):
        list(texts_of(SourceConfig(file="bad.txt.zst"), corpus))
    (corpus / "named.txt.zst").write_bytes(b"text\n")
    with pytest.raises(DataError, match=r"named .zst but is not compressed by Zstandard"):
        list(texts_of(SourceConfig(file="named.txt.zst"), corpus))
    (corpus / "unnamed.txt").write_bytes(packed)
    with pytest.raises(DataError, match=r"is compressed by Zstandard; name it .zst"):
        list(texts_of(SourceConfig(file="unnamed.txt"), corpus))
