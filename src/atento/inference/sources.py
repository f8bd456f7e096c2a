"""Reads the sources of an encoder-decoder for decoding: on a CPU without padding, elsewhere by its own pass."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from atento.inference.encoder_reading import PackedStack, pack_stack, why_not_packed
from atento.inference.packed_linear import Precision
from atento.inference.packed_modules import pack_modules
from atento.inference.plain import moved_to_front, padded
from atento.inference.unpadded_rows import Unpadded
from atento.networks.stack.encoder_decoder import EncoderDecoder


class SourceReader:
    """The encoder of an encoder-decoder on packed products.

    Args:
        network: a copy, whose encoder is packed.
        precision: of the products.
    """

    def __init__(self, network: EncoderDecoder, precision: Precision) -> None:
        self.device, dtype = network.embedding.weight.device, network.embedding.weight.dtype
        self._network, self._packed = network, None
        if self.device.type == "cpu" and why_not_packed(network.encoder) is None:
            pack_stack(network.encoder, precision, dtype)
            self._packed = PackedStack(network.encoder, network.config.norm == "pre", precision, dtype)
        else:
            pack_modules(network, precision)

    def encoded(self, ids: Tensor, token_mask: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """ids (B,S) -> encoded (B,S,D) and the mask of real tokens (B,S), both with padding behind the tokens."""
        ids, token_mask = moved_to_front(ids, token_mask)
        if self._packed is None:
            return self._network.encode(ids, source_token_mask=token_mask), token_mask
        real = torch.ones_like(ids, dtype=torch.bool) if token_mask is None else token_mask
        tokens = Unpadded(real)
        return tokens.pad(self._read(tokens.take(ids), tokens.positions, tokens.lengths)), token_mask

    def rows(self, sources: Sequence[Sequence[int]]) -> Tensor:
        """Some sources, the longest first -> encoded (N,D), one source under the other."""
        lengths = torch.tensor([len(source) for source in sources], device=self.device)
        if self._packed is None:
            ids, real = padded([list(source) for source in sources], self._network.config.pad_id, self.device)
            encoded: Tensor = self._network.encode(ids, source_token_mask=real)
            return encoded[real]
        ids = torch.tensor([[token for source in sources for token in source]], device=self.device)
        positions = torch.cat([torch.arange(len(source), device=self.device) for source in sources]).unsqueeze(0)
        return self._read(ids, positions, lengths)

    def _read(self, ids: Tensor, positions: Tensor, lengths: Tensor) -> Tensor:
        """ids and positions (1,N) of rows of those lengths (B,) -> (N,D)."""
        assert self._packed is not None
        x = self._network.source_inputs(self._network.embedding(ids), position_ids=positions)
        return self._packed(x.squeeze(0), lengths)
