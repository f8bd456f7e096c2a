"""The encoder-decoder Transformer of Vaswani et al. 2017, as the one stack twice (A11, C6, C7, C8)."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from atento.attention.dropout import Randomness, dropout, fresh
from atento.attention.masks import bidirectional, causal
from atento.attention.sparse import SparseAttention
from atento.config.network import NetworkConfig
from atento.networks.layers import TokenEmbedding
from atento.networks.output import Output
from atento.networks.positions import AddedPositions, input_positions
from atento.networks.stack import MaskArgument, Stack, StackState
from atento.networks.step import EncoderDecoderSteps


class EncoderDecoder(nn.Module):
    """Reads a source with every token seeing every other, writes a target with none seeing the future.

    Tied embeddings: source, target and output share one matrix (Press & Wolf 2017).
    """

    def __init__(self, config: NetworkConfig) -> None:
        super().__init__()
        if config.vocab_size < 1:
            raise ValueError(f"`vocab_size` must be at least 1: got {config.vocab_size}")
        self.config = config
        self.embedding = TokenEmbedding(config.vocab_size, config.d_model, scale=config.scale_embedding)
        self.target_embedding = (
            None
            if config.tied_embeddings
            else TokenEmbedding(config.vocab_size, config.d_model, scale=config.scale_embedding)
        )
        self.source_positions, self.target_positions = input_positions(config), input_positions(config)
        self.encoder = Stack(config, kind="encoder", n_layers=config.n_layers, own_mask=bidirectional())
        self.decoder = Stack(config, kind="decoder", n_layers=config.decoder_layers, own_mask=causal())
        self.output_weight = (
            None if config.tied_embeddings else nn.Parameter(torch.empty(config.vocab_size, config.d_model))
        )
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Matrices Xavier-uniform, embeddings normal with deviation 1/√D, biases zero, as the paper's code has it."""
        for name, parameter in self.named_parameters():
            if "positions." in name:
                continue  # a position scheme begins as its paper has it
            if "embedding" in name or name == "output_weight":
                nn.init.normal_(parameter, std=self.config.d_model**-0.5)
            elif parameter.dim() < 2:
                if name.endswith("bias"):
                    nn.init.zeros_(parameter)
            elif self.config.initializer == "normal":
                nn.init.normal_(parameter, std=0.02)
            else:
                # the stacked input matrix of attention is several: each gets the bound of its own
                stacked = name.endswith("attention.input.weight")
                for part in parameter.split(self._input_sizes() if stacked else [parameter.shape[0]]):
                    nn.init.xavier_uniform_(part)

    def _input_sizes(self) -> list[int]:
        """Rows of queries, keys and values in attention's stacked input matrix."""
        shared = self.config.n_heads if self.config.n_kv_heads is None else self.config.n_kv_heads
        return [self.config.d_model, shared * self.config.d_head, shared * self.config.d_head]

    def encode(
        self,
        source_ids: Tensor,
        *,
        source_padding_mask: Tensor | None = None,
        mask: MaskArgument = None,
        random: Randomness | None = None,
    ) -> Tensor:
        """source_ids (B,S), padding mask (B,S) True = real -> encoded (B,S,D)."""
        x = self._embed(self.embedding, self.source_positions, source_ids, 0, random)
        out: Tensor = self.encoder(x, mask=mask, padding_mask=source_padding_mask, random=random)
        return out

    def forward(
        self,
        source_ids: Tensor | None,
        target_ids: Tensor,
        *,
        source_padding_mask: Tensor | None = None,
        target_padding_mask: Tensor | None = None,
        mask: MaskArgument = None,
        encoded: Tensor | None = None,
        state: StackState | None = None,
        random: Randomness | None = None,
        project: bool = True,
    ) -> Output:
        """One forward pass, or one cached step of it.

        Args:
            source_ids: (B,S); None when `encoded` (B,S,D) or a `state` that has seen the source is given.
            target_ids: (B,T), shifted right (beginning with `config.start_id`); with a `state` only the new ones.
            source_padding_mask, target_padding_mask: boolean (B,S) and (B,T), True = a real token; with a `state`, the
                target's covers the cached positions too.
            mask: replaces the decoder's causal mask; the padding mask is always joined to it.
            state: from `begin()`; it is brought up to date and handed back.
            random: where dropout draws from while training.
            project: False leaves `logits` None, for losses that do their own projection.

        Returns:
            Output with hidden (B,T,D), logits (B,T,V), encoded (B,S,D) and state.
        """
        seen = state is not None and (state.length > 0 or state.memory_mask is not None)
        if encoded is None and not seen:
            if source_ids is None:
                raise ValueError("give `source_ids`, or `encoded`, or a `state` that has seen the source")
            encoded = self.encode(source_ids, source_padding_mask=source_padding_mask, random=random)
        table = self.embedding if self.target_embedding is None else self.target_embedding
        x = self._embed(table, self.target_positions, target_ids, 0 if state is None else state.length, random)
        hidden = self.decoder(
            x,
            mask=mask,
            padding_mask=target_padding_mask,
            memory=encoded,
            memory_padding_mask=source_padding_mask,
            state=state,
            random=random,
        )
        return Output(hidden, self.project(hidden) if project else None, encoded=encoded, state=state)

    def cost(self) -> Tensor | None:
        """What learned sparsity asks the loss to count, nats a target; None where there is none (A17)."""
        asked = [part.cost() for part in self.modules() if isinstance(part, SparseAttention)]
        found = [cost for cost in asked if cost is not None]
        return torch.stack(found).sum() if found else None

    def begin(self) -> StackState:
        """An empty decode state for `forward(..., state=...)`."""
        return self.decoder.begin()

    def steps(self) -> EncoderDecoderSteps:
        """This network as a step function, for `atento.decoding`."""
        return EncoderDecoderSteps(self)

    @property
    def projection(self) -> Tensor:
        """The output matrix (V,D)."""
        return self.embedding.weight if self.output_weight is None else self.output_weight

    def project(self, hidden: Tensor) -> Tensor:
        """hidden (...,D) -> logits (...,V) (C5)."""
        return F.linear(hidden, self.projection)

    def _embed(
        self, table: TokenEmbedding, positions: AddedPositions, ids: Tensor, offset: int, random: Randomness | None
    ) -> Tensor:
        x: Tensor = positions(table(ids), offset)
        if self.training and self.config.dropout:
            x = dropout(x, self.config.dropout, fresh(random))
        return x
