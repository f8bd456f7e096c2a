"""The layers of the attention benchmark: the same weights in Atento and in other libraries.

Each is whole (project in, attend, project out), since `torch.nn.MultiheadAttention` cannot be had without projections.
"""

import importlib.util
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from atento.attention.block_router import BlockRouter
from atento.attention.dropout import Randomness
from atento.attention.equation import AttentionArgs
from atento.attention.kernels import attend, choose
from atento.attention.lowering import LoweredMask, lower
from atento.attention.masks import Mask, blocks, causal, documents, padding, prefix, window
from atento.attention.positions import T5Bias
from atento.attention.relative_terms import QueryKeyPositions, RelativeTerms

N_HEADS, D_HEAD = 4, 64
D_MODEL = N_HEADS * D_HEAD
PLAIN_UP_TO = 4096  # tokens: the plain equation keeps several (T,T) matrices
_TORCH, _X_TRANSFORMERS = "torch.nn.MultiheadAttention", "x-transformers"


@dataclass(frozen=True)
class Setting:
    """Who may attend to whom, and what else is asked; `mask(B, T)` makes the mask, None for no mask."""

    mask: Callable[[int, int], Mask | None]
    dropout: float = 0.0
    t5: bool = False
    choice: int | None = None  # blocks of keys that each block of queries chooses, which no peer can do


def _squares(length: int, size: int = 64) -> Tensor:
    """Squares that are kept: neighbours, the first column and one more a row, drawn once. (⌈T/size⌉,⌈T/size⌉)."""
    count = math.ceil(length / size)
    at = torch.arange(count)
    kept = (at[:, None] - at).abs() <= 1
    kept[:, 0] = True
    kept[at, torch.randint(count, (count,), generator=torch.Generator().manual_seed(0))] = True
    return kept


SETTINGS: dict[str, Setting] = {
    "none": Setting(lambda b, t: None),
    "causal": Setting(lambda b, t: causal()),
    "padding": Setting(lambda b, t: padding(torch.linspace(t / 2, t, b + 2)[1:-1].long())),  # B=1: three quarters
    "prefix": Setting(lambda b, t: prefix(t // 4)),
    "window(128, 128)": Setting(lambda b, t: window(128, 128)),
    "documents of 256": Setting(lambda b, t: documents((torch.arange(t) // 256).expand(b, t))),
    "blocks of 64": Setting(lambda b, t: blocks(_squares(t), 64)),
    "causal, dropout 0.1": Setting(lambda b, t: causal(), dropout=0.1),
    "none, T5 bias": Setting(lambda b, t: None, t5=True),
    "8 chosen blocks of 64": Setting(lambda b, t: None, choice=8),
}


@dataclass(frozen=True)
class Case:
    """What all contenders are given."""

    setting: str
    length: int
    batch: int
    precision: str
    device: str

    @property
    def dtype(self) -> torch.dtype:
        """Of x and of the projections."""
        return {"float32": torch.float32, "bfloat16": torch.bfloat16}[self.precision]

    @property
    def asks(self) -> Setting:
        """The setting by its name."""
        return SETTINGS[self.setting]

    def lowered(self) -> LoweredMask:
        """The mask as our kernels take it; made once for all layers of a stack, so not within the time measured."""
        return lower(self.asks.mask(self.batch, self.length), self.length, self.length, torch.device(self.device))

    def relative(self, weight: Tensor | None) -> RelativeTerms | None:
        """Our T5 bias with the case's weights (32,H); None where the setting has none."""
        if weight is None:
            return None
        scheme = T5Bias(N_HEADS)
        scheme.weight = nn.Parameter(weight.detach())
        return RelativeTerms((scheme,), QueryKeyPositions.arange(self.length, self.length, self.device))

    def row(self, **more: Any) -> dict[str, Any]:
        """A row of the table."""
        return {
            "bench": "attention",
            "mask": self.setting,
            "length": self.length,
            "batch": self.batch,
            "precision": self.precision,
            **more,
        }


@dataclass(frozen=True)
class Inputs:
    """The same for all contenders: x (B,T,D), the projections (3D,D) and (D,D), the upstream gradient, T5's table."""

    x: Tensor
    input: Tensor
    output: Tensor
    upstream: Tensor
    t5: Tensor | None

    @staticmethod
    def of(case: Case) -> "Inputs":
        """Drawn from one seed."""
        g = torch.Generator().manual_seed(1)

        def drawn(*size: int, by: float = 1.0) -> Tensor:
            return (torch.randn(size, generator=g) * by).to(case.device, case.dtype)

        x, upstream = (drawn(case.batch, case.length, D_MODEL) for _ in range(2))
        input, output = drawn(3 * D_MODEL, D_MODEL, by=D_MODEL**-0.5), drawn(D_MODEL, D_MODEL, by=D_MODEL**-0.5)
        t5 = drawn(32, N_HEADS).float() if case.asks.t5 else None  # a table of parameters stays in float32
        return Inputs(x.requires_grad_(), input, output, upstream, t5)


@dataclass(frozen=True)
class Layer:
    """A contender: what it makes of x (B,T,D), training (so with dropout) or not, and what it learns."""

    run: Callable[[Tensor, bool], Tensor]
    learned: list[Tensor]


Build = Callable[[Case, Inputs], Layer]


def _by_head(x: Tensor) -> Tensor:
    return x.view(*x.shape[:-1], N_HEADS, D_HEAD).transpose(1, 2)  # (B,T,D) -> (B,H,T,K)


def ours(kernel: str) -> Build:
    """Our layer with that kernel."""

    def build(case: Case, given: Inputs) -> Layer:
        mask, relative = case.lowered(), case.relative(given.t5)
        input, output = (weight.clone().requires_grad_() for weight in (given.input, given.output))

        def run(x: Tensor, training: bool) -> Tensor:
            q, k, v = (_by_head(part) for part in F.linear(x, input).split(D_MODEL, dim=-1))
            dropout = case.asks.dropout if training else 0.0
            read = attend(q, k, v, mask=mask, dropout=dropout, random=Randomness(1), relative=relative, kernel=kernel)
            return F.linear(read.transpose(1, 2).flatten(2), output)

        return Layer(run, [input, output, *([] if relative is None else relative.parameters())])

    return build


def choosing(case: Case, given: Inputs) -> Layer:
    """Our layer whose queries choose blocks of keys."""
    assert case.asks.choice is not None
    router = BlockRouter(N_HEADS, D_HEAD, n=case.asks.choice).to(case.device)
    input, output = (weight.clone().requires_grad_() for weight in (given.input, given.output))

    def run(x: Tensor, training: bool) -> Tensor:
        q, k, v = (_by_head(part) for part in F.linear(x, input).split(D_MODEL, dim=-1))
        return F.linear(router.attend(q, k, v).transpose(1, 2).flatten(2), output)

    return Layer(run, [input, output, router.gate])


def _hidden(case: Case) -> tuple[Tensor | None, Tensor | None]:
    """The mask as `torch.nn` takes it, True where nobody may look: of pairs (T,T), of padded keys (B,T)."""
    allowed = case.lowered().allowed
    if allowed is None:
        return None, None
    if allowed.shape[-2] == 1:
        return None, ~allowed[:, 0, 0]
    return ~allowed[0, 0], None  # no setting has pairs that differ by batch row or head


def torch_layer(case: Case, given: Inputs) -> Layer:
    """`torch.nn.MultiheadAttention` without weights asked for, a relative bias in its additive mask."""
    layer = nn.MultiheadAttention(D_MODEL, N_HEADS, case.asks.dropout, batch_first=True)
    layer = layer.to(case.device, case.dtype)
    with torch.no_grad():
        layer.in_proj_weight.copy_(given.input)
        layer.out_proj.weight.copy_(given.output)
    pairs, padded = _hidden(case)
    relative = case.relative(given.t5)

    def run(x: Tensor, training: bool) -> Tensor:
        layer.train(training)
        added = None if relative is None else relative.scores(x, 1.0)
        shown = pairs
        if added is not None:
            shown = added.to(x.dtype).expand(len(x), -1, -1, -1).flatten(0, 1)  # (B*H,T,T)
        is_causal = case.lowered().is_causal
        out, _ = layer(x, x, x, key_padding_mask=padded, need_weights=False, attn_mask=shown, is_causal=is_causal)
        return out  # type: ignore[no-any-return]

    learned = [layer.in_proj_weight, layer.out_proj.weight]
    return Layer(run, [*learned, *([] if relative is None else relative.parameters())])


def x_transformers_layer(case: Case, given: Inputs) -> Layer:
    """`Attend` of x-transformers with flash attention, and its own T5 bias, between the same projections."""
    from x_transformers.attend import Attend
    from x_transformers.x_transformers import RelativePositionBias

    mask, is_causal = case.lowered(), case.lowered().is_causal
    attention = Attend(dropout=case.asks.dropout, causal=is_causal, heads=N_HEADS, flash=True)
    allowed = None if is_causal or mask.allowed is None else mask.allowed
    input, output = (weight.clone().requires_grad_() for weight in (given.input, given.output))
    bias = None
    if given.t5 is not None:
        bias = RelativePositionBias(scale=1.0, causal=False, num_buckets=32, max_distance=128, heads=N_HEADS)
        bias = bias.to(case.device)
        with torch.no_grad():
            bias.relative_attention_bias.weight.copy_(given.t5)

    def run(x: Tensor, training: bool) -> Tensor:
        attention.train(training)
        q, k, v = (_by_head(part) for part in F.linear(x, input).split(D_MODEL, dim=-1))
        added = None if bias is None else bias(case.length, case.length).to(x.dtype)
        read, _ = attention(q, k, v, mask=allowed, attn_bias=added)
        return F.linear(read.transpose(1, 2).flatten(2), output)

    return Layer(run, [input, output, *([] if bias is None else bias.parameters())])


KERNELS: dict[str, Build] = {name: ours(name) for name in ("plain", "fused", "blocked", "flex")}
KERNELS["chosen"] = choosing
PEERS: dict[str, Build] = {_TORCH: torch_layer, _X_TRANSFORMERS: x_transformers_layer}


def contenders(case: Case) -> list[str]:
    """Who can do the case: ours first, then the peers that are installed."""
    asks = case.asks
    if asks.choice is not None:
        return ["chosen"]
    able = {
        "plain": case.length <= PLAIN_UP_TO,
        "fused": not asks.dropout,
        "blocked": True,
        "flex": case.device == "cuda" and not asks.dropout and not asks.t5,
        "chosen": False,
        _TORCH: True,
        _X_TRANSFORMERS: importlib.util.find_spec("x_transformers") is not None,
    }
    return [name for name in (*KERNELS, *PEERS) if able[name]]


def chosen(case: Case) -> str:
    """The kernel that `attend` takes by itself."""
    if case.asks.choice is not None:
        return "chosen"
    q = torch.empty(case.batch, N_HEADS, case.length, D_HEAD, dtype=case.dtype, device=case.device)
    weight = torch.zeros(32, N_HEADS) if case.asks.t5 else None
    return choose(q, q, AttentionArgs(case.lowered(), None, None, case.relative(weight), 1.0, case.asks.dropout, None))


def results(layer: Layer, given: Inputs, training: bool) -> list[Tensor]:
    """The output, and the gradients of x and of all that is learned."""
    out = layer.run(given.x, training)
    return [out, *torch.autograd.grad(out, [given.x, *layer.learned], given.upstream)]
