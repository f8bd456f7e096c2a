"""The block: self-attention, optional cross-attention, feed-forward; every Transformer here is a stack of it."""

from dataclasses import dataclass

from torch import Tensor, nn

from atento.attention.dropout import Randomness
from atento.attention.kernels import AnyMask
from atento.attention.multihead import KeyValues, MultiHeadAttention, PositionTerms
from atento.config.sections.network import NetworkConfig
from atento.networks.layers import FeedForward, Residual, RMSNorm, make_norm


@dataclass
class BlockState:
    """The cache of a decoder block: keys and values of its self-attention so far, and of its cross-attention."""

    self_attention: KeyValues | None = None
    cross_attention: KeyValues | None = None

    def select(self, rows: Tensor) -> "BlockState":
        """The state of those batch rows, in that order."""
        self_attention, cross_attention = self.self_attention, self.cross_attention
        return BlockState(
            None if self_attention is None else self_attention.select(rows),
            None if cross_attention is None else cross_attention.select(rows),
        )


class Block(nn.Module):
    """One layer of a Transformer: self-attention, cross-attention if it reads a source, feed-forward.

    Each sublayer has a residual connection with its norm (docs/notes.md#c3, #c7).

    Args:
        self_attention: attends to the input itself.
        cross_attention: attends to the encoded source; None: there is none.
        feed_forward: applied to every position separately.
        residuals: the residual connections of the sublayers, in their order.
    """

    def __init__(
        self,
        *,
        self_attention: MultiHeadAttention,
        cross_attention: MultiHeadAttention | None,
        feed_forward: FeedForward,
        residuals: list[Residual],
    ) -> None:
        super().__init__()
        self.self_attention, self.cross_attention = self_attention, cross_attention
        self.feed_forward = feed_forward
        self.self_attention_residual, *between, self.feed_forward_residual = residuals
        self.cross_attention_residual = between[0] if between else None

    def forward(
        self,
        x: Tensor,
        *,
        mask: AnyMask,
        position_terms: PositionTerms | None = None,
        memory: Tensor | None = None,
        memory_mask: AnyMask = None,
        state: BlockState | None = None,
        random: Randomness | None = None,
        layer: int | None = None,
    ) -> Tensor:
        """Run the sublayers, one after the other.

        Args:
            x: (B,T,D); with a `state` only the new positions.
            mask: which keys each query of self-attention may attend to.
            position_terms: position schemes of self-attention.
            memory: the encoded source (B,S,D); not needed if the state holds its keys and values.
            memory_mask: which positions of the source may be attended to.
            state: the cache; updated in place.
            random: the randomness of dropout.
            layer: the number of the layer, for `observe`; None: that of the attention modules.

        Returns:
            (B,T,D).
        """
        cache = None if state is None else state.self_attention  # keys and values of earlier positions
        queries = self.self_attention_residual.before(x)
        out, keys_values = self.self_attention(
            queries, mask=mask, position_terms=position_terms, state=cache, random=random, layer=layer
        )
        x = self.self_attention_residual.after(x, out, random)
        if state is not None:
            state.self_attention = keys_values

        if self.cross_attention is not None and self.cross_attention_residual is not None:
            # the source's keys and values are the same at every step: computed once, then taken from the cache
            source = memory if state is None or state.cross_attention is None else state.cross_attention
            queries = self.cross_attention_residual.before(x)
            out, keys_values = self.cross_attention(queries, source, mask=memory_mask, random=random, layer=layer)
            x = self.cross_attention_residual.after(x, out, random)
            if state is not None:
                state.cross_attention = keys_values

        out = self.feed_forward(self.feed_forward_residual.before(x), random)
        return self.feed_forward_residual.after(x, out, random)


def make_block(config: NetworkConfig, *, kind: str, layer: int, reads_source: bool = False) -> Block:
    """The block that `config` describes, for an "encoder" or a "decoder" stack, one that reads a source or not."""

    parts = config.attention

    def head_norm() -> RMSNorm | None:
        return RMSNorm(config.head_width, eps=config.norm_eps) if parts.norm else None

    def attention(kind: str, scale: float | None) -> MultiHeadAttention:
        return MultiHeadAttention(
            config.d_model,
            config.n_heads,
            n_kv_heads=parts.n_kv_heads,
            d_head=parts.d_head,
            bias=parts.bias,
            output_bias=parts.output_bias,
            query_norm=head_norm(),
            key_norm=head_norm(),
            dropout=parts.dropout,
            scale=scale,
            kind=kind,
            layer=layer,
        )

    def residual(number: int) -> Residual:
        norm = make_norm(config.norm_kind, config.d_model, config.norm_eps, bias=config.norm_bias)
        if layer == number == 0 and config.norm == "pre" and not config.first_norm:  # the input has just been normed
            norm = nn.Identity()
        return Residual(norm, norm_placement=config.norm, dropout=config.dropout)

    return Block(
        self_attention=attention(kind, config.score_scale(layer)),
        cross_attention=attention("cross", parts.scale) if reads_source else None,
        feed_forward=FeedForward(
            config.d_model,
            config.d_ff,
            activation=config.feed_forward.activation,
            gated=config.feed_forward.gated,
            bias=config.feed_forward.bias,
            dropout=config.feed_forward.dropout,
        ),
        residuals=[residual(number) for number in range(3 if reads_source else 2)],
    )
