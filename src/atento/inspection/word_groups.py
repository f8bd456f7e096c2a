"""Tokens grouped into words, attention weights merged by word, and the word alignment that they give."""

from collections.abc import Sequence, Set
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from atento.base.errors import UsageError
from atento.inspection.token_display import visible, word_label

Matrix = NDArray[np.float32]


@dataclass(frozen=True)
class Group:
    """The tokens start ... end - 1 shown as one: a word, or a special token (`word` -1)."""

    label: str
    word: int
    start: int
    end: int
    special: bool


def word_groups(tokens: Sequence[str], words: Sequence[int], special: Sequence[bool]) -> list[Group]:
    """Group neighbouring tokens of the same word; a special token or one of word -1 is a group of its own."""
    groups: list[Group] = []
    start = 0
    while start < len(tokens):
        end = start + 1
        if words[start] >= 0 and not special[start]:
            while end < len(tokens) and words[end] == words[start] and not special[end]:
                end += 1
        label = tokens[start] if special[start] else word_label(tokens[start:end])
        groups.append(Group(visible(label), words[start], start, end, special[start]))
        start = end
    return groups


def merge_words(weights: Matrix, rows: Sequence[Group], columns: Sequence[Group]) -> Matrix:
    """Merge weights (T,S) of tokens into (len(rows), len(columns)) of words.

    Columns are summed and rows are averaged over the tokens of a word, so that rows still sum to 1.
    """
    by_column = np.add.reduceat(weights, [group.start for group in columns], axis=1, dtype=np.float64)  # (T,columns)
    by_row = np.add.reduceat(by_column, [group.start for group in rows], axis=0)  # (rows,columns)
    lengths = np.array([group.end - group.start for group in rows], dtype=np.float64)  # tokens of each word
    merged: Matrix = (by_row / lengths[:, None]).astype(np.float32)
    return merged


Link = TypeVar("Link")


def strongest_sources(weights: Matrix, rows: Sequence[Group], columns: Sequence[Group]) -> list[tuple[int, int, float]]:
    """The source word with the largest weight for each target word.

    Special tokens are ignored on both sides. Of equal weights the first wins. A target word with no weight on any
    source word gives no link.

    Args:
        weights: (T,S), merged by word.

    Returns:
        (source word, target word, weight) in target order.
    """
    words = [position for position, column in enumerate(columns) if not column.special and column.word >= 0]
    links = []
    for position, row in enumerate(rows):
        if row.special or row.word < 0 or not words:
            continue
        candidates = weights[position, words]  # of target `position` on source words
        best = int(np.argmax(candidates))
        if candidates[best] > 0:
            links.append((columns[words[best]].word, row.word, float(candidates[best])))
    return links


def alignment_error_rate(predicted: Set[Link], gold: Set[Link], possible: Set[Link] | None = None) -> float:
    """Alignment error rate: 1 - (|A∩S| + |A∩P|) / (|A| + |S|) (Och & Ney 2003; docs/notes.md#b14).

    Args:
        predicted: A, the set of predicted (source, target) links.
        gold: S, the set of sure links.
        possible: further links that are neither required nor wrong; P is `gold` and these.

    Returns:
        The rate from 0 (correct) to 1; without `possible` it is 1 - F1 of the links. Two empty sets give 0.

    Raises UsageError: an argument is not a set.
    """
    for name, links in (("predicted", predicted), ("gold", gold), ("possible", possible)):
        if links is not None and not isinstance(links, Set):
            raise UsageError(f"`{name}` must be a set of (source, target) pairs: got {type(links).__name__}")
    if not predicted and not gold:
        return 0.0
    allowed = gold if possible is None else gold | possible  # P
    return 1.0 - (len(predicted & gold) + len(predicted & allowed)) / (len(predicted) + len(gold))
