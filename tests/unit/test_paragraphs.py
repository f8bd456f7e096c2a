"""Hard-wrapped lines joined into paragraphs: where one ends, broken words, and a whole book wrapped anew."""

import textwrap
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atento.base.errors import DataError, RecipeError
from atento.config.reading.loading import load_recipe
from atento.config.recipe import SourceConfig
from atento.data.files.paragraphs import paragraphs
from atento.data.records.reader import TEXT, read_records
from atento_world import write
from failing import fails

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
    """Paragraphs of many sentences, wrapped as `textwrap` does it, with blank lines between them or without."""
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
