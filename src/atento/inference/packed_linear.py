"""Linear layers with weights packed for the CPU in float32 and bfloat16, what they promise, and the plain equation."""

from copy import copy
from typing import Literal, Protocol, Self, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor

from atento.base.precision import cpu_features

Precision = Literal["float32", "bfloat16", "int8"]
Activation = Literal["none", "relu", "gelu"]  # what a product can apply to its output
SMALL = 1 << 14  # numbers of a weight: of fewer, a packed product and its kernel cost more than they save
LinearT = TypeVar("LinearT")
TRANSPOSED = 1 << 18  # weights of a product at most, which MKL, with AMX, computes faster of Wᵀ in memory than oneDNN
READ_WHOLE = 1 << 18  # so many weights are read at the speed of memory, where one row is multiplied


class PackedLinear(Protocol):
    """x (R,D) -> x Wᵀ + b (R,N), for a weight (N,D) and a bias (N,)."""

    def __call__(self, x: Tensor) -> Tensor:
        """(R,D) -> (R,N)."""

    def plus(self, x: Tensor, residual: Tensor) -> Tensor:
        """x (R,D), residual (R,N) -> x Wᵀ + b + residual (R,N)."""
        return self(x).add_(residual)

    def add_to(self, residual: Tensor, x: Tensor) -> None:
        """Add x Wᵀ + b, for x (R,D), to residual (R,N) in its memory."""
        residual.add_(self(x))


class WeightLinear(PackedLinear, Protocol):
    """One that holds the weight in packed form and can give it back."""

    bias: Tensor | None

    def unpacked(self) -> Tensor:
        """The weight (N,D) that the products are of, in new memory."""

    def followed_by(self, activation: Activation) -> Self:
        """One of the same memory, with that activation."""
        return changed(self, activation=activation)


def has_packed_products() -> bool:
    """Whether this build of PyTorch has oneDNN's packed products for the processor."""
    return bool(torch.backends.mkldnn.is_available()) and hasattr(torch.ops.mkldnn, "_linear_pointwise")


def has_int8_products() -> bool:
    """Whether this processor and build of PyTorch have products of integers whose sums do not overflow."""
    return has_packed_products() and hasattr(torch.ops.onednn, "qlinear_pointwise") and cpu_features()["vnni"]


def with_round_number(x: Tensor) -> Tensor:
    """(R,D) with rows of zeros below, so that their number comes again: R, and at most a sixteenth or three more.

    oneDNN compiles a kernel for each number of rows, and keeps it: about a millisecond and 0.5 MiB for each product of
    a layer. There are sixteen round numbers between a power of two and the next.
    """
    return F.pad(x, (0, 0, 0, -len(x) % max(4, 1 << max(0, len(x).bit_length() - 5))))


def activated(x: Tensor, activation: Activation) -> Tensor:
    """The activation of x, in its memory."""
    if activation == "gelu":
        out: Tensor = torch.ops.aten.gelu_(x)
        return out
    return x.relu_() if activation == "relu" else x


def changed(linear: LinearT, **attributes: object) -> LinearT:
    """A copy with other attributes; the weights are shared."""
    changed = copy(linear)
    vars(changed).update(attributes)
    return changed


class PlainLinear(WeightLinear):
    """The equation as PyTorch computes it."""

    def __init__(self, weight: Tensor, bias: Tensor | None, *, activation: Activation = "none") -> None:
        self.weight, self.bias, self.activation = weight, bias, activation

    def __call__(self, x: Tensor) -> Tensor:
        """(R,D) -> (R,N)."""
        return activated(F.linear(x, self.weight, self.bias), self.activation)

    def unpacked(self) -> Tensor:
        """(N,D)."""
        return self.weight.detach().contiguous()


class OneDnnLinear:
    """oneDNN's product with a weight in the memory layout that the processor prefers; float32 stays float32.

    On Intel's processors with AMX, MKL multiplies one row by a weight as it is in three quarters of oneDNN's time; for
    four rows and more it takes longer. So one row takes it, where the weight `is_held` anyway.
    """

    def __init__(
        self, weight: Tensor, bias: Tensor | None, *, activation: Activation = "none", is_held: bool = False
    ) -> None:
        self.weight = torch.ops.mkldnn._reorder_linear_weight.default(weight.detach().contiguous())
        self.bias, self.activation = bias, activation
        in_turn = is_held and weight.dtype == torch.float32 and weight.numel() >= READ_WHOLE and cpu_features()["amx"]
        self.of_one_row = PlainLinear(weight.detach(), bias, activation=activation) if in_turn else None

    def __call__(self, x: Tensor) -> Tensor:
        """(...,D) -> (...,N)."""
        if self.of_one_row is not None and x.numel() == x.shape[-1]:  # a single row
            return self.of_one_row(x)
        formula = "none" if self.activation == "gelu" else ""  # gelu by the error function, not by tanh
        out: Tensor = torch.ops.mkldnn._linear_pointwise.default(
            x, self.weight, self.bias, self.activation, [], formula
        )
        return out

    def plus(self, x: Tensor, residual: Tensor) -> Tensor:
        """(R,D), (R,N) -> (R,N), in one pass."""
        if self.of_one_row is not None and x.shape[0] == 1:
            return self.of_one_row(x).add_(residual)
        out: Tensor = torch.ops.mkldnn._linear_pointwise.binary(x, residual, self.weight, self.bias, "add")
        return out

    def add_to(self, residual: Tensor, x: Tensor) -> None:
        """(R,N), (R,D)."""
        residual.copy_(self.plus(x, residual))

    def unpacked(self) -> Tensor:
        """(N,D)."""
        weight: Tensor = self.weight.to_dense()
        return weight

    def followed_by(self, activation: Activation) -> Self:
        """As in `WeightLinear`."""
        one_row = None if self.of_one_row is None else self.of_one_row.followed_by(activation)
        return changed(self, activation=activation, of_one_row=one_row)


class ConvertedLinear:
    """A product in another type than that of its weight and activations.

    bfloat16 on a processor without such products: float32 multiplies them, which is several times as fast there as
    PyTorch's own product, and the result is rounded; the weights take 4 bytes each. float32 where half precision is
    enough: bfloat16 multiplies them.
    """

    def __init__(
        self, weight: Tensor, bias: Tensor | None, *, activation: Activation = "none", inner: torch.dtype
    ) -> None:
        self.inner = OneDnnLinear(weight.to(inner), None if bias is None else bias.to(inner), activation=activation)
        self.bias, self.dtype, self.inner_dtype = bias, weight.dtype, inner

    def __call__(self, x: Tensor) -> Tensor:
        """(...,D) -> (...,N)."""
        return self.inner(x.to(self.inner_dtype)).to(self.dtype)

    def plus(self, x: Tensor, residual: Tensor) -> Tensor:
        """(R,D), (R,N) -> (R,N), in one pass."""
        return self.inner.plus(x.to(self.inner_dtype), residual.to(self.inner_dtype)).to(self.dtype)

    def add_to(self, residual: Tensor, x: Tensor) -> None:
        """(R,N), (R,D)."""
        residual.copy_(self.plus(x, residual))

    def unpacked(self) -> Tensor:
        """(N,D)."""
        return self.inner.unpacked().to(self.dtype)

    def followed_by(self, activation: Activation) -> Self:
        """As in `WeightLinear`."""
        return changed(self, inner=self.inner.followed_by(activation))
