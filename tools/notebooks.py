"""Makes notebooks/en and notebooks/pt-BR from the sources in notebooks/: `python tools/notebooks.py`.

A source is a Python file of cells (jupytext, `py:percent`). A cell of text names its language, as in
`# %% [markdown] lang="en"`; code belongs to both languages. Made notebooks have no outputs.
"""

from pathlib import Path

import jupytext
from nbformat import NotebookNode, writes

FOLDER = Path(__file__).parents[1] / "notebooks"
LANGUAGES = ("en", "pt-BR")
START = {  # stands below the title of every notebook
    "en": "**To run it**: on your machine, `make dev` in a clone of Atento and open this file with its `.venv`; on a "
    "free notebook machine (Colab, Kaggle), upload the wheel that `make dist` writes to `dist/` and run "
    "`%pip install atento-*.whl pandas` in a cell first, without a GPU. Nothing else is downloaded.\n\n"
    "*After the lecture notes of A. Carvalho and A. Soares and the course on attention models that `docs/notes.md` "
    "credits; the words here are our own.*",
    "pt-BR": "**Para executar**: no seu computador, rode `make dev` em um clone do Atento e abra este arquivo com o "
    "`.venv` dele; em uma máquina gratuita de notebooks (Colab, Kaggle), envie o wheel que `make dist` grava em "
    "`dist/` e rode antes `%pip install atento-*.whl pandas` em uma célula, sem GPU. Nada mais é baixado.\n\n"
    "*A partir das notas de aula de A. Carvalho e A. Soares e do curso sobre modelos de atenção que `docs/notes.md` "
    "credita; as palavras aqui são nossas.*",
}


def sources() -> list[Path]:
    """Return the sources, in the order of the lessons."""
    return sorted(FOLDER.glob("*.py"))


def made(source: Path, language: str) -> NotebookNode:
    """Return the notebook of a source in a language.

    Raises:
        ValueError: a cell of text names no known language.
    """
    book = jupytext.read(source, fmt="py:percent")
    for cell in book.cells:
        if cell.cell_type == "markdown" and cell.metadata.get("lang") not in LANGUAGES:
            raise ValueError(f"{source.name}: a cell of text needs lang= one of {LANGUAGES}: {cell.source[:40]!r}")
    book.cells = [cell for cell in book.cells if cell.metadata.get("lang", language) == language]
    book.cells[0].source += f"\n\n{START[language]}"
    for number, cell in enumerate(book.cells):
        cell.id, cell.metadata = f"cell-{number}", NotebookNode()
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    book.metadata = NotebookNode(kernelspec=NotebookNode(kernel), language_info=NotebookNode(name="python"))
    book.nbformat, book.nbformat_minor = 4, 5
    return book


def place(source: Path, language: str) -> Path:
    """Return the file of a made notebook."""
    return FOLDER / language / f"{source.stem}.ipynb"


if __name__ == "__main__":
    for language in LANGUAGES:
        (FOLDER / language).mkdir(exist_ok=True)
        for source in sources():
            place(source, language).write_text(writes(made(source, language)) + "\n", encoding="utf-8")
