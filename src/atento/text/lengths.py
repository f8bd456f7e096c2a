"""Truncate texts to a length, and pad a batch to its longest sequence (docs/notes.md#d6)."""

from collections.abc import Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from atento.base.errors import TokenizerError


def truncate(
    ids: Sequence[int], pair: Sequence[int] | None, room: int, *, side: Literal["right", "left"] = "right"
) -> tuple[list[int], list[int] | None, int]:
    """Truncate one text or two to `room` ids in total.

    The longer text is cut to the length of the shorter one, then both are cut by the same number. An odd id stays in
    the text that was longer, or by the second of two texts of the same length.

        truncate([1, 2, 3, 4, 5], [6, 7], 4) -> [1, 2], [6, 7], 3

    Args:
        ids: the first text, without special tokens.
        pair: the second text; None for one text.
        room: how many ids remain in total, 0 or more.
        side: the side that is cut, "right" or "left".

    Returns:
        The first text, the second text or None, and the number of ids that were cut.

    Raises:
        TokenizerError: `room` is negative, or `side` is not valid.
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
            first, second = room // 2, room - room // 2  # both are of one length, or differ by one
            if len(ids) > (0 if pair is None else len(pair)):
                first, second = second, first

    def truncated(text: Sequence[int], n: int) -> list[int]:
        return list(text[:n] if side == "right" else text[len(text) - n :])

    return truncated(ids, first), None if pair is None else truncated(pair, second), cut


def pad_batch(
    batch: Sequence[Sequence[int]], pad_id: int, *, side: Literal["right", "left"] = "right"
) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Pad sequences of ids to the length of the longest.

    Args:
        batch: B sequences.
        pad_id: the id of padding.
        side: the side that is padded, "right" or "left"; a language model that generates needs "left".

    Returns:
        ids (B,L) and the token mask (B,L), True = a real token.

    Raises:
        TokenizerError: `side` is not valid.
    """
    if side not in ("right", "left"):
        raise TokenizerError(f"`side` must be 'right' or 'left': got {side!r}")
    longest = max(map(len, batch), default=0)
    ids = np.full((len(batch), longest), pad_id, dtype=np.int64)  # (B,L)
    real = np.zeros((len(batch), longest), dtype=np.bool_)  # (B,L)
    for row, sequence in enumerate(batch):
        columns = slice(0, len(sequence)) if side == "right" else slice(longest - len(sequence), longest)
        ids[row, columns] = sequence
        real[row, columns] = True
    return ids, real
