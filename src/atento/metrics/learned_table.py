"""The learned metrics by name: what each reads, and its score from the numbers of each segment; no torch."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from atento.base.errors import UsageError, nearest
from atento.metrics.score import Score, ratio


@dataclass(frozen=True)
class LearnedMetric:
    """A metric that a model computes, whose folder is named behind a colon: `comet:FOLDER`."""

    title: str  # its name in papers
    source: bool = False  # whether it reads the source of each output
    references: float = 1  # how many reference sets it reads at most
    # the numbers of a segment, of which the last is its score; the others are parts
    columns: tuple[str, ...] = ("score",)
    options: tuple[str, ...] = ()  # names of its own options


LEARNED: dict[str, LearnedMetric] = {
    "bertscore": LearnedMetric(
        "BERTScore", references=float("inf"), columns=("precision", "recall", "f1"), options=("layer", "idf")
    ),
    "comet": LearnedMetric("COMET", source=True),
    "comet-kiwi": LearnedMetric("COMET-Kiwi", source=True, references=0),
}


def learned_name(metric: str) -> tuple[str, str] | None:
    """The name and the folder of a learned metric `NAME:FOLDER`; None: a name without a colon.
    Raises UsageError: no learned metric has that name, or no folder is named.
    """
    name, colon, folder = metric.partition(":")
    if not colon:
        return None
    if name not in LEARNED:
        raise UsageError(f"unknown learned metric {name!r}{nearest(name, list(LEARNED))}")
    if not folder:
        raise UsageError(f"{name}:FOLDER names a model folder: got none")
    return name, folder


def check_inputs(name: str, references: int, source: bool) -> None:
    """Raises UsageError: that learned metric reads a source that is not given, or other references."""
    row = LEARNED[name]
    if references and not row.references:
        raise UsageError(f"{name} compares outputs with their sources alone, without references: got references")
    if references > row.references:
        raise UsageError(f"{name} takes one reference for each output: got {references} sets of references")
    if row.references and not references:
        raise UsageError(f"{name} compares outputs with references: got none")
    if row.source and not source:
        raise UsageError(f"{name} reads the source of each output: got none (`sources`, or --source FILE)")
    if source and not row.source:
        raise UsageError(f"{name} does not read sources: got them")


def learned_score(name: str, rows: Sequence[Sequence[float]], settings: str) -> Score:
    """The mean over segments of the last of their numbers, with the means of the others as parts.

    Args:
        name: of the metric.
        rows: the numbers of each segment, a column each of `LEARNED[name].columns`.
        settings: all that changes the score.
    """
    columns = LEARNED[name].columns
    segments = [[*row, 1.0] for row in rows]  # 1: a row counts one segment
    means = [sum(column) / len(segments) for column in zip(*rows)]
    parts = dict(zip(columns[:-1], means)) | {"count": float(len(segments))}
    return Score(LEARNED[name].title, means[-1], parts, settings, segments, partial(ratio, at=-2), digits=4)
