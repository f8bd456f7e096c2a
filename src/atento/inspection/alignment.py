"""Word alignment read from attention, and how far it is from the right one (docs/notes.md#b14)."""

from collections.abc import Sequence, Set
from typing import TypeVar

import numpy as np

from atento.errors import UsageError
from atento.inspection.words import Group, Matrix

Link = TypeVar("Link")


def strongest_sources(weights: Matrix, rows: Sequence[Group], columns: Sequence[Group]) -> list[tuple[int, int, float]]:
    """For each target word its strongest source word: (source word, target word, weight), in target order.

    `weights` (T,S) are merged by word already. Special tokens take no part on either side, so the strongest word
    counts even where a special token draws more. Of equals the first wins; a row that reads no word gives no link.
    """
    words = [position for position, column in enumerate(columns) if not column.special and column.word >= 0]
    links = []
    for position, row in enumerate(rows):
        if row.special or row.word < 0 or not words:
            continue
        seen = weights[position, words]
        best = int(np.argmax(seen))
        if seen[best] > 0:
            links.append((columns[words[best]].word, row.word, float(seen[best])))
    return links


def alignment_error_rate(predicted: Set[Link], gold: Set[Link], possible: Set[Link] | None = None) -> float:
    """Alignment error rate, 0 (right) to 1: 1 - (|A∩S| + |A∩P|) / (|A| + |S|), Och & Ney 2003 (docs/notes.md#b14).

    `predicted` (A) and `gold` (S, the sure links) are sets of (source, target) pairs; `possible` adds to the sure
    links those that are neither asked for nor wrong (P holds S). Without it every gold link is sure, and the rate
    is one less the F1 of the links. Two empty sets agree: 0. Raises UsageError where something else than sets is given.
    """
    for name, links in (("predicted", predicted), ("gold", gold), ("possible", possible)):
        if links is not None and not isinstance(links, Set):
            raise UsageError(f"`{name}` must be a set of (source, target) pairs: got {type(links).__name__}")
    if not predicted and not gold:
        return 0.0
    allowed = gold if possible is None else gold | possible
    return 1.0 - (len(predicted & gold) + len(predicted & allowed)) / (len(predicted) + len(gold))
