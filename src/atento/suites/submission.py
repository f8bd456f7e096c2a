"""Submission files: the predictions for test files without labels, in the layout that GLUE's site reads."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from atento.storage.whole_file import write_whole
from atento.suites.row import Row

FOLDER = "submission"


def write_submission(folder: Path, part: str, row: Row, numbers: Sequence[str], outputs: Sequence[Any]) -> Path:
    """Write `PART.tsv`: a header, then the number of each record and its label, or its score with three digits."""
    lines = ["index\tprediction"]
    for number, output in zip(numbers, outputs, strict=True):
        lines.append(f"{number}\t{output if isinstance(output, str) else _number(output, row)}")
    path = folder / FOLDER / f"{part}.tsv"
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, "\n".join(lines) + "\n")
    return path


def _number(value: float, row: Row) -> str:
    """A score with three digits, inside the range of the row."""
    low, high = row.range or (value, value)
    return f"{min(max(value, low), high):.3f}"
