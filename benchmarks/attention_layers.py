"""The layers of the attention benchmark: the same weights in Atento and in other libraries.

Each includes the input and output projections, because `torch.nn.MultiheadAttention` always has them.
"""

import importlib.util
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from atento.attention.block_router import BlockRouter
from atento.attention.dropout import Randomness
from atento.attention.entmax import Entmax
from atento.attention.kernels import attend, choose
from atento.attention.masks import Mask, blocks, causal, documents, padding, prefix, window
from atento.attention.positions import T5Bias
from atento.attention.prepared_mask import AttentionArgs, PreparedMask, prepare_mask
from atento.attention.relative_terms import QueryKeyPositions, RelativeTerms
from atento.attention.sparse import SparseAttention

N_HEADS, D_HEAD = 4, 64
D_MODEL = N_HEADS * D_HEAD
PLAIN_UP_TO = 4096  # tokens: the plain equation keeps several (T,T) matrices
_TORCH, _X_TRANSFORMERS = "torch.nn.MultiheadAttention", "x-transformers"


@dataclass(frozen=True)
class Setting:
    """The mask and other options of a case; `mask(B, T)` makes the mask, None for no mask."""

    mask: Callable[[int, int], Mask | None]
    dropout: float = 0.0
    t5: bool = False
    chosen_blocks: int | None = None  # blocks of keys that each block of queries chooses; no peer supports it
    weights: Callable[[], SparseAttention] | None = None  # in place of softmax; no peer supports it


def _squares(length: int, size: int = 64) -> Tensor:
    """Return the allowed blocks: neighbours, the first column and one random block per row. (⌈T/size⌉,⌈T/size⌉)."""
    count = math.ceil(length / size)  # blocks of a row
    indices = torch.arange(count)
    allowed = (indices[:, None] - indices).abs() <= 1  # (count,count): itself and both neighbours
    allowed[:, 0] = True  # all queries read the first block
    allowed[indices, torch.randint(count, (count,), generator=torch.Generator().manual_seed(0))] = True
    return allowed


SETTINGS: dict[str, Setting] = {
    "none": Setting(lambda b, t: None),
    "causal": Setting(lambda b, t: causal()),
    "padding": Setting(lambda b, t: padding(torch.linspace(t / 2, t, b + 2)[1:-1].long())),  # three quarters for B=1
    "prefix": Setting(lambda b, t: prefix(t // 4)),
    "window(128, 128)": Setting(lambda b, t: window(128, 128)),
    "documents of 256": Setting(lambda b, t: documents((torch.arange(t) // 256).expand(b, t))),
    "blocks of 64": Setting(lambda b, t: blocks(_squares(t), 64)),
    "causal, dropout 0.1": Setting(lambda b, t: causal(), dropout=0.1),
    "none, T5 bias": Setting(lambda b, t: None, t5=True),
    "8 chosen blocks of 64": Setting(lambda b, t: None, chosen_blocks=8),
    "none, top 32": Setting(lambda b, t: None, weights=lambda: SparseAttention(top_k=32)),
    "none, 1.5-entmax": Setting(
        lambda b, t: None, weights=lambda: SparseAttention(entmax=Entmax(N_HEADS, learned=False))
    ),
}


@dataclass(frozen=True)
class Case:
    """The inputs and options of all contenders."""

    setting: str
    length: int
    batch: int
    precision: str
    device: str

    @property
    def dtype(self) -> torch.dtype:
        """The type of x and of the projections."""
        return {"float32": torch.float32, "bfloat16": torch.bfloat16}[self.precision]

    @property
    def options(self) -> Setting:
        """The setting of this name."""
        return SETTINGS[self.setting]

    def prepared(self) -> PreparedMask:
        """Return the mask as our kernels take it.

        It is made once for all layers of a stack, so the time does not include it.
        """
        return prepare_mask(
            self.options.mask(self.batch, self.length), self.length, self.length, torch.device(self.device)
        )

    def relative(self, weight: Tensor | None) -> RelativeTerms | None:
        """Return our T5 bias with weights (32,H), or what replaces softmax; None: the setting has neither."""
        positions = QueryKeyPositions.arange(self.length, self.length, self.device)
        if self.options.weights is not None:
            return RelativeTerms((), positions, self.options.weights())
        if weight is None:
            return None
        scheme = T5Bias(N_HEADS)
        scheme.weight = nn.Parameter(weight.detach())
        return RelativeTerms((scheme,), positions)

    def row(self, **more: Any) -> dict[str, Any]:
        """Return a row of the table."""
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
    """Inputs of all contenders: x (B,T,D), the projections (3D,D) and (D,D), the upstream gradient, T5's table."""

    x: Tensor
    input: Tensor
    output: Tensor
    upstream: Tensor
    t5: Tensor | None

    @staticmethod
    def of(case: Case) -> "Inputs":
        """Draw inputs from a fixed seed."""
        g = torch.Generator().manual_seed(1)

        def drawn(*size: int, by: float = 1.0) -> Tensor:
            return (torch.randn(size, generator=g) * by).to(case.device, case.dtype)

        x, upstream = (drawn(case.batch, case.length, D_MODEL) for _ in range(2))  # (B,T,D) each
        input, output = drawn(3 * D_MODEL, D_MODEL, by=D_MODEL**-0.5), drawn(D_MODEL, D_MODEL, by=D_MODEL**-0.5)
        t5 = drawn(32, N_HEADS).float() if case.options.t5 else None  # a table of parameters stays in float32
        return Inputs(x.requires_grad_(), input, output, upstream, t5)


@dataclass(frozen=True)
class Layer:
    """A contender: its function of x (B,T,D), with `training` for dropout, and its parameters."""

    run: Callable[[Tensor, bool], Tensor]
    learned: list[Tensor]


Build = Callable[[Case, Inputs], Layer]


def _by_head(x: Tensor) -> Tensor:
    return x.view(*x.shape[:-1], N_HEADS, D_HEAD).transpose(1, 2)  # (B,T,D) -> (B,H,T,K)


def ours(kernel: str, setting: str | None = None) -> Build:
    """Return a builder of our layer with this kernel, and in that setting if one is given."""

    def build(case: Case, inputs: Inputs) -> Layer:
        case = case if setting is None else replace(case, setting=setting)
        mask, relative = case.prepared(), case.relative(inputs.t5)
        input, output = (weight.clone().requires_grad_() for weight in (inputs.input, inputs.output))  # (3D,D), (D,D)

        def run(x: Tensor, training: bool) -> Tensor:
            q, k, v = (_by_head(part) for part in F.linear(x, input).split(D_MODEL, dim=-1))  # (B,H,T,K) each
            dropout = case.options.dropout if training else 0.0
            attended = attend(
                q, k, v, mask=mask, dropout=dropout, random=Randomness(1), relative=relative, kernel=kernel
            )
            return F.linear(attended.transpose(1, 2).flatten(2), output)  # (B,T,D)

        return Layer(run, [input, output, *([] if relative is None else relative.parameters())])

    return build


def choosing(case: Case, inputs: Inputs) -> Layer:
    """Build our layer whose queries choose blocks of keys."""
    assert case.options.chosen_blocks is not None
    router = BlockRouter(N_HEADS, D_HEAD, n=case.options.chosen_blocks).to(case.device)
    input, output = (weight.clone().requires_grad_() for weight in (inputs.input, inputs.output))  # (3D,D), (D,D)

    def run(x: Tensor, training: bool) -> Tensor:
        q, k, v = (_by_head(part) for part in F.linear(x, input).split(D_MODEL, dim=-1))  # (B,H,T,K) each
        return F.linear(router.attend(q, k, v).transpose(1, 2).flatten(2), output)  # (B,T,D)

    return Layer(run, [input, output, router.gate])


def _hidden(case: Case) -> tuple[Tensor | None, Tensor | None]:
    """Return the mask as `torch.nn` takes it, True = masked: for pairs (T,T), and for padded keys (B,T)."""
    allowed = case.prepared().allowed
    if allowed is None:
        return None, None
    if allowed.shape[-2] == 1:
        return None, ~allowed[:, 0, 0]  # (B,T)
    return ~allowed[0, 0], None  # no setting has pairs that differ by batch row or head


def torch_layer(case: Case, inputs: Inputs) -> Layer:
    """Build `torch.nn.MultiheadAttention` without returned weights, with a relative bias in its additive mask."""
    layer = nn.MultiheadAttention(D_MODEL, N_HEADS, case.options.dropout, batch_first=True)
    layer = layer.to(case.device, case.dtype)
    with torch.no_grad():
        layer.in_proj_weight.copy_(inputs.input)
        layer.out_proj.weight.copy_(inputs.output)
    pairs, padded = _hidden(case)
    relative = case.relative(inputs.t5)

    def run(x: Tensor, training: bool) -> Tensor:
        layer.train(training)
        added = None if relative is None else relative.scores(x, x, 1.0)  # (1,H,T,T)
        attention_mask = pairs
        if added is not None:
            attention_mask = added.to(x.dtype).expand(len(x), -1, -1, -1).flatten(0, 1)  # (B*H,T,T)
        is_causal = case.prepared().is_causal
        out: Tensor = layer(
            x, x, x, key_padding_mask=padded, need_weights=False, attn_mask=attention_mask, is_causal=is_causal
        )[0]
        return out

    learned = [layer.in_proj_weight, layer.out_proj.weight]
    return Layer(run, [*learned, *([] if relative is None else relative.parameters())])


def x_transformers_layer(case: Case, inputs: Inputs) -> Layer:
    """Build `Attend` of x-transformers with flash attention and its own T5 bias, between the same projections."""
    from x_transformers.attend import Attend
    from x_transformers.x_transformers import RelativePositionBias

    mask, is_causal = case.prepared(), case.prepared().is_causal
    attention = Attend(dropout=case.options.dropout, causal=is_causal, heads=N_HEADS, flash=True)
    allowed = None if is_causal or mask.allowed is None else mask.allowed
    input, output = (weight.clone().requires_grad_() for weight in (inputs.input, inputs.output))  # (3D,D), (D,D)
    bias = None
    if inputs.t5 is not None:
        bias = RelativePositionBias(scale=1.0, causal=False, num_buckets=32, max_distance=128, heads=N_HEADS)
        bias = bias.to(case.device)
        with torch.no_grad():
            bias.relative_attention_bias.weight.copy_(inputs.t5)

    def run(x: Tensor, training: bool) -> Tensor:
        attention.train(training)
        q, k, v = (_by_head(part) for part in F.linear(x, input).split(D_MODEL, dim=-1))  # (B,H,T,K) each
        added = None if bias is None else bias(case.length, case.length).to(x.dtype)
        attended, _ = attention(q, k, v, mask=allowed, attn_bias=added)
        return F.linear(attended.transpose(1, 2).flatten(2), output)  # (B,T,D)

    return Layer(run, [input, output, *([] if bias is None else bias.parameters())])


KERNELS: dict[str, Build] = {name: ours(name) for name in ("plain", "fused", "blocked", "flex")}
KERNELS["chosen"] = choosing
DENSE = "dense"  # by the fused kernel with softmax, beside settings that no peer supports: it computes something else
KERNELS[DENSE] = ours("fused", "none")
PEERS: dict[str, Build] = {_TORCH: torch_layer, _X_TRANSFORMERS: x_transformers_layer}


def contenders(case: Case) -> list[str]:
    """Return the contenders that support the case: ours first, then the installed peers."""
    options = case.options
    if options.chosen_blocks is not None:
        return ["chosen"]
    if options.weights is not None:
        return [*(["plain"] if case.length <= PLAIN_UP_TO else []), "blocked", DENSE]
    able = {
        "plain": case.length <= PLAIN_UP_TO,
        "fused": not options.dropout,
        "blocked": True,
        "flex": case.device == "cuda" and not options.dropout and not options.t5,
        "chosen": False,
        DENSE: False,
        _TORCH: True,
        _X_TRANSFORMERS: importlib.util.find_spec("x_transformers") is not None,
    }
    return [name for name in (*KERNELS, *PEERS) if able[name]]


def chosen(case: Case) -> str:
    """Return the kernel that `attend` chooses automatically."""
    if case.options.chosen_blocks is not None:
        return "chosen"
    q = torch.empty(case.batch, N_HEADS, case.length, D_HEAD, dtype=case.dtype, device=case.device)
    weight = torch.zeros(32, N_HEADS) if case.options.t5 else None
    return choose(
        q, q, AttentionArgs(case.prepared(), None, None, case.relative(weight), 1.0, case.options.dropout, None)
    )


def results(layer: Layer, inputs: Inputs, training: bool) -> list[Tensor]:
    """Return the output and the gradients of x and of all parameters."""
    out = layer.run(inputs.x, training)
    return [out, *torch.autograd.grad(out, [inputs.x, *layer.learned], inputs.upstream)]
