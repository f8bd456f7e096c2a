"""Makes notebooks/en and notebooks/pt-BR from the sources in notebooks/: `tools/notebooks.py [--run] [NAME ...]`.

A source is a Python file of cells (jupytext, `py:percent`). A cell of text names its language, as in
`# %% [markdown] lang="en"`; code belongs to both languages, and so do its outputs. `--run` runs the code of the named
lessons, or of all; otherwise the outputs stay while the code is the same. Pages are kept as drawings, which every
reader of notebooks shows. What is said of progress is left out, and what a cell with the tag `measured` shows, since
it differs each time.
"""

import argparse
import hashlib
import os
import tempfile
from pathlib import Path

import jupytext
from nbclient import NotebookClient
from nbformat import NotebookNode, read, v4, writes

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

# Run before the first cell: what is shown as a page, in a frame with a script, is kept as a drawing.
DRAWINGS = """
def drawings():
    import tempfile
    from pathlib import Path
    from atento.decoding.trace import Trace
    from atento.inspection import AttentionRecord
    from atento.inspection.explanation import Explanation
    from atento.inspection.figures.search_tree import beam_svg

    def saved(one):
        with tempfile.TemporaryDirectory() as folder:
            one.save(Path(folder) / "drawn.svg")
            return (Path(folder) / "drawn.svg").read_text(encoding="utf-8")

    formatters = get_ipython().display_formatter.formatters
    tree = lambda trace: beam_svg(trace.runs[0], name=trace.name or str)
    for kind, drawing in ((AttentionRecord, saved), (Explanation, saved), (Trace, tree)):
        formatters["image/svg+xml"].for_type(kind, drawing)
        formatters["text/html"].for_type(kind, lambda one: None)

drawings()
del drawings
"""


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
        tags = cell.metadata.get("tags")
        cell.id, cell.metadata = f"cell-{number}", NotebookNode({"tags": tags} if tags else {})
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    book.metadata = NotebookNode(kernelspec=NotebookNode(kernel), language_info=NotebookNode(name="python"))
    book.nbformat, book.nbformat_minor = 4, 5
    return book


def place(source: Path, language: str) -> Path:
    """Return the file of a made notebook."""
    return FOLDER / language / f"{source.stem}.ipynb"


def code_of(book: NotebookNode) -> str:
    """A digest of the code, which tells whose outputs a notebook has."""
    code = "\0".join(cell.source for cell in book.cells if cell.cell_type == "code")
    return hashlib.sha256(code.encode()).hexdigest()[:16]


def run(source: Path) -> list[list[NotebookNode]]:
    """Run the code of a lesson in a kernel, and return the outputs of each cell of code."""
    book = made(source, "en")
    book.cells.insert(0, v4.new_code_cell(DRAWINGS))
    with tempfile.TemporaryDirectory() as folder:
        os.environ.update(OMP_NUM_THREADS="1", HF_HUB_OFFLINE="1", IPYTHONDIR=f"{folder}/ipython")
        place = {"metadata": {"path": folder}}
        same = {"record_timing": False, "coalesce_streams": True}  # each time
        NotebookClient(book, timeout=3600, kernel_name="python3", resources=place, **same).execute()
    return [kept(cell) for cell in book.cells[1:] if cell.cell_type == "code"]


def kept(cell: NotebookNode) -> list[NotebookNode]:
    """The outputs of a cell that are the same each time it is run."""
    shown = [] if "measured" in cell.metadata.get("tags", ()) else cell.outputs
    return [output for output in shown if output.get("name") != "stderr"]


def with_outputs(book: NotebookNode, outputs: list[list[NotebookNode]]) -> NotebookNode:
    """The notebook with these outputs of its cells of code, numbered as they are run."""
    for number, (cell, shown) in enumerate(zip([one for one in book.cells if one.cell_type == "code"], outputs), 1):
        for output in shown:
            if "execution_count" in output:
                output.execution_count = number
        cell.outputs, cell.execution_count = shown, number
    book.metadata.atento = NotebookNode(code=code_of(book))
    return book


def outputs_in(file: Path, book: NotebookNode) -> list[list[NotebookNode]]:
    """The outputs that a file has of the same code as a notebook; none if it has other code."""
    before = read(file, as_version=4) if file.exists() else None
    if before is None or before.metadata.get("atento", {}).get("code") != code_of(book):
        return []
    return [cell.outputs for cell in before.cells if cell.cell_type == "code"]


def main() -> None:
    """Write the notebooks."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--run", action="store_true", help="run the code")
    parser.add_argument("names", nargs="*", help="lessons, such as 03-look-inside; all if none is given")
    arguments = parser.parse_args()
    for source in sources():
        if arguments.names and source.stem not in arguments.names:
            continue
        outputs = run(source) if arguments.run else None
        for language in LANGUAGES:
            file, book = place(source, language), made(source, language)
            file.parent.mkdir(exist_ok=True)
            found = outputs_in(file, book) if outputs is None else outputs
            file.write_text(writes(with_outputs(book, found) if found else book) + "\n", encoding="utf-8")
        print(source.stem, flush=True)


if __name__ == "__main__":
    main()
