"""Sequences made to fit: two texts cut to a length, a batch padded to its longest (docs/notes.md#d6)."""

from collections.abc import Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from atento.errors import TokenizerError


def truncate(
    ids: Sequence[int], pair: Sequence[int] | None, room: int, *, side: Literal["right", "left"] = "right"
) -> tuple[list[int], list[int] | None, int]:
    """One text or two cut to `room` ids in all, the longer one first; how many were cut is told, never hidden.

    The longer text is cut down to the length of the shorter and then both alike; the text that was longer keeps the odd
    id, the second of two texts of one length.

        truncate([1, 2, 3, 4, 5], [6, 7], 4) -> [1, 2], [6, 7], 3

    Args:
        ids, pair: the texts, without special tokens.
        room: how many ids may stay in all, at least 0.
        side: the end that is cut.

    Returns:
        The first text, the second (None as given), and the number of ids that were cut.

    Raises:
        TokenizerError: `room` is negative, or `side` is no side.
    """
    if room < 0:
        raise TokenizerError(f"`room` must be at least 0: got {room}")
    if side not in ("right", "left"):
        raise TokenizerError(f"`side` must be 'right' or 'left': got {side!r}")
    first, second = len(ids), 0 if pair is None else len(pair)
    cut = max(0, first + second - room)
    if cut:
        shorter = min(first, second)
        if room - shorter >= shorter:  # cutting the longer one is enough
            first, second = (room - second, second) if first > second else (first, room - first)
        else:
            first, second = room // 2, room - room // 2
            if len(ids) > (0 if pair is None else len(pair)):
                first, second = second, first

    def kept(text: Sequence[int], n: int) -> list[int]:
        return list(text[:n] if side == "right" else text[len(text) - n :])

    return kept(ids, first), None if pair is None else kept(pair, second), cut


def pad_batch(
    batch: Sequence[Sequence[int]], pad_id: int, *, side: Literal["right", "left"] = "right"
) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Sequences of ids as one array, no wider than the longest of them.

    Args:
        batch: B sequences of any lengths.
        pad_id: what fills the rest.
        side: where the filling stands; a model that writes on wants it on the left.

    Returns:
        ids (B,L) and the padding mask (B,L), True = a real token.

    Raises:
        TokenizerError: `side` is no side.
    """
    if side not in ("right", "left"):
        raise TokenizerError(f"`side` must be 'right' or 'left': got {side!r}")
    longest = max(map(len, batch), default=0)
    ids = np.full((len(batch), longest), pad_id, dtype=np.int64)
    real = np.zeros((len(batch), longest), dtype=np.bool_)
    for row, sequence in enumerate(batch):
        place = slice(0, len(sequence)) if side == "right" else slice(longest - len(sequence), longest)
        ids[row, place] = sequence
        real[row, place] = True
    return ids, real
