"""The notebooks for a class: the made files are up to date, with outputs, and say the same in both languages."""

import json
import re
from pathlib import Path

import pytest
from nbformat import reads, v4, validate, writes
from tools import notebooks

from failing import fails

SOURCES = notebooks.sources()
MACHINE = re.compile(
    r"(?<![\w<])/(tmp|home|root|work|dev|usr|var|Users)/|\b[A-Z]:\\\\|0x[0-9a-f]{6}|<script|<iframe|\\u001b"
)


def test_every_source_has_both_notebooks_and_outputs_stay_while_the_code_is_the_same(tmp_path: Path) -> None:
    assert len(SOURCES) == 10
    for language in notebooks.LANGUAGES:
        assert {file.stem for file in (notebooks.FOLDER / language).iterdir()} == {file.stem for file in SOURCES}
    source = tmp_path / "lesson.py"
    source.write_text('# %% [markdown] lang="en"\n# # Title\n\n# %% [markdown]\n# text\n', encoding="utf-8")
    fails(ValueError, r"lesson.py: a cell of text needs lang=", notebooks.made, source, "en")
    source, file = tmp_path / "lesson.py", tmp_path / "lesson.ipynb"
    code = '# %% [markdown] lang="en"\n# # {title}\n\n# %%\nprint({number})\n\n# %% tags=["measured"]\n{number}\n'
    source.write_text(code.format(title="One", number=1), encoding="utf-8")
    outputs = [[v4.new_output("stream", text="1\n")], []]
    file.write_text(writes(notebooks.with_outputs(notebooks.made(source, "en"), outputs)), encoding="utf-8")
    source.write_text(code.format(title="Another title", number=1), encoding="utf-8")
    book = notebooks.made(source, "en")
    assert notebooks.outputs_in(file, book) == outputs
    source.write_text(code.format(title="One", number=2), encoding="utf-8")
    assert notebooks.outputs_in(file, notebooks.made(source, "en")) == []
    first, second = (cell for cell in book.cells if cell.cell_type == "code")
    first.outputs = [v4.new_output("stream", name="stderr", text="0.1 s\n"), *outputs[0]]
    second.outputs = outputs[0]
    assert [notebooks.kept(first), notebooks.kept(second)] == outputs


@pytest.mark.parametrize("source", SOURCES, ids=lambda source: source.stem)
def test_a_made_notebook_is_up_to_date_with_the_outputs_of_its_code_and_the_same_in_both_languages(source) -> None:
    """Small ones, which any reader of notebooks shows: no error, no script, nothing of the machine that ran them."""
    seen = []
    for language in notebooks.LANGUAGES:
        file, book = notebooks.place(source, language), notebooks.made(source, language)
        outputs, text = notebooks.outputs_in(file, book), file.read_text(encoding="utf-8")
        assert outputs, f"other code: python tools/notebooks.py --run {source.stem}"
        assert text == writes(notebooks.with_outputs(book, outputs)) + "\n", "run: python tools/notebooks.py"
        validate(reads(text, as_version=4))
        seen.append(outputs)
    assert seen[0] == seen[1]
    shown = [output for outputs in seen[0] for output in outputs]
    assert {output.output_type for output in shown} <= {"execute_result", "display_data", "stream"} and len(shown) > 3
    written = json.dumps(shown)
    assert any("image/svg+xml" in output.get("data", {}) or "<table" in str(output) for output in shown)
    assert len(written) < 150_000 and not MACHINE.search(written), MACHINE.search(written)
    code = (cell for cell in book.cells if cell.cell_type == "code")
    with_last_line = [cell for cell in code if "measured" not in cell.metadata.get("tags", ())]
    assert sum(bool(cell.outputs) for cell in with_last_line) > len(with_last_line) / 2
    # Cell for cell: the same kinds, the same code, as many headings and equations; a question and its solution
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
