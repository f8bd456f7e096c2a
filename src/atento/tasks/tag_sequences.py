"""Sequences of tags: their scheme, which tag may follow which, and the most probable legal sequence."""

import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

Scheme = Literal["IOB1", "IOB2", "BIOES"]
SCHEMES: tuple[Scheme, ...] = get_args(Scheme)
OUTSIDE = "O"
_PREFIXED = re.compile(r"([BIESLU])(?:-(.+))?", re.DOTALL)
_AS_BIOES = {"L": "E", "U": "S"}
_ILLEGAL = 1e6  # nats: only where no legal sequence exists is an illegal one the best


@dataclass(frozen=True)
class Transitions:
    """Which tags may begin a sentence, follow one another and end it; boolean, True = legal.

    Attributes:
        first: (C,).
        following: (C,C), from the tag of a row to the tag of a column.
        last: (C,).
    """

    first: NDArray[np.bool_]
    following: NDArray[np.bool_]
    last: NDArray[np.bool_]

    def allow(self, tags: Sequence[int]) -> bool:
        """Whether a sequence of numbers of tags is legal."""
        if not tags:
            return True
        inner = all(self.following[left, right] for left, right in pairwise(tags))
        return bool(self.first[tags[0]] and self.last[tags[-1]] and inner)


def split_tag(tag: str) -> tuple[str, str]:
    """The prefix of a tag, L and U of BILOU as E and S, and its type: "I-PER" -> ("I", "PER"), "O" -> ("O", "").

    A prefix alone has the type "_", as in `atento.metrics.entity_f1`.
    """
    match = _PREFIXED.fullmatch(tag)
    return (OUTSIDE, "") if match is None else (_AS_BIOES.get(match[1], match[1]), match[2] or "_")


def name_entities(labels: Collection[str]) -> bool:
    """Whether labels are positions in entities, such as B-PER and O, rather than plain tags, such as NOUN."""
    return any("-" in label for label in labels) and all(
        label == OUTSIDE or _PREFIXED.fullmatch(label) for label in labels
    )


def transitions(labels: Sequence[str], scheme: Scheme) -> Transitions:
    """The legal transitions between labels under a scheme.

    IOB1: I-X anywhere; B-X only behind an entity of type X. IOB2: I-X only behind B-X or I-X. BIOES: an entity of one
    word is S-X, a longer one B-X I-X ... E-X.
    """
    parts = [split_tag(label) for label in labels]
    outside = (OUTSIDE, "")
    follows = _FOLLOWS[scheme]
    return Transitions(
        np.array([follows(outside, part) for part in parts]),
        np.array([[follows(left, right) for right in parts] for left in parts]),
        np.array([follows(part, outside) for part in parts]),
    )


def _follows_iob1(left: tuple[str, str], right: tuple[str, str]) -> bool:
    return right[0] != "B" or left[1] == right[1]


def _follows_iob2(left: tuple[str, str], right: tuple[str, str]) -> bool:
    return right[0] != "I" or left[1] == right[1]


def _follows_bioes(left: tuple[str, str], right: tuple[str, str]) -> bool:
    inside = left[0] in ("B", "I")
    return left[1] == right[1] if inside and right[0] in ("I", "E") else not inside and right[0] not in ("I", "E")


_FOLLOWS = {"IOB1": _follows_iob1, "IOB2": _follows_iob2, "BIOES": _follows_bioes}


def scheme_of(sequences: Iterable[Sequence[str]]) -> Scheme | None:
    """The scheme that all sequences of tags obey; None for plain tags, and where they obey none.

    Where all obey IOB1 and IOB2, it is IOB2. With the letters E and S, or L and U (BILOU), it is BIOES.
    """
    distinct = {tuple(tags) for tags in sequences}
    labels = sorted({tag for tags in distinct for tag in tags})
    if not name_entities(labels):
        return None
    letters = {split_tag(label)[0] for label in labels}
    candidates: tuple[Scheme, ...] = ("BIOES",) if letters & {"E", "S"} else ("IOB2", "IOB1")
    numbers = {label: number for number, label in enumerate(labels)}
    for scheme in candidates:
        legal = transitions(labels, scheme)
        if all(legal.allow([numbers[tag] for tag in tags]) for tags in distinct):
            return scheme
    return None


def scheme_of_labels(labels: Sequence[str]) -> Scheme:
    """The scheme that labels alone suggest: BIOES with a letter E or S, else IOB2."""
    return "BIOES" if {split_tag(label)[0] for label in labels} & {"E", "S"} else "IOB2"


def best_sequence(log_probs: NDArray[np.float64], legal: Transitions) -> list[int]:
    """The legal sequence of tags with the largest sum of log-probabilities (Viterbi 1967).

    Where no sequence is legal, it has as few illegal transitions as possible.

    Args:
        log_probs: (N,C), finite, of each tag of each word.
        legal: the legal transitions.

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
