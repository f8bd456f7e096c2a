"""The state of plain steps, and the join of such states: the plain twin of `joined_states` and `slots`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from atento.attention import prepared_mask
from atento.attention.multihead import KeyValues, Selectable
from atento.networks.layers import BlockState
from atento.networks.stack.stack import StackState


@dataclass
class PromptState(Selectable):
    """The state of a network; where rows have read different numbers of tokens, also what is real of its columns."""

    stack: Any  # a `StackState`, or the state of a recurrent network, whose rows have no columns
    rows: int  # the number of rows
    real: Tensor | None = None  # boolean (B,S), False where a row has no token; real tokens are last in each row
    lengths: Tensor | None = None  # (B,), the position of the next token of each row

    def select(self, rows: Tensor) -> PromptState:
        """Only those batch rows, in that order."""
        return replace(super().select(rows), rows=len(rows))

    def next(self, tokens: Tensor) -> tuple[Tensor | None, Tensor | None]:
        """The token mask (B,S+T) and the positions (B,T) with which tokens (B,T) are read; None: as all are real."""
        if self.real is None or self.lengths is None:
            return None, None
        real = torch.cat([self.real, torch.ones_like(tokens, dtype=torch.bool)], dim=1)  # (B,S+T)
        return real, self.lengths.unsqueeze(1) + torch.arange(tokens.shape[1], device=tokens.device)

    def after(self, stack: object, real: Tensor | None, count: int) -> PromptState:
        """The state after `count` more tokens of each row."""
        return PromptState(stack, self.rows, real, None if self.lengths is None else self.lengths + count)


@torch.inference_mode()
def joined(states: Sequence[PromptState]) -> PromptState:
    """The rows of all states in their order, in new memory; rows may have read different numbers of tokens.

    Columns are padded on the left, so that the last tokens of all rows are in the same column, and `real` hides the
    padding. Columns that no row reads any more are left out. Sources are padded on the right.
    """
    first, *others = states
    if not isinstance(first.stack, StackState):
        return PromptState(first.stack.joined([state.stack for state in others]), sum(state.rows for state in states))
    first_blocks = [state.stack.blocks[0] for state in states]  # a state that holds nothing yet knows no device
    held = [part for block in first_blocks for part in (block.self_attention, block.cross_attention) if part]
    device = held[0].keys.device if held else None
    lengths, real, positions = zip(*(_columns(state, device) for state in states))
    all_lengths, rows = torch.cat(lengths), [state.rows for state in states]  # (R,)
    length = int(all_lengths.max())  # columns of the longest row
    blocks = [
        BlockState(
            _joined_pasts([block.self_attention for block in layer], rows, length),
            _joined_sources([block.cross_attention for block in layer]),
        )
        for layer in zip(*(state.stack.blocks for state in states))
    ]
    masks = [state.stack.memory_mask for state in states if state.stack.memory_mask is not None]
    stack = StackState(blocks, length, prepared_mask.joined_masks(masks, rows) if masks else None)
    if bool((all_lengths == length).all()):
        return PromptState(stack, len(all_lengths))
    # columns (R,S) become the last ones of (R,length): the first ones are 0, or left out by a negative padding
    at_the_end = [torch.cat([F.pad(x, (length - x.shape[1], 0)) for x in parts]) for parts in (real, positions)]
    stack.position_ids = at_the_end[1]
    return PromptState(stack, len(all_lengths), at_the_end[0], all_lengths)


def _columns(state: PromptState, device: torch.device | None) -> tuple[Tensor, Tensor, Tensor]:
    """The lengths (R,) of the rows of a state, which of its columns are real, and their positions (R,S)."""
    length = state.stack.length
    lengths, real, positions = state.lengths, state.real, state.stack.position_ids
    return (
        torch.full((state.rows,), length, device=device) if lengths is None else lengths,
        torch.ones(state.rows, length, dtype=torch.bool, device=device) if real is None else real,
        torch.arange(length, device=device).expand(state.rows, -1) if positions is None else positions,
    )


def _joined_pasts(parts: Sequence[KeyValues | None], rows: Sequence[int], length: int) -> KeyValues | None:
    """Keys and values (R,Hkv,length,K) of all states; None if none of them has read a token."""
    read = [part for part in parts if part is not None]
    if not read or not length:
        return None
    empty = [tensor[:1, :, :0] for tensor in (read[0].keys, read[0].values)]  # (1,Hkv,0,K)
    filled = [
        part or KeyValues(*(tensor.expand(count, -1, -1, -1) for tensor in empty)) for part, count in zip(parts, rows)
    ]
    return _padded(filled, length, on_the_left=True)


def _joined_sources(parts: Sequence[KeyValues | None]) -> KeyValues | None:
    """Keys and values (R,Hkv,S,K) of all sources, padded to the longest; None without cross-attention."""
    sources = [part for part in parts if part is not None]
    return _padded(sources, max(part.keys.shape[2] for part in sources)) if sources else None


def _padded(parts: Sequence[KeyValues], length: int, *, on_the_left: bool = False) -> KeyValues:
    """Keys and values of all parts, padded to so many columns."""

    def cat(tensors: Sequence[Tensor]) -> Tensor:
        missing = [length - tensor.shape[2] for tensor in tensors]  # below 0: cut
        around = [(0, 0, count, 0) if on_the_left else (0, 0, 0, count) for count in missing]
        return torch.cat([F.pad(tensor, each) for tensor, each in zip(tensors, around)])

    return KeyValues(cat([part.keys for part in parts]), cat([part.values for part in parts]))
