"""A stack of equal blocks, the norm that ends a pre-norm stack, and the lowering of its masks once for all layers."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from atento.attention.dropout import Randomness
from atento.attention.lowering import LoweredMask, check_boolean, lower
from atento.attention.masks import Mask, padding
from atento.attention.multihead import MultiHeadAttention
from atento.attention.relative_terms import QueryKeyPositions
from atento.config.network import NetworkConfig
from atento.errors import CapabilityError
from atento.networks.layers import make_norm
from atento.networks.stack.block import BlockState, make_block
from atento.networks.stack.masks import default_masks
from atento.networks.stack.positions import LayerPositions

_LONG = 512  # keys from which on it is worth the while to skip some
MaskArgument = Mask | Tensor | Sequence[Mask] | None


@dataclass
class StackState:
    """What a decoder keeps between steps: one state a block, how many positions it has seen, and the source's mask.

    `position_ids` (B,S) are where the seen tokens stand, kept only if they were given.
    """

    blocks: list[BlockState]
    length: int = 0
    memory_mask: LoweredMask | None = None
    position_ids: Tensor | None = None

    def select(self, rows: Tensor) -> "StackState":
        """Only those batch rows, in that order."""
        mask = None if self.memory_mask is None else self.memory_mask.select(rows)
        ids = None if self.position_ids is None else self.position_ids.index_select(0, rows)
        return StackState([block.select(rows) for block in self.blocks], self.length, mask, ids)


class Stack(nn.Module):
    """N blocks, one after the other; (B,L,D) -> (B,L,D)."""

    def __init__(
        self,
        config: NetworkConfig,
        *,
        kind: str,
        n_layers: int,
        masks: Sequence[Mask] | None = None,
        reads_source: bool = False,
    ) -> None:
        """`masks` are those of self-attention, one a layer, where a call gives none; None: as `config` says."""
        super().__init__()
        self.blocks = nn.ModuleList(
            make_block(config, kind=kind, layer=layer, reads_source=reads_source) for layer in range(n_layers)
        )
        self.positions = LayerPositions(config, kind=kind, n_layers=n_layers)
        self.norm = make_norm(config.norm_kind, config.d_model, config.norm_eps) if config.norm == "pre" else None
        self.masks = list(default_masks(config, kind=kind, n_layers=n_layers) if masks is None else masks)

    def forward(
        self,
        x: Tensor,
        *,
        mask: MaskArgument = None,
        token_mask: Tensor | None = None,
        memory: Tensor | None = None,
        memory_token_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        state: StackState | None = None,
        random: Randomness | None = None,
        depth: int | None = None,
    ) -> Tensor:
        """x (B,T,D) through every block. `mask` replaces the default masks (a list: one a layer); padding is joined.

        Token i stands at position i, after what the state has seen, or where `position_ids` (B,T) say. With a `depth`
        below the number of blocks, only so many run, and the vectors are those between two blocks, without a last norm.
        """
        depth = len(self.blocks) if depth is None else depth
        masks = self._masks(x, mask, token_mask, position_ids, state)
        memory_mask = None if state is None else state.memory_mask
        if memory_mask is None and memory is not None:
            full = None if memory_token_mask is None else padding(memory_token_mask)
            memory_mask = lower(full, 1, memory.shape[1], x.device)  # every query alike: one row stands for all
        offset = 0 if state is None else state.length
        terms = self.positions.terms(self._positions(x, position_ids, state), x.dtype)
        for index, block in enumerate(self.blocks):
            if index == depth:
                return x
            x = block(
                self.positions.add(index, x, offset, position_ids),
                mask=masks[index],
                position_terms=terms[index],
                memory=memory,
                memory_mask=memory_mask,
                state=None if state is None else state.blocks[index],
                random=random,
            )
        if state is not None:
            state.length, state.memory_mask = state.length + x.shape[1], memory_mask
        return x if self.norm is None else self.norm(x)

    def _positions(self, x: Tensor, position_ids: Tensor | None, state: StackState | None) -> QueryKeyPositions:
        """Where queries and keys stand; the state remembers positions that were given."""
        seen = 0 if state is None else state.length
        if position_ids is None:
            if state is not None and state.position_ids is not None:
                raise ValueError("a decode state that was given `position_ids` needs them at every step")
            return QueryKeyPositions.arange(x.shape[1], seen + x.shape[1], x.device)
        keys = position_ids
        if state is not None:
            if seen and state.position_ids is None:
                raise ValueError("a decode state that was given no `position_ids` takes none later")
            keys = position_ids if state.position_ids is None else torch.cat([state.position_ids, position_ids], dim=1)
            state.position_ids = keys
        return QueryKeyPositions(position_ids, keys, False)

    def _masks(
        self,
        x: Tensor,
        mask: MaskArgument,
        token_mask: Tensor | None,
        position_ids: Tensor | None,
        state: StackState | None,
    ) -> list[LoweredMask]:
        given = self.masks if mask is None else mask
        masks: list[Mask | Tensor] = list(given) if isinstance(given, Sequence) else [given]
        if isinstance(given, Sequence) and len(masks) != len(self.blocks):
            raise ValueError(f"a list of masks gives one a layer: got {len(masks)} for {len(self.blocks)} layers")
        if all(one is masks[0] for one in masks):  # made ready once for all layers
            masks = masks[:1]
        key_len = x.shape[1] + (0 if state is None else state.length)
        whole: list[Mask | Tensor] = []
        for one in masks:
            if state is not None and not (isinstance(one, Mask) and not one.looks_ahead):
                got = repr(one) if isinstance(one, Mask) else f"a matrix of shape {tuple(one.shape)}"
                raise CapabilityError(f"a mask that looks ahead cannot be cached: got {got} with a decode state")
            if token_mask is not None:
                joined = padding(token_mask)
                one = one & joined if isinstance(one, Mask) else check_boolean(one) & joined.dense(1, key_len, x.device)
            whole.append(one)
        # spans that heads have learned are masks too; joined to the mask, a kernel skips what no head sees
        spans = {} if position_ids is not None or key_len <= _LONG else self.positions.spans()
        if spans and len(whole) == 1:
            whole = whole * len(self.blocks)
        for layer, span in spans.items():
            own = whole[layer]
            whole[layer] = own & span if isinstance(own, Mask) else own
        lowered = [lower(one, x.shape[1], key_len, x.device) for one in whole]
        return lowered * len(self.blocks) if len(lowered) == 1 else lowered

    def begin(self) -> StackState:
        """An empty decode state."""
        return StackState([BlockState() for _ in self.blocks])

    def read(self, memory: Tensor, token_mask: Tensor | None) -> StackState:
        """A decode state that has read `memory` (B,S,D): the cross-attention's keys and values of every block."""
        state = self.begin()
        for block, kept in zip(self.blocks, state.blocks):
            if isinstance(block.cross_attention, MultiHeadAttention):
                kept.source = block.cross_attention.key_values(memory)
        real = None if token_mask is None or bool(token_mask.all()) else padding(token_mask)
        state.memory_mask = lower(real, 1, memory.shape[1], memory.device)
        return state
