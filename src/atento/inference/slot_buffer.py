"""A buffer of keys and values with a slot for each group of rows, which grows and shrinks with the groups in it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

SLOTS, COLUMNS = 8, 32  # the least room
_KEPT_COLUMNS = 128  # a buffer of so few stays, so that the next rows need no new one
_TOO_LARGE = 4  # a buffer with so many times the slots or columns that are needed is made smaller


class SlotBuffer:
    """Keys and values (S,Hkv,C,K) of every layer, and a mask (S,w,C): what each of the w rows of a slot attends to.

    The mask is 0 in the columns that a row attends to, and -inf elsewhere.
    """

    def __init__(
        self, count: int, heads: int, d_head: int, dtype: torch.dtype, device: torch.device, width: int = 1
    ) -> None:
        """`count` layers, `heads` Hkv of `d_head` K, slots of `width` rows."""
        empty = torch.zeros(0, heads, 0, d_head, dtype=dtype, device=device)
        self._keys, self._values = [empty] * count, [empty] * count
        self._mask = torch.zeros(0, width, 0, dtype=dtype, device=device)

    def layers(self, slots: int, columns: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Keys and values of the first slots and columns, layer by layer; they share the memory of the buffer."""
        for keys, values in zip(self._keys, self._values):
            yield keys[:slots, :, :columns], values[:slots, :, :columns]

    def whole(self, slots: int) -> tuple[list[Tensor], list[Tensor], Tensor]:
        """Keys and values of every layer and the mask (S,1,w,C): of the first slots, all columns of the buffer."""
        keys, values = ([tensor[:slots] for tensor in part] for part in (self._keys, self._values))
        return keys, values, self._mask[:slots, None]

    def mask(self, slots: int, columns: int) -> Tensor:
        """The mask (S,1,w,C) of the first slots and columns; it shares the memory of the buffer."""
        return self._mask[:slots, None, :, :columns]

    def show(self, columns: Tensor) -> None:
        """Each row attends to a new column of its slot: `columns` (S,w)."""
        self._mask[: len(columns)].scatter_(2, columns.unsqueeze(2), 0.0)

    def reorder(self, parents: Tensor) -> None:
        """Each row attends to what a row of its slot attended to: `parents` (S,w)."""
        mask = self._mask[: len(parents)]
        mask.copy_(mask.gather(1, parents.unsqueeze(2).expand(mask.shape)))

    def fit(self, used: int, slots: int, columns: int) -> None:
        """Make room for so many slots and columns, or free what is far too large; the first `used` slots stay."""
        old_slots, room = self._mask.shape[0], self._mask.shape[2]
        new_slots, new_room = old_slots, room
        if slots > old_slots or old_slots > max(SLOTS, _TOO_LARGE * slots):
            new_slots = max(SLOTS, 1 << (slots - 1).bit_length()) if slots else 0  # a power of two
        if columns > room or room > max(_KEPT_COLUMNS, _TOO_LARGE * columns):
            new_room = max(COLUMNS, columns + columns // 2)
        if (new_slots, new_room) == (old_slots, room):
            return
        shared = min(room, new_room)
        for tensors in (self._keys, self._values):  # one after the other, so that two buffers never exist at once
            for layer, old in enumerate(tensors):
                new = old.new_zeros(new_slots, old.shape[1], new_room, old.shape[3])  # (slots,Hkv,columns,K)
                new[:used, :, :shared] = old[:used, :, :shared]
                tensors[layer] = new
        mask = self._mask.new_full((new_slots, self._mask.shape[1], new_room), float("-inf"))  # (slots,w,columns)
        mask[:used, :, :shared] = self._mask[:used, :, :shared]
        self._mask = mask

    def put(
        self, first: int, lengths: Sequence[int], keys: Sequence[list[Tensor]], values: Sequence[list[Tensor]]
    ) -> None:
        """Write keys and values into consecutive slots, whose rows attend to all of them and to nothing else.

        Args:
            first: the number of the first slot.
            lengths: T of each slot; may be 0.
            keys, values: of each slot, (1,Hkv,T,K) of every layer.
        """
        slots = slice(first, first + len(lengths))
        for tensors, news in ((self._keys, keys), (self._values, values)):
            for layer, tensor in enumerate(tensors):
                tensor[slots] = 0  # a mask hides what earlier rows left here, unless it was no number
                for slot, length in enumerate(lengths, first):
                    if length:
                        tensor[slot, :, :length] = news[slot - first][layer][0]
        columns = torch.arange(self._mask.shape[2], device=self._mask.device)
        visible = columns < torch.tensor(lengths, device=columns.device).unsqueeze(1)  # (new slots,columns)
        self._mask[slots] = torch.zeros_like(self._mask[slots]).masked_fill_(~visible.unsqueeze(1), float("-inf"))

    def move(self, moved: Sequence[tuple[int, int]]) -> None:
        """Copy slots to other ones: pairs of numbers."""
        for old, new in moved:
            for tensor in (*self._keys, *self._values, self._mask):
                tensor[new] = tensor[old]
