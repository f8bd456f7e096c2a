"""Sequences of tags: which tag may follow which, and the most probable legal sequence."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from atento.metrics.tag_schemes import may_follow, scheme_of

OUTSIDE = "O"
_ILLEGAL = 1e6  # nats: only where no legal sequence exists is an illegal one the best


@dataclass(frozen=True)
class Transitions:
    """Which tags may begin a sentence, follow one another and end it; boolean, True = legal."""

    first: NDArray[np.bool_]  # (C,)
    following: NDArray[np.bool_]  # (C,C), from the tag of a row to the tag of a column
    last: NDArray[np.bool_]  # (C,)


def scheme_of_labels(labels: Iterable[str]) -> str | None:
    """The scheme that labels suggest: BIOES, BILOU, IOB1 where none has B, else IOB2; None for plain tags."""
    return scheme_of((label,) for label in labels)


def transitions(labels: Sequence[str], scheme: str) -> Transitions:
    """The legal transitions between labels under a scheme (`atento.metrics.tag_schemes`).
    Raises UsageError: there is no such scheme.
    """
    return Transitions(
        np.array([may_follow(OUTSIDE, label, scheme) for label in labels]),
        np.array([[may_follow(left, right, scheme) for right in labels] for left in labels]),
        np.array([may_follow(label, OUTSIDE, scheme) for label in labels]),
    )


def best_sequence(log_probs: NDArray[np.float64], legal: Transitions) -> list[int]:
    """The legal sequence of tags with the largest sum of log-probabilities (Viterbi 1967).

    Where no sequence is legal, it has as few illegal transitions as possible.

    Args:
        log_probs: (N,C), finite, of each tag of each word.

    Returns:
        N numbers of tags.
    """
    if not len(log_probs):
        return []
    cost = np.where(legal.following, 0.0, -_ILLEGAL)
    score = log_probs[0] + np.where(legal.first, 0.0, -_ILLEGAL)
    pointers = []
    for word in log_probs[1:]:
        arriving = score[:, None] + cost  # (C,C), from a row to a column
        pointers.append(arriving.argmax(axis=0))
        score = arriving.max(axis=0) + word
    tags = [int((score + np.where(legal.last, 0.0, -_ILLEGAL)).argmax())]
    for pointer in reversed(pointers):
        tags.append(int(pointer[tags[-1]]))
    return tags[::-1]
