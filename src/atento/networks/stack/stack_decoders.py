"""The networks of the stack that write: decoder-only (GPT, Llama, prefix LM) and the encoder-decoder Transformer.

See docs/notes.md#c9, #c10; for the encoder-decoder #a11, #c6, #c7, #c8.
"""

from __future__ import annotations

from typing import cast

from torch import Tensor

from atento.attention.dropout import Randomness
from atento.config.sections.network import NetworkConfig
from atento.networks.heads import make_heads
from atento.networks.interface import layer_count, of_new_tokens
from atento.networks.layers import TokenEmbedding
from atento.networks.output import Output
from atento.networks.stack.frozen_features import FrozenFeatures
from atento.networks.stack.stack import MaskArgument, SingleStack, Stack, StackNetwork, StackState
from atento.networks.stack.stack_positions import InputLayer


class Decoder(SingleStack):
    """Decodes a text under a causal mask; `mask` replaces it, as for a prefix LM."""

    def __init__(self, config: NetworkConfig) -> None:
        super().__init__(config, kind="decoder")
        self.heads = make_heads(config)
        self.reset_parameters()

    def forward(
        self,
        ids: Tensor,
        *,
        token_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        mask: MaskArgument = None,
        state: StackState | None = None,
        random: Randomness | None = None,
        project: bool = True,
    ) -> Output:
        """One forward pass, or one cached step of it.

        Args:
            ids: (B,T); with a `state` only the new ones.
            token_mask: boolean (B,T), True = a real token; with a `state` it covers the cached positions too.
            position_ids: (B,T); None: they continue from the state's length.
            mask: None = causal (a list: one a layer); the padding mask is always joined to it.
            state: from `begin()`; updated in place and returned.
            random: the random numbers of dropout in training.
            project: False leaves `logits` None, for losses that do their own projection.

        Returns:
            Output with hidden (B,T,D), of the last layer or the mix of layers, logits (B,T,V) and state.

        Raises:
            CapabilityError: a mask that looks ahead, with a state: cached keys and values are not recomputed.
        """
        hidden = self.hidden(
            ids, token_mask=token_mask, position_ids=position_ids, mask=mask, random=random, state=state
        )
        return Output(hidden, self.project(hidden) if project else None, state=state)

    def begin(self) -> StackState:
        """An empty decode state for `forward(..., state=...)`."""
        return self.stack.begin()


class EncoderDecoder(StackNetwork):
    """Encodes a source under a bidirectional mask, and decodes a target under a causal one.

    Tied embeddings: source, target and output share one matrix (Press & Wolf 2017).
    """

    def __init__(self, config: NetworkConfig) -> None:
        super().__init__()
        if config.vocab_size < 1:
            raise ValueError(f"`vocab_size` must be at least 1: got {config.vocab_size}")
        self.config = config
        scale, features = config.embedding.scaled, config.features
        one = features is not None or config.embedding.shared  # of targets alone, or of both sides
        size = config.vocab_size if features is None else config.target_vocab_size
        self.embedding = TokenEmbedding(size, config.d_model, scale=scale)
        self.target_embedding = None if one else TokenEmbedding(config.target_vocab_size, config.d_model, scale=scale)
        self.source_features = None if features is None else FrozenFeatures(features, config.d_model)
        self.source_inputs, self.target_inputs = InputLayer(config), InputLayer(config)
        self.encoder = Stack(config, kind="encoder", n_layers=config.n_layers)
        self.decoder = Stack(config, kind="decoder", n_layers=config.decoder_layers, reads_source=True)
        self.heads = make_heads(config)
        self.reset_parameters()

    def embed_source(self, source_ids: Tensor, token_mask: Tensor | None) -> Tensor:
        """The vectors (B,S,D) of source tokens (B,S): those of a table, or features of a trained encoder."""
        read = self.source_features
        return cast(Tensor, self.embedding(source_ids) if read is None else read(source_ids, token_mask))

    def encode(
        self,
        source_ids: Tensor,
        *,
        source_token_mask: Tensor | None = None,
        mask: MaskArgument = None,
        random: Randomness | None = None,
        depth: int | None = None,
    ) -> Tensor:
        """source_ids (B,S), token mask (B,S) True = real -> encoded (B,S,D); after `depth` layers, if given."""
        vectors = self.embed_source(source_ids, source_token_mask)
        x = self.source_inputs(vectors, token_mask=source_token_mask, random=random)
        return cast(Tensor, self.encoder(x, mask=mask, token_mask=source_token_mask, random=random, depth=depth))

    def forward(
        self,
        source_ids: Tensor | None,
        target_ids: Tensor | None = None,
        *,
        source_token_mask: Tensor | None = None,
        target_token_mask: Tensor | None = None,
        target_position_ids: Tensor | None = None,
        mask: MaskArgument = None,
        encoded: Tensor | None = None,
        state: StackState | None = None,
        random: Randomness | None = None,
        project: bool = True,
    ) -> Output:
        """One forward pass, or one cached step of it.

        Args:
            source_ids: (B,S); None when `encoded` (B,S,D) or a `state` that has seen the source is given.
            target_ids: (B,T), shifted right (beginning with `config.start_id`); with a `state` only the new ones. None:
                only the source is encoded, for heads on the encoder; `hidden` is then `encoded`.
            source_token_mask: boolean (B,S), True = a real token.
            target_token_mask: boolean (B,T), in the same way; with a `state`, it covers the cached positions too.
            target_position_ids: (B,T); None: they continue from the state's length.
            mask: replaces the decoder's causal mask; the padding mask is always joined to it.
            state: from `begin()`; updated in place and returned.
            random: the random numbers of dropout in training.
            project: False leaves `logits` None, for losses that do their own projection.

        Returns:
            Output with hidden (B,T,D), logits (B,T,V), encoded (B,S,D) and state.
        """
        has_source = state is not None and (state.length > 0 or state.memory_mask is not None)
        if encoded is None and not has_source:
            if source_ids is None:
                raise ValueError("give `source_ids`, or `encoded`, or a `state` that has seen the source")
            encoded = self.encode(source_ids, source_token_mask=source_token_mask, random=random)
        if target_ids is None:
            if encoded is None:
                raise ValueError("a `state` that has seen the source needs `target_ids`")
            return Output(encoded, encoded=encoded)
        x = self.target_inputs(
            self.table(target_ids),
            0 if state is None else state.length,
            position_ids=target_position_ids,
            token_mask=of_new_tokens(target_token_mask, target_ids),
            random=random,
        )
        hidden = self.decoder(
            x,
            mask=mask,
            token_mask=target_token_mask,
            memory=encoded,
            memory_token_mask=source_token_mask,
            position_ids=target_position_ids,
            state=state,
            random=random,
        )
        return Output(hidden, self.project(hidden) if project else None, encoded=encoded, state=state)

    def features(self, ids: Tensor, *, token_mask: Tensor | None = None, layer: int = -1) -> Tensor:
        """As `Network.features`, of the source."""
        return self.encode(ids, source_token_mask=token_mask, depth=layer_count(layer, self.config.n_layers))

    def begin(self) -> StackState:
        """An empty decode state for `forward(..., state=...)`."""
        return self.decoder.begin()

    @property
    def table(self) -> TokenEmbedding:
        """The embedding of target tokens."""
        return self.embedding if self.target_embedding is None else self.target_embedding


def stack_that_writes(network: EncoderDecoder | Decoder) -> Stack:
    """The stack of a network that writes."""
    return network.decoder if isinstance(network, EncoderDecoder) else network.stack
