"""The layers of networks: norms, feed-forward, residuals, embedding, output, the block of these; initial weights."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from atento.attention.dropout import Randomness, add_dropout, dropout
from atento.attention.kernels import AnyMask
from atento.attention.multihead import KeyValues, MultiHeadAttention, PositionTerms, Projection, Selectable
from atento.config.sections.network import NetworkConfig


def _gelu_tanh(x: Tensor) -> Tensor:
    return F.gelu(x, approximate="tanh")  # a function, because a copy of a `partial` is not equal to it


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": F.relu,
    "gelu": F.gelu,
    "gelu-tanh": _gelu_tanh,
    "silu": F.silu,
    "tanh": torch.tanh,
}


class RMSNorm(nn.Module):
    """x / √(mean x² + ε) · w: the mean is not subtracted, no bias (Zhang & Sennrich 2019; T5, Llama)."""

    def __init__(self, d_model: int, *, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(d_model))
        self.eps = eps

    @property
    def gain(self) -> Tensor:
        """What a normalised vector is multiplied by, (D,)."""
        return self.weight

    def normed(self, x: Tensor) -> Tensor:
        """(...,D) -> (...,D), in float32 at least, before it is multiplied."""
        wide = x.to(torch.promote_types(x.dtype, torch.float32))
        return wide * torch.rsqrt(wide.square().mean(dim=-1, keepdim=True) + self.eps)

    def forward(self, x: Tensor) -> Tensor:
        """(...,D) -> (...,D)."""
        return self.weight * self.normed(x).to(x.dtype)


class RMSNormPlusOne(RMSNorm):
    """x / √(mean x² + ε) · (1 + w), as Gemma has it; the product is taken in float32 at least."""

    def __init__(self, d_model: int, *, eps: float) -> None:
        super().__init__(d_model, eps=eps)
        self.weight = nn.Parameter(torch.zeros(d_model))

    @property
    def gain(self) -> Tensor:
        """What a normalised vector is multiplied by, (D,)."""
        return 1.0 + self.weight

    def forward(self, x: Tensor) -> Tensor:
        """(...,D) -> (...,D)."""
        normed = self.normed(x)
        return (normed * (1.0 + self.weight.to(normed.dtype))).to(x.dtype)  # the factor in float32 too, as Gemma has it


def make_norm(config: NetworkConfig, width: int, *, bias: bool | None = None) -> nn.Module:
    """The norm that `config` describes, of vectors (...,width); `bias`: whether a LayerNorm has one, if not as there.

    See docs/notes.md#c1.
    """
    if config.norm_kind == "layer":
        return nn.LayerNorm(width, eps=config.norm_eps, bias=config.norm_bias if bias is None else bias)
    return (RMSNorm if config.norm_kind == "rms" else RMSNormPlusOne)(width, eps=config.norm_eps)


class FeedForward(nn.Module):
    """max(0, x W1 + b1) W2 + b2 at every position separately (Vaswani et al. 2017, 3.3), with other activations.

    See docs/notes.md#c2.

    `gated`: act(x W1) ⊙ (x W3) W2 (Shazeer 2020; T5 1.1, Llama); W1 and W3 are concatenated in one matrix, W1 first.
    """

    def __init__(
        self,
        d_model: int,
        d_ff: int,
        *,
        activation: str = "relu",
        gated: bool = False,
        bias: bool = True,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.inner = Projection(d_model, 2 * d_ff if gated else d_ff, bias=bias)
        self.outer = Projection(d_ff, d_model, bias=bias)
        self.activation, self.gated = ACTIVATIONS[activation], gated
        self.dropout = dropout

    def forward(self, x: Tensor, random: Randomness | None = None) -> Tensor:
        """(B,L,D) -> (B,L,D)."""
        x = self.inner(x, random)  # (B,L,D) -> (B,L,F), or (B,L,2F)
        x = self.activated(x)
        x = dropout(x, self.dropout, random) if self.training else x
        out: Tensor = self.outer(x, random)
        return out

    def activated(self, x: Tensor) -> Tensor:
        """What `inner` gives, (...,F), or (...,2F) with a gate -> what `outer` reads, (...,F)."""
        if not self.gated:
            return self.activation(x)
        x, gate = x.chunk(2, dim=-1)  # W1's part, then W3's
        return self.activation(x) * gate


class Residual(nn.Module):
    """The residual connection of a sublayer: post-norm, norm(x + f(x)), as in the paper; pre-norm, x + f(norm(x)).

    See docs/notes.md#c1.
    """

    def __init__(self, norm: nn.Module, *, norm_placement: str, dropout: float) -> None:
        super().__init__()
        self.norm = norm
        self.norm_placement, self.dropout = norm_placement, dropout

    def before(self, x: Tensor) -> Tensor:
        """The input of the sublayer, (B,L,D)."""
        normed: Tensor = self.norm(x) if self.norm_placement == "pre" else x
        return normed

    def after(self, x: Tensor, fx: Tensor, random: Randomness | None) -> Tensor:
        """The output of the residual connection, (B,L,D), from its input `x` and the sublayer's output `fx`."""
        out = add_dropout(x, fx, self.dropout, random) if self.training else x + fx
        normed: Tensor = self.norm(out) if self.norm_placement == "post" else out
        return normed


class TokenEmbedding(nn.Module):
    """ids -> vectors, times √D with `scale`; its weight may also be the output matrix.

    See docs/notes.md#c4, #c5.
    """

    def __init__(self, vocab_size: int, d_model: int, *, scale: bool = True) -> None:
        super().__init__()
        if vocab_size < 1:
            raise ValueError(f"`vocab_size` must be at least 1: got {vocab_size}")
        self.weight = nn.Parameter(torch.empty(vocab_size, d_model))
        self.scale = d_model**0.5 if scale else 1.0  # √D: vectors of deviation 1/√D become about 1

    def forward(self, ids: Tensor) -> Tensor:
        """(B,L) -> (B,L,D)."""
        x = F.embedding(ids, self.weight)
        return x * self.scale if self.scale != 1.0 else x


class OutputMatrix(nn.Module):
    """The matrix from vectors to logits over the vocabulary, untied or the embedding's, and an optional bias.

    See docs/notes.md#c5.
    """

    def __init__(self, vocab_size: int, d_model: int, *, tied: bool, bias: bool) -> None:
        super().__init__()
        self.weight = None if tied else nn.Parameter(torch.empty(vocab_size, d_model))
        self.own: nn.Module | None = None  # in place of the weight, where it has 8 bits
        self.bias = nn.Parameter(torch.zeros(vocab_size)) if bias else None

    def matrix(self, table: TokenEmbedding | None) -> Tensor:
        """The matrix, (V,D); `table` is the embedding that it may share."""
        if self.weight is not None:
            return self.weight
        if self.own is not None:
            return cast(Tensor, self.own.weight)
        if table is None:
            raise ValueError("an output matrix that is tied to the embedding needs `table`: got None")
        return table.weight

    def forward(self, x: Tensor, table: TokenEmbedding | None) -> Tensor:
        """x (...,D) -> logits (...,V)."""
        return F.linear(x, self.matrix(table), self.bias)


@dataclass
class BlockState(Selectable):
    """The cache of a decoder block: keys and values of its self-attention so far, and of its cross-attention."""

    self_attention: KeyValues | None = None
    cross_attention: KeyValues | None = None


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
        norm = make_norm(config, config.d_model)
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


@torch.no_grad()
def initialise(network: nn.Module, config: NetworkConfig) -> None:
    """Initialise the weights from PyTorch's global generator; biases are zero.

    "xavier": matrices Xavier-uniform, embeddings normal with deviation 1/√D, as the code of Vaswani et al. 2017 has
    it. "normal": deviation 0.02 throughout, as BERT and GPT have it (Devlin et al. 2019). A network on the meta
    device is left unchanged.
    """
    if next(network.parameters()).is_meta:  # drawing there would import PyTorch's compiler, which takes seconds
        return
    own_matrix = "heads.vocabulary.output.weight" if config.writes else ""
    for name, parameter in network.named_parameters():
        if ".schemes." in name or ".gates." in name or ".sparse." in name:
            continue  # position schemes and learned sparsity are initialised as in their papers
        if ".generator." in name or name.startswith("source_features.") or name.endswith(".transitions"):
            continue  # a generator and features have other widths, and initialise themselves, as transitions do, at 0
        if parameter.dim() < 2:
            if name.endswith("bias"):
                nn.init.zeros_(parameter)
        elif config.initializer == "normal":
            nn.init.normal_(parameter, std=0.02)
        elif "embedding" in name or name == own_matrix or name.endswith(".segments"):
            # scaled by √D, or matched with normed vectors as the output matrix: √D of them add up to about 1
            matched = (
                "embedding" not in name or config.embedding.scaled or (config.output.tied and not config.output.scaled)
            )
            nn.init.normal_(parameter, std=config.d_model**-0.5 if matched else 1.0)
        elif name.endswith("attention.input.weight"):  # queries, keys and values, each with its own bound
            width, shared = config.head_width, config.kv_heads * config.head_width
            queries, *keys_values = parameter.split([config.n_heads * width, shared, shared])
            for part in (queries, *keys_values):
                nn.init.xavier_uniform_(part)
            if config.attention.scale is not None:
                queries.mul_(width**-0.5 / config.attention.scale)  # scores begin as large as with 1/√K
        else:
            nn.init.xavier_uniform_(parameter)
