"""The small parts of networks: norms, residuals, feed-forward, convolution, embedding, output; initial weights."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from atento.attention.dropout import Randomness, add_dropout, dropout, fresh
from atento.attention.multihead import Projection
from atento.config.sections.network import NetworkConfig
from atento.config.sections.network_parts import ConvolutionConfig

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": F.relu,
    "gelu": F.gelu,
    "gelu-tanh": partial(F.gelu, approximate="tanh"),
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

    def forward(self, x: Tensor) -> Tensor:
        """(...,D) -> (...,D); the square is taken in float32 at least."""
        wide = x.to(torch.promote_types(x.dtype, torch.float32))
        normed = wide * torch.rsqrt(wide.square().mean(dim=-1, keepdim=True) + self.eps)
        return self.weight * normed.to(x.dtype)


class RMSNormPlusOne(nn.Module):
    """x / √(mean x² + ε) · (1 + w), as Gemma has it; the product is taken in float32 at least."""

    def __init__(self, d_model: int, *, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(d_model))
        self.eps = eps

    @property
    def gain(self) -> Tensor:
        """What a normalised vector is multiplied by, (D,)."""
        return 1.0 + self.weight

    def forward(self, x: Tensor) -> Tensor:
        """(...,D) -> (...,D)."""
        wide = x.to(torch.promote_types(x.dtype, torch.float32))
        normed = wide * torch.rsqrt(wide.square().mean(dim=-1, keepdim=True) + self.eps)
        return (normed * (1.0 + self.weight.to(wide.dtype))).to(x.dtype)  # the factor in float32 too, as Gemma has it


def make_norm(kind: str, d_model: int, eps: float, *, bias: bool = True) -> nn.Module:
    """The norm of that kind, "layer" (with a bias or without), "rms" or "rms-plus-one" (docs/notes.md#c1)."""
    if kind == "layer":
        return nn.LayerNorm(d_model, eps=eps, bias=bias)
    return (RMSNorm if kind == "rms" else RMSNormPlusOne)(d_model, eps=eps)


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
        if self.gated:
            x, gate = x.chunk(2, dim=-1)  # W1's part, then W3's
            x = self.activation(x) * gate
        else:
            x = self.activation(x)
        if self.training and self.dropout:
            x = dropout(x, self.dropout, fresh(random))
        out: Tensor = self.outer(x, random)
        return out


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
        if self.training and self.dropout:
            out = add_dropout(x, fx, self.dropout, fresh(random))
        else:
            out = x + fx
        normed: Tensor = self.norm(out) if self.norm_placement == "post" else out
        return normed


class TokenEmbedding(nn.Module):
    """ids -> vectors, times √D with `scale`; its weight may also be the output matrix.

    See docs/notes.md#c4, #c5.
    """

    def __init__(self, vocab_size: int, d_model: int, *, scale: bool = True) -> None:
        super().__init__()
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

    @property
    def is_tied(self) -> bool:
        """Whether the matrix is the embedding's."""
        return self.weight is None and self.own is None

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


class LayerMix(nn.Module):
    """γ Σ_j softmax(w)_j h_j: the input of a task, w and γ learned with the task (Peters et al. 2018, equation 1).

    With `norm` each layer is first normalised, token by token and without scale or shift. (The published programs
    take mean and variance over the batch, which makes a sentence's vectors depend on its neighbours.)
    """

    def __init__(self, n_layers: int, *, norm: bool = False) -> None:
        super().__init__()
        self.weights = nn.Parameter(torch.zeros(n_layers))
        self.gamma = nn.Parameter(torch.ones(()))
        self.norm = norm

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Equal weights of all layers, γ = 1."""
        nn.init.zeros_(self.weights)
        nn.init.ones_(self.gamma)

    def forward(self, layers: Tensor) -> Tensor:
        """layers (N,B,L,W) -> (B,L,W)."""
        return self._mixed(F.layer_norm(layers, layers.shape[-1:]) if self.norm else layers)  # without scale and shift

    def joined(self, layers: Sequence[Tensor]) -> Tensor:
        """N layers (B,L,W), normalised if the mix does so -> (B,L,N·W), each token's layers one behind the other.

        These vectors do not depend on w and γ, and means over tokens can be mixed as well as tokens.
        """
        normed = [F.layer_norm(layer, layer.shape[-1:]) for layer in layers] if self.norm else layers
        return torch.cat(tuple(normed), dim=-1)

    def of_joined(self, layers: Tensor) -> Tensor:
        """layers (B,L,N·W) as `joined` returns them -> (B,L,W)."""
        return self._mixed(layers.unflatten(-1, (len(self.weights), -1)).movedim(-2, 0))  # (B,L,N·W) -> (N,B,L,W)

    def _mixed(self, layers: Tensor) -> Tensor:
        mixed: Tensor = torch.tensordot(torch.softmax(self.weights, dim=0), layers, dims=1)  # Σ over layers, (B,L,W)
        return self.gamma * mixed


class InputConvolution(nn.Module):
    """norm(x + act(convolution of the input)) of the output x of the first layer (He et al. 2021, section 5.1)."""

    def __init__(self, config: NetworkConfig, convolution: ConvolutionConfig) -> None:
        super().__init__()
        self.conv = nn.Conv1d(
            config.d_model,
            config.d_model,
            convolution.width,
            padding=(convolution.width - 1) // 2,  # as many positions out as in
            groups=convolution.groups,
        )
        self.norm = make_norm(config.norm_kind, config.d_model, config.norm_eps, bias=config.norm_bias)
        self.activation = ACTIVATIONS[convolution.activation]
        self.dropout = config.dropout

    def forward(self, inputs: Tensor, x: Tensor, token_mask: Tensor | None, random: Randomness | None = None) -> Tensor:
        """The input of the stack and the output of its first layer, (B,L,D) each -> (B,L,D).

        Padding in `token_mask` (B,L) counts as zeros.
        """
        if token_mask is not None:
            inputs = inputs.masked_fill(~token_mask.unsqueeze(-1), 0.0)  # as beyond the ends of a row
        local = self.conv(inputs.transpose(-2, -1)).transpose(-2, -1)  # over positions
        if self.training and self.dropout:
            local = dropout(local, self.dropout, fresh(random))
        out: Tensor = self.norm(x + self.activation(local))
        return out


def input_convolution(config: NetworkConfig) -> InputConvolution | None:
    """The convolution that `config` describes; None: there is none."""
    return None if config.convolution is None else InputConvolution(config, config.convolution)


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
        if ".generator." in name:
            continue  # it has other widths and initialises itself
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
        elif name.endswith("attention.input.weight"):
            _attention(parameter, config)
        else:
            nn.init.xavier_uniform_(parameter)


def _attention(stacked: nn.Parameter, config: NetworkConfig) -> None:
    """Initialise queries, keys and values, each with its own bound; queries compensate for a scale that is not 1/√K."""
    shared = config.kv_heads
    width = config.head_width
    queries, *keys_values = stacked.split([config.n_heads * width, shared * width, shared * width])
    for part in (queries, *keys_values):
        nn.init.xavier_uniform_(part)
    if config.attention.scale is not None:
        queries.mul_(width**-0.5 / config.attention.scale)  # scores begin as large as with 1/√K
