"""States whose rows have read different numbers of tokens: several tokens are read in one step, and some taken back.

Drafted decoding needs them (`decoding.draft_verification`). `FastRows` is that of the fast step function: each row
begins in the first column of its cache, so that tokens are taken back without a copy. `StackRows` is that of the plain
ones: the last tokens of all rows are in the last column, as those of prompts are, so that every mask holds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from atento.attention.multihead import KeyValues
from atento.attention.relative_terms import QueryKeyPositions
from atento.inference.fast_state import ROOM, Cache, FastState
from atento.inference.plain_state import PromptState
from atento.networks.layers import BlockState
from atento.networks.stack.stack import StackState


@dataclass
class FastRows:
    """What R outputs have read, each in a cache of its own; output r has read `lengths[r]` tokens.

    States that come from one another share the cache: after a step, only the newest of them may be read from.
    """

    cache: Cache  # (R,Hkv,C,K)
    lengths: list[int]
    source: list[tuple[Tensor, Tensor]]  # (R,Hkv,S,K) each
    source_mask: Tensor | None  # (R,1,1,S), 0 or -inf

    @staticmethod
    def of(state: FastState) -> FastRows:
        """The outputs of a state that has read no token, or prompts alone, in new memory."""
        state = state if state.width == 1 else state.separated()
        starts = [0] * state.rows if state.starts is None else state.starts.tolist()
        own = [state.length + start for start in starts]
        room = max(own) + ROOM

        def moved(old: Tensor) -> Tensor:
            new = old.new_zeros(*old.shape[:2], room, old.shape[3])  # zeros: masked numbers must be finite
            for row, length in enumerate(own):
                new[row, :, :length] = old[row, :, state.length - length : state.length]
            return new

        cache = Cache([moved(keys) for keys in state.cache.keys], [moved(values) for values in state.cache.values])
        source, source_mask = state.source, state.source_mask
        if source and len(source[0][0]) != state.rows:  # outputs that share a source
            owners = torch.arange(state.rows, device=source[0][0].device) // (state.rows // len(source[0][0]))
            source = [(keys[owners], values[owners]) for keys, values in source]
            source_mask = None if source_mask is None else source_mask[owners]
        return FastRows(cache, own, source, source_mask)

    def select(self, rows: Tensor) -> FastRows:
        """Only those outputs, in that order, in new memory; a row may occur several times."""
        return FastRows(
            self.cache.of(rows),
            [self.lengths[row] for row in rows.tolist()],
            [(keys.index_select(0, rows), values.index_select(0, rows)) for keys, values in self.source],
            None if self.source_mask is None else self.source_mask.index_select(0, rows),
        )

    def changed(self, counts: Sequence[int]) -> FastRows:
        """The same rows with so many tokens more, which were read, or fewer, which are taken back."""
        lengths = [length + count for length, count in zip(self.lengths, counts)]
        return FastRows(self.cache, lengths, self.source, self.source_mask)

    def reserve(self, columns: int) -> None:
        """Make room for so many columns."""
        old = self.cache.keys[0].shape[2]
        if columns > old:
            self.cache.grow(old, max(columns, old + old // 2), zeros=True)  # copies stay linear in the columns

    def new_columns(self, count: int) -> Tensor:
        """The columns of the next `count` tokens of each row: (count,) if the rows are level, else (R,count)."""
        device = self.cache.keys[0].device
        columns = torch.arange(count, device=device)  # (T,)
        if min(self.lengths) == max(self.lengths):
            return columns + self.lengths[0]
        return torch.tensor(self.lengths, device=device).unsqueeze(1) + columns

    def positions(self, columns: Tensor, last: int) -> QueryKeyPositions:
        """The positions of the tokens in those columns and of the keys in the columns before `last`."""
        keys = torch.arange(last, device=columns.device)
        if columns.dim() == 1:
            return QueryKeyPositions(columns, keys, True)
        return QueryKeyPositions(columns, keys.expand(len(columns), last), False)

    def position_ids(self, columns: Tensor, counts: Sequence[int]) -> Tensor | None:
        """The positions (R,T) of the new tokens; None where all rows read equally many after equally many.

        Padding has the position of the last token before it: the network may have no position behind that.
        """
        if columns.dim() == 1 and min(counts) == len(columns):
            return None
        last = torch.tensor([own + count - 1 for own, count in zip(self.lengths, counts)], device=columns.device)
        return torch.minimum(columns.expand(len(counts), -1), last.unsqueeze(1)).clamp_min_(0)

    def mask(self, columns: Tensor, last: int) -> Tensor | None:
        """(R or 1,1,T,last), 0 where a token attends, -inf behind it; None where each attends to all columns."""
        if columns.dim() == 1 and len(columns) == 1:
            return None
        keys = self.cache.keys[0]
        behind = torch.arange(last, device=columns.device) > columns.unsqueeze(-1)  # (T,last) or (R,T,last)
        mask = keys.new_zeros(behind.shape).masked_fill_(behind, float("-inf"))
        return mask.unsqueeze(-3) if mask.dim() == 3 else mask[None, None]

    def store(self, columns: Tensor, last: int, layer: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Store new keys and values (R,Hkv,T,K) of a layer in their columns; all of them before `last`."""
        for tensor, new in ((self.cache.keys[layer], k), (self.cache.values[layer], v)):
            if columns.dim() == 1:
                tensor[:, :, last - len(columns) : last] = new
            else:
                index = columns[:, None, :, None].expand(-1, tensor.shape[1], -1, tensor.shape[3])  # (R,Hkv,T,K)
                tensor.scatter_(2, index, new.to(tensor.dtype))
        return self.cache.keys[layer][:, :, :last], self.cache.values[layer][:, :, :last]


@dataclass
class StackRows:
    """The cache of a decoder stack: row r has read `lengths[r]` tokens, the last of them in the last column."""

    stack: StackState
    lengths: list[int]

    @staticmethod
    def of(state: PromptState) -> StackRows:
        """The rows of a state; what they read does not change it."""
        old = state.stack
        lengths = [old.length] * state.rows if state.lengths is None else state.lengths.tolist()
        blocks = [BlockState(block.self_attention, block.cross_attention) for block in old.blocks]
        return StackRows(StackState(blocks, old.length, old.memory_mask, old.position_ids), lengths)

    def select(self, rows: Tensor) -> StackRows:
        """Only those batch rows, in that order."""
        return StackRows(self.stack.select(rows), [self.lengths[row] for row in rows.tolist()])

    def before(self, counts: Sequence[int], device: torch.device) -> tuple[Tensor | None, Tensor | None]:
        """The token mask (R,L+T) and the positions (R,T) of a step that reads `counts` tokens of each row.

        Both are None where all rows read equally many tokens after equally many.
        """
        stack, columns, count = self.stack, self.stack.length, max(counts)
        if min(self.lengths) == columns and min(counts) == count:
            stack.position_ids = None
            return None, None
        own = torch.tensor(self.lengths, device=device).unsqueeze(1)  # (R,1)
        first = columns - own  # (R,1): the column where each row begins
        steps = torch.arange(columns + count, device=device)  # (L+T,)
        if columns:
            stack.position_ids = (steps[:columns] - first).clamp_min_(0)  # (R,L)
        # padding behind the tokens of a row has the position of the last one: there may be none behind that
        last = torch.tensor(counts, device=device).unsqueeze(1) - 1  # (R,1)
        return steps >= first, (own + torch.minimum(steps[:count], last)).clamp_min_(0)

    def changed(self, counts: Sequence[int]) -> StackRows:
        """The rows with so many tokens more, which were read, or fewer, which are taken back: `lengths` changes.

        Columns that no row needs are dropped, and the others moved so that the last tokens are in one column.
        """
        lengths = [length + count for length, count in zip(self.lengths, counts)]
        columns, new_columns = self.stack.length, max(lengths)
        base = columns - max(max(counts), 0)  # the columns before this step, in which the rows ended
        shifts = [base - length - (new_columns - new) for length, new in zip(self.lengths, lengths)]
        is_moved = columns != new_columns or any(shifts)
        for block in self.stack.blocks if is_moved else ():
            cache = block.self_attention
            if cache is not None and any(shifts):  # column c of row r becomes what was in column c + shifts[r]
                index = torch.tensor(shifts).unsqueeze(1) + torch.arange(new_columns)  # (R,columns)
                index = index.clamp_(0, columns - 1)[:, None, :, None].to(cache.keys.device)  # clamped at padding
                index = index.expand(-1, cache.keys.shape[1], -1, cache.keys.shape[3])  # (R,Hkv,columns,K)
                block.self_attention = KeyValues(cache.keys.gather(2, index), cache.values.gather(2, index))
            elif cache is not None:
                block.self_attention = KeyValues(cache.keys[:, :, :new_columns], cache.values[:, :, :new_columns])
        self.stack.length = new_columns
        return StackRows(self.stack, lengths)
