"""The block: self-attention, optional cross-attention, feed-forward; every Transformer here is a stack of it."""

from dataclasses import dataclass

from torch import Tensor, nn

from atento.attention.dropout import Randomness
from atento.attention.kernels import AnyMask
from atento.attention.multihead import KeyValues, MultiHeadAttention, PositionTerms
from atento.config.network import NetworkConfig
from atento.networks.layers import FeedForward, Residual, RMSNorm, make_norm


@dataclass
class BlockState:
    """What a decoder block keeps between steps: its own keys and values, and those of the encoded source."""

    own: KeyValues | None = None
    source: KeyValues | None = None

    def select(self, rows: Tensor) -> "BlockState":
        """Only those batch rows, in that order."""
        own = None if self.own is None else self.own.select(rows)
        return BlockState(own, None if self.source is None else self.source.select(rows))


class Block(nn.Module):
    """One layer, handed its parts. Shape in = shape out; the order of the sublayers is the paper's (docs/notes.md#c7).

    See docs/notes.md#c3.
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
    ) -> Tensor:
        """x (B,T,D), memory (B,S,D) -> (B,T,D). With a `state`, x holds only new positions; it is updated."""
        own = None if state is None else state.own
        read_by = self.self_attention_residual.before(x)
        out, read = self.self_attention(read_by, mask=mask, position_terms=position_terms, state=own, random=random)
        x = self.self_attention_residual.after(x, out, random)
        if state is not None:
            state.own = read

        if self.cross_attention is not None and self.cross_attention_residual is not None:
            source = memory if state is None or state.source is None else state.source
            queries = self.cross_attention_residual.before(x)
            out, read = self.cross_attention(queries, source, mask=memory_mask, random=random)
            x = self.cross_attention_residual.after(x, out, random)
            if state is not None:
                state.source = read

        out = self.feed_forward(self.feed_forward_residual.before(x), random)
        return self.feed_forward_residual.after(x, out, random)


def make_block(config: NetworkConfig, *, kind: str, layer: int, reads_source: bool = False) -> Block:
    """The block that `config` describes, for an "encoder" or a "decoder" stack, one that reads a source or not."""

    parts = config.attention

    def head_norm() -> RMSNorm | None:
        return RMSNorm(config.head_width, eps=config.norm_eps) if parts.norm else None

    def attention(kind: str) -> MultiHeadAttention:
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
            scale=parts.scale,
            kind=kind,
            layer=layer,
        )

    def residual() -> Residual:
        norm = make_norm(config.norm_kind, config.d_model, config.norm_eps)
        return Residual(norm, place=config.norm, dropout=config.dropout)

    return Block(
        self_attention=attention(kind),
        cross_attention=attention("cross") if reads_source else None,
        feed_forward=FeedForward(
            config.d_model,
            config.d_ff,
            activation=config.feed_forward.activation,
            gated=config.feed_forward.gated,
            bias=config.feed_forward.bias,
            dropout=config.feed_forward.dropout,
        ),
        residuals=[residual() for _ in range(3 if reads_source else 2)],
    )
