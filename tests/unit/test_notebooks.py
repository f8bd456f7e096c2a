"""The notebooks for a class: the made files are up to date, and say the same in both languages."""

import re
from pathlib import Path

import pytest
from nbformat import reads, validate, writes
from tools import notebooks

SOURCES = notebooks.sources()


def test_every_source_has_both_notebooks_and_none_is_left_over() -> None:
    assert len(SOURCES) == 10
    for language in notebooks.LANGUAGES:
        assert {file.stem for file in (notebooks.FOLDER / language).iterdir()} == {file.stem for file in SOURCES}


@pytest.mark.parametrize("source", SOURCES, ids=lambda source: source.stem)
def test_a_made_notebook_is_up_to_date_and_has_no_outputs(source: Path) -> None:
    for language in notebooks.LANGUAGES:
        text = notebooks.place(source, language).read_text(encoding="utf-8")
        assert text == writes(notebooks.made(source, language)) + "\n", "run: python tools/notebooks.py"
        book = reads(text, as_version=4)
        validate(book)
        assert all(cell.outputs == [] and cell.execution_count is None for cell in book.cells if "outputs" in cell)


@pytest.mark.parametrize("source", SOURCES, ids=lambda source: source.stem)
def test_a_lesson_is_the_same_in_both_languages(source: Path) -> None:
    """Cell for cell: the same kinds, the same code, as many headings and equations; a question and its solution."""
    english, portuguese = (notebooks.made(source, language).cells for language in notebooks.LANGUAGES)
    assert 8 <= len(english) <= 16
    assert [cell.cell_type for cell in english] == [cell.cell_type for cell in portuguese]
    for one, other in zip(english, portuguese):
        if one.cell_type == "code":
            assert one.source == other.source
        else:
            for pattern in (r"^#+ ", r"\$\$"):
                assert len(re.findall(pattern, one.source, re.M)) == len(re.findall(pattern, other.source, re.M))
    for cells, question, solution in ((english, "Question", "Solution"), (portuguese, "Pergunta", "Solução")):
        text = "\n".join(cell.source for cell in cells if cell.cell_type == "markdown")
        assert "$$" in text and text.index(f"## {question}") < text.index(f"**{solution}.**")


def test_a_cell_of_text_without_a_language_is_refused(tmp_path: Path) -> None:
    source = tmp_path / "lesson.py"
    source.write_text('# %% [markdown] lang="en"\n# # Title\n\n# %% [markdown]\n# text\n', encoding="utf-8")
    with pytest.raises(ValueError, match=r"lesson.py: a cell of text needs lang="):
        notebooks.made(source, "en")
