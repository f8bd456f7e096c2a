"""The code of each notebook, run by a kernel as in a class: without an error, with pages and tables shown."""

import re
from pathlib import Path

import pytest
from nbclient import NotebookClient
from tools import notebooks

QUICK = ("03-look-inside",)  # how the names of the others begin
CASES = [
    pytest.param(source, marks=[] if source.stem.startswith(QUICK) else [pytest.mark.slow], id=source.stem)
    for source in notebooks.sources()
]


@pytest.mark.parametrize("source", CASES)
def test_it_runs_and_shows_its_figures(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "IPYTHONDIR": str(tmp_path / "ipython")}.items():
        monkeypatch.setenv(name, value)
    book = notebooks.made(source, "en")
    NotebookClient(book, timeout=500, kernel_name="python3", resources={"metadata": {"path": str(tmp_path)}}).execute()
    kept = [{one.output_type for one in notebooks.kept(cell)} for cell in book.cells if cell.cell_type == "code"]
    stored = notebooks.outputs_in(notebooks.place(source, "en"), notebooks.made(source, "en"))
    assert kept == [{one.output_type for one in outputs} for outputs in stored]
    shown = [
        output.data["text/html"]
        for cell in book.cells
        for output in cell.get("outputs", ())
        if "text/html" in output.get("data", {})
    ]
    assert len(shown) > 1 and any(re.search("<iframe|<table", page) for page in shown)
    if source.stem != "09-metrics-and-significance":  # tables alone
        assert any("<iframe" in page for page in shown)
    assert sum(len(page) for page in shown) < 2_000_000  # a notebook that is saved with its outputs stays small
