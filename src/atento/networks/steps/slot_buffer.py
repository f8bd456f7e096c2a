"""A buffer of keys and values with a slot for each row, which grows and shrinks with the rows that are in it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

SLOTS, COLUMNS = 8, 32  # the least room
_TOO_LARGE = 4  # a buffer with so many times the slots or columns that are needed is made smaller


class SlotBuffer:
    """Keys and values (S,Hkv,C,K) of every layer; columns behind those of a row hold numbers, which a mask hides."""

    def __init__(self, count: int, heads: int, width: int, dtype: torch.dtype, device: torch.device) -> None:
        """`count` layers, `heads` Hkv of `width` K."""
        empty = torch.zeros(0, heads, 0, width, dtype=dtype, device=device)
        self._keys, self._values = [empty] * count, [empty] * count

    def layers(self, rows: int, columns: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Keys and values of the first rows and columns, layer by layer; they share the memory of the buffer."""
        for keys, values in zip(self._keys, self._values):
            yield keys[:rows, :, :columns], values[:rows, :, :columns]

    def fit(self, used: int, rows: int, columns: int) -> None:
        """Make room for so many rows and columns, or free what is far too large; the first `used` rows stay."""
        slots, room = self._keys[0].shape[0], self._keys[0].shape[2]
        new_slots, new_room = slots, room
        if rows > slots or slots > max(SLOTS, _TOO_LARGE * rows):
            new_slots = max(SLOTS, 1 << (rows - 1).bit_length()) if rows else 0
        if columns > room or room > max(COLUMNS, _TOO_LARGE * columns):
            new_room = max(COLUMNS, columns + columns // 2)
        if (new_slots, new_room) == (slots, room):
            return
        shared = min(room, new_room)
        for tensors in (self._keys, self._values):  # one after the other, so that two buffers never exist at once
            for layer, old in enumerate(tensors):
                new = old.new_zeros(new_slots, old.shape[1], new_room, old.shape[3])
                new[:used, :, :shared] = old[:used, :, :shared]
                tensors[layer] = new

    def put(self, first: int, count: int, keys: Sequence[Tensor], values: Sequence[Tensor]) -> None:
        """Write the keys and values (1,Hkv,T,K) of every layer into `count` slots; without any, clear these slots."""
        slots = slice(first, first + count)
        for tensors, news in ((self._keys, keys), (self._values, values)):
            for layer, tensor in enumerate(tensors):
                length = news[layer].shape[2] if news else 0
                if news:
                    tensor[slots, :, :length] = news[layer]
                tensor[slots, :, length:] = 0  # a mask hides what an earlier row left here, unless it was no number

    def move(self, moved: Sequence[tuple[int, int]]) -> None:
        """Copy rows from slots to other ones: pairs of numbers."""
        for old, new in moved:
            for tensor in (*self._keys, *self._values):
                tensor[new] = tensor[old]
