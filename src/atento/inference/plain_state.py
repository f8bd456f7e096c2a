"""The state of plain steps, and the join of such states: the plain twin of `joined_states` and `slots`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from atento.attention import lowering
from atento.attention.multihead import KeyValues
from atento.networks.layers import BlockState
from atento.networks.stack.stack import StackState


@dataclass
class PromptState:
    """The state of a network; where rows have read different numbers of tokens, also what is real of its columns."""

    stack: Any  # a `StackState`, or the state of a recurrent network, whose rows have no columns
    rows: int  # the number of rows
    real: Tensor | None = None  # boolean (B,S), False where a row has no token; real tokens are last in each row
    lengths: Tensor | None = None  # (B,), the position of the next token of each row

    def select(self, rows: Tensor) -> PromptState:
        """Only those batch rows, in that order."""
        real = None if self.real is None else self.real.index_select(0, rows)
        lengths = None if self.lengths is None else self.lengths.index_select(0, rows)
        return PromptState(self.stack.select(rows), len(rows), real, lengths)

    def next(self, tokens: Tensor) -> tuple[Tensor | None, Tensor | None]:
        """The token mask (B,S+T) and the positions (B,T) with which tokens (B,T) are read; None: as all are real."""
        if self.real is None or self.lengths is None:
            return None, None
        real = torch.cat([self.real, torch.ones_like(tokens, dtype=torch.bool)], dim=1)  # (B,S+T)
        return real, self.lengths.unsqueeze(1) + torch.arange(tokens.shape[1], device=tokens.device)

    def after(self, stack: object, real: Tensor | None, count: int) -> PromptState:
        """The state after `count` more tokens of each row."""
        return PromptState(stack, self.rows, real, None if self.lengths is None else self.lengths + count)


def joined(states: Sequence[PromptState]) -> PromptState:
    """The rows of all states in their order, in new memory; rows may have read different numbers of tokens.

    Columns are padded on the left, so that the last tokens of all rows are in the same column, and `real` hides the
    padding. Columns that no row reads any more are left out. Sources are padded on the right.
    """
    first, *others = states
    if not isinstance(first.stack, StackState):
        return PromptState(first.stack.joined([state.stack for state in others]), sum(state.rows for state in states))
    devices = [device for device in map(_device, states) if device is not None]
    parts = [_Columns.of(state, devices[0] if devices else None) for state in states]
    lengths, rows = torch.cat([part.lengths for part in parts]), [state.rows for state in states]  # (R,)
    length = int(lengths.max())  # columns of the longest row
    is_level = bool((lengths == length).all())
    blocks = [
        BlockState(
            _joined_pasts([block.self_attention for block in layer], rows, length),
            _joined_sources([block.cross_attention for block in layer]),
        )
        for layer in zip(*(state.stack.blocks for state in states))
    ]
    masks = [state.stack.memory_mask for state in states if state.stack.memory_mask is not None]
    stack = StackState(blocks, length, lowering.joined_masks(masks, rows) if masks else None)
    if is_level:
        return PromptState(stack, len(lengths))
    stack.position_ids = torch.cat([_at_the_end(part.positions, length) for part in parts])
    return PromptState(stack, len(lengths), torch.cat([_at_the_end(part.real, length) for part in parts]), lengths)


def _device(state: PromptState) -> torch.device | None:
    """The device of a state; None if it holds nothing yet."""
    block = state.stack.blocks[0]
    part = block.self_attention or block.cross_attention
    return None if part is None else part.keys.device


@dataclass
class _Columns:
    """The columns of a state: the lengths (R,) of its rows, which columns are real, and their positions (R,S)."""

    lengths: Tensor
    real: Tensor
    positions: Tensor

    @classmethod
    def of(cls, state: PromptState, device: torch.device | None) -> _Columns:
        """Those of a state, also where all of its rows have read the same number of tokens."""
        length = state.stack.length
        lengths, real, positions = state.lengths, state.real, state.stack.position_ids
        return cls(
            torch.full((state.rows,), length, device=device) if lengths is None else lengths,
            torch.ones(state.rows, length, dtype=torch.bool, device=device) if real is None else real,
            torch.arange(length, device=device).expand(state.rows, -1) if positions is None else positions,
        )


def _at_the_end(columns: Tensor, length: int) -> Tensor:
    """Columns (R,S) as the last ones of (R,length); the first ones are 0, or left out."""
    return F.pad(columns, (length - columns.shape[1], 0))  # a negative padding cuts


def _joined_pasts(parts: Sequence[KeyValues | None], rows: Sequence[int], length: int) -> KeyValues | None:
    """Keys and values (R,Hkv,length,K) of all states; None if none of them has read a token."""
    read = [part for part in parts if part is not None]
    if not read or not length:
        return None
    empty = KeyValues(*(tensor[:1, :, :0] for tensor in (read[0].keys, read[0].values)))  # (1,Hkv,0,K)
    filled = [
        part or KeyValues(*(tensor.expand(count, -1, -1, -1) for tensor in (empty.keys, empty.values)))
        for part, count in zip(parts, rows)
    ]
    return KeyValues(
        torch.cat([F.pad(part.keys, (0, 0, length - part.keys.shape[2], 0)) for part in filled]),  # on the left
        torch.cat([F.pad(part.values, (0, 0, length - part.values.shape[2], 0)) for part in filled]),
    )


def _joined_sources(parts: Sequence[KeyValues | None]) -> KeyValues | None:
    """Keys and values (R,Hkv,S,K) of all sources, padded to the longest; None without cross-attention."""
    sources = [part for part in parts if part is not None]
    if not sources:
        return None
    longest = max(part.keys.shape[2] for part in sources)  # S
    return KeyValues(
        torch.cat([F.pad(part.keys, (0, 0, 0, longest - part.keys.shape[2])) for part in sources]),
        torch.cat([F.pad(part.values, (0, 0, 0, longest - part.values.shape[2])) for part in sources]),
    )
