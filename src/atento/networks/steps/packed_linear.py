"""Weights made ready for fast products on the CPU: packed float32 and bfloat16, int8; beside the plain equation."""

import warnings
from typing import Any, Literal, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from atento.precision import cpu_features

Precision = Literal["float32", "bfloat16", "int8"]


class Product(Protocol):
    """x (R,D) -> x Wᵀ + b (R,N), of a weight (N,D)."""

    def __call__(self, x: Tensor) -> Tensor:
        """The product."""

    def added(self, x: Tensor, other: Tensor) -> Tensor:
        """The product and `other` (R,N)."""


def has_packed_products() -> bool:
    """Whether this build of PyTorch has oneDNN's packed products for the processor."""
    return bool(torch.backends.mkldnn.is_available()) and hasattr(torch.ops.mkldnn, "_linear_pointwise")


def ready(weight: Tensor, bias: Tensor | None, precision: Precision, *, relu: bool = False) -> Product:
    """The weight (N,D) and bias (N,) made ready once, for products in that precision; `relu` is taken of the result."""
    if weight.device.type != "cpu" or weight.dtype == torch.float64 or not has_packed_products():
        return Plain(weight, bias, relu=relu)
    if precision == "int8":
        return Int8(weight, bias, relu=relu)
    return Packed(weight, bias, relu=relu)


class Plain:
    """The equation, by whatever PyTorch does with it."""

    def __init__(self, weight: Tensor, bias: Tensor | None, *, relu: bool = False) -> None:
        self.weight, self.bias, self.relu = weight, bias, relu

    def __call__(self, x: Tensor) -> Tensor:
        """(R,D) -> (R,N)."""
        out = F.linear(x, self.weight, self.bias)
        return out.relu_() if self.relu else out

    def added(self, x: Tensor, other: Tensor) -> Tensor:
        """(R,D), (R,N) -> (R,N)."""
        return self(x) + other


class Packed:
    """oneDNN's product on a weight that lies in the processor's own order; float32 is exact, whatever the rows."""

    def __init__(self, weight: Tensor, bias: Tensor | None, *, relu: bool = False) -> None:
        self.weight = torch.ops.mkldnn._reorder_linear_weight.default(weight.detach().contiguous())
        self.bias = bias
        self.then = "relu" if relu else "none"

    def __call__(self, x: Tensor) -> Tensor:
        """(...,D) -> (...,N)."""
        out: Tensor = torch.ops.mkldnn._linear_pointwise.default(x, self.weight, self.bias, self.then, [], "")
        return out

    def added(self, x: Tensor, other: Tensor) -> Tensor:
        """(R,D), (R,N) -> (R,N), in one pass."""
        out: Tensor = torch.ops.mkldnn._linear_pointwise.binary(x, other, self.weight, self.bias, "add")
        return out


class Int8:
    """Weights of 8 bits, a scale a row of W; activations rounded to 8 bits too, one scale for all rows of a call.

    x (R,D) is float32; so is the result. Rows that share a call share the scale, so a row's last digits hang on them; a
    scale for each row was measured too: it costs more than it gains.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None, *, relu: bool = False) -> None:
        weight = weight.detach().float()
        scales = weight.abs().amax(dim=1).clamp_min(1e-12).double() / 127.0  # (N,)
        zeros = torch.zeros(len(scales), dtype=torch.int64)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # PyTorch means to replace how such a tensor is made
            ints = torch.quantize_per_channel(weight, scales, zeros, 0, torch.qint8)
        self.packed = torch.ops.quantized.linear_prepack(ints, None if bias is None else bias.detach().float())
        self.product = (torch.ops.quantized.linear_relu_dynamic if relu else torch.ops.quantized.linear_dynamic).default
        self.narrow = not cpu_features()["vnni"]  # without VNNI sums of 8-bit products need a bit less to be safe

    def __call__(self, x: Tensor) -> Tensor:
        """(R,D) -> (R,N)."""
        out: Tensor = self.product(x, self.packed, self.narrow)
        return out

    def added(self, x: Tensor, other: Tensor) -> Tensor:
        """(R,D), (R,N) -> (R,N)."""
        return self(x).add_(other)


class ReadyLinear(nn.Module):
    """`nn.Linear` with its weight made ready: for parts of a network that are used as they stand."""

    def __init__(self, linear: nn.Linear, precision: Precision) -> None:
        super().__init__()
        self.product = ready(linear.weight, linear.bias, precision)

    def forward(self, x: Tensor) -> Tensor:
        """(...,D) -> (...,N)."""
        out: Tensor = self.product(x.flatten(0, -2)).unflatten(0, x.shape[:-1])
        return out


def with_ready_products(module: nn.Module, precision: Precision) -> Any:
    """The module itself, every `nn.Linear` inside it replaced."""
    for name, child in list(module.named_children()):
        if isinstance(child, nn.Linear):
            setattr(module, name, ReadyLinear(child, precision))
        else:
            with_ready_products(child, precision)
    return module
