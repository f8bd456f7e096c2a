"""Group tokens into words, and merge attention weights by word: columns are summed, rows are averaged."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

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
        pieces = tokens[start:end]
        label = pieces[0] if special[start] else word_label(pieces)
        groups.append(Group(visible(label), words[start], start, end, special[start]))
        start = end
    return groups


def merge_words(weights: Matrix, rows: Sequence[Group], columns: Sequence[Group]) -> Matrix:
    """Merge weights (T,S) of tokens into (len(rows), len(columns)) of words.

    Columns are summed and rows are averaged over the tokens of a word, so that rows still sum to 1.
    """
    by_column = np.add.reduceat(weights, [group.start for group in columns], axis=1, dtype=np.float64)
    by_row = np.add.reduceat(by_column, [group.start for group in rows], axis=0)
    lengths = np.array([group.end - group.start for group in rows], dtype=np.float64)
    merged: Matrix = (by_row / lengths[:, None]).astype(np.float32)
    return merged
