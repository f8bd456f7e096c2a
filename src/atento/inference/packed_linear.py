"""Linear layers with weights packed for the CPU: float32 and bfloat16 with oneDNN, int8; and the plain equation."""

import warnings
from collections.abc import Callable
from copy import copy
from typing import Any, Literal, Protocol, Self, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor

from atento.inference.int8_of_many import LARGE_VOCABULARY, MANY, MANY_OF_VOCABULARY, Int8OfMany, codes_of
from atento.networks.int8_projection import Int8Projection
from atento.precision import cpu_features

Precision = Literal["float32", "bfloat16", "int8"]
Activation = Literal["none", "relu", "gelu"]  # what a product can apply to its output
SMALL = 1 << 14  # numbers of a weight: of fewer, a packed product and its kernel cost more than they save
LinearT = TypeVar("LinearT")
_READ_WHOLE = 1 << 18  # so many weights are read at the speed of memory, where one row is multiplied


class PackedLinear(Protocol):
    """x (R,D) -> x Wᵀ + b (R,N), for a weight (N,D) and a bias (N,)."""

    def __call__(self, x: Tensor) -> Tensor:
        """(R,D) -> (R,N)."""

    def plus(self, x: Tensor, residual: Tensor) -> Tensor:
        """x (R,D), residual (R,N) -> x Wᵀ + b + residual (R,N)."""

    def add_to(self, residual: Tensor, x: Tensor) -> None:
        """Add x Wᵀ + b, for x (R,D), to residual (R,N) in its memory."""


class WeightLinear(PackedLinear, Protocol):
    """One that holds the weight in packed form and can give it back."""

    bias: Tensor | None

    def unpacked(self) -> Tensor:
        """The weight (N,D) that the products are of, in new memory."""

    def followed_by(self, activation: Activation) -> Self:
        """One of the same memory, with that activation."""


def has_packed_products() -> bool:
    """Whether this build of PyTorch has oneDNN's packed products for the processor."""
    return bool(torch.backends.mkldnn.is_available()) and hasattr(torch.ops.mkldnn, "_linear_pointwise")


def has_int8_products() -> bool:
    """Whether this processor and build of PyTorch have products of integers whose sums do not overflow."""
    return has_packed_products() and hasattr(torch.ops.onednn, "qlinear_pointwise") and cpu_features()["vnni"]


def has_bfloat16_products() -> bool:
    """Whether oneDNN has products of bfloat16 for the processor: it needs AVX-512, or AVX-NE-CONVERT."""
    return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


def pack(
    weight: Tensor,
    bias: Tensor | None,
    precision: Precision,
    *,
    activation: Activation = "none",
    is_held: bool = False,
) -> WeightLinear:
    """A linear layer with its weight (N,D) packed once for products in that precision, and its activation.

    `is_held`: something else holds the weight, so the layer may read it too. A row may then depend on their number.
    """
    is_small = is_held and precision != "int8" and weight.dtype == torch.float32 and weight.numel() < SMALL
    if is_small or weight.device.type != "cpu" or weight.dtype == torch.float64 or not has_packed_products():
        return PlainLinear(weight.detach(), None if bias is None else bias.detach(), activation=activation)
    if precision == "int8":
        return Int8Linear(weight, bias, activation=activation)
    if weight.dtype == torch.bfloat16 and not has_bfloat16_products():
        return ConvertedLinear(weight, bias, activation=activation, inner=torch.float32)
    return OneDnnLinear(weight, bias, activation=activation, is_held=is_held)


def with_round_number(x: Tensor) -> Tensor:
    """(R,D) with rows of zeros below, so that their number comes again: R, and at most a sixteenth or three more.

    oneDNN compiles a kernel for each number of rows, and keeps it: about a millisecond and 0.5 MiB for each product of
    a layer. There are sixteen round numbers between a power of two and the next.
    """
    return F.pad(x, (0, 0, 0, -len(x) % max(4, 1 << max(0, len(x).bit_length() - 5))))


def _activated(x: Tensor, activation: Activation) -> Tensor:
    """The activation of x, in its memory."""
    if activation == "gelu":
        out: Tensor = torch.ops.aten.gelu_(x)
        return out
    return x.relu_() if activation == "relu" else x


def _with(linear: LinearT, **attributes: object) -> LinearT:
    """A copy with other attributes; the weights are shared."""
    changed = copy(linear)
    vars(changed).update(attributes)
    return changed


class PlainLinear:
    """The equation as PyTorch computes it."""

    def __init__(self, weight: Tensor, bias: Tensor | None, *, activation: Activation = "none") -> None:
        self.weight, self.bias, self.activation = weight, bias, activation

    def __call__(self, x: Tensor) -> Tensor:
        """(R,D) -> (R,N)."""
        return _activated(F.linear(x, self.weight, self.bias), self.activation)

    def plus(self, x: Tensor, residual: Tensor) -> Tensor:
        """(R,D), (R,N) -> (R,N)."""
        return self(x) + residual

    def add_to(self, residual: Tensor, x: Tensor) -> None:
        """(R,N), (R,D)."""
        residual.add_(self(x))

    def unpacked(self) -> Tensor:
        """(N,D)."""
        return self.weight.detach()

    def followed_by(self, activation: Activation) -> Self:
        """As in `WeightLinear`."""
        return _with(self, activation=activation)


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
        in_turn = is_held and weight.dtype == torch.float32 and weight.numel() >= _READ_WHOLE and cpu_features()["amx"]
        self.of_one_row = PlainLinear(weight.detach(), bias, activation=activation) if in_turn else None

    def __call__(self, x: Tensor) -> Tensor:
        """(...,D) -> (...,N)."""
        if self.of_one_row is not None and x.numel() == x.shape[-1]:
            return self.of_one_row(x)
        formula = "none" if self.activation == "gelu" else ""  # gelu by the error function, not by tanh
        out: Tensor = torch.ops.mkldnn._linear_pointwise.default(
            x, self.weight, self.bias, self.activation, [], formula
        )
        return out

    def plus(self, x: Tensor, residual: Tensor) -> Tensor:
        """(R,D), (R,N) -> (R,N), in one pass."""
        if self.of_one_row is not None and len(x) == 1:
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
        return _with(self, activation=activation, of_one_row=one_row)


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
        return _with(self, inner=self.inner.followed_by(activation))


class Int8Linear:
    """Weights of 8 bits with one scale for each row of W; activations of 8 bits with one scale for all rows of a call.

    x (R,D) and the result are float32. Rows of one call share a scale, so the last digits of a row depend on the other
    rows. A scale for each row was measured too: in decoding it costs more than it gains.

    Many rows take oneDNN's product where the processor has AMX: 32 rows, and 4 of a large vocabulary. It has the weight
    in a layout of its own, which is made when so many rows first come.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None, *, activation: Activation = "none") -> None:
        weight = weight.detach().float()
        scales = weight.abs().amax(dim=1).clamp_min(1e-12).double() / 127.0  # (N,)
        zeros = torch.zeros(len(scales), dtype=torch.int64)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # PyTorch announces another way to make such a tensor
            ints = torch.quantize_per_channel(weight, scales, zeros, 0, torch.qint8)
        self.packed = torch.ops.quantized.linear_prepack(ints, None if bias is None else bias.detach().float())
        self.bias = bias
        self.product, self.activation = _int8_product(activation)
        self.whole_activation = activation
        self.of_many: Int8OfMany | None = None
        self.many = MANY_OF_VOCABULARY if len(weight) >= LARGE_VOCABULARY else MANY
        self.has_many = weight.numel() >= _READ_WHOLE and has_int8_products() and cpu_features()["amx"]
        self.narrow = not cpu_features()["vnni"]  # without VNNI, sums of 8-bit products overflow, so activations have 7

    def __call__(self, x: Tensor) -> Tensor:
        """(R,D) -> (R,N)."""
        if self.has_many and len(x) >= self.many:
            return self._made_for_many()(x, self.whole_activation)
        # else PyTorch asks the packed weight, which is no tensor, for a method of its own, by two C++ exceptions a call
        with torch._C.DisableTorchFunctionSubclass():
            out: Tensor = self.product(x, self.packed, self.narrow)
        return _activated(out, self.activation)

    def plus(self, x: Tensor, residual: Tensor) -> Tensor:
        """(R,D), (R,N) -> (R,N)."""
        return self(x).add_(residual)

    def add_to(self, residual: Tensor, x: Tensor) -> None:
        """(R,N), (R,D)."""
        residual.add_(self(x))

    def unpacked(self) -> Tensor:
        """(N,D)."""
        weight: Tensor = torch.ops.quantized.linear_unpack(self.packed)[0].dequantize()
        return weight

    def followed_by(self, activation: Activation) -> Self:
        """As in `WeightLinear`."""
        product, rest = _int8_product(activation)
        return _with(self, product=product, activation=rest, whole_activation=activation)

    def _made_for_many(self) -> Int8OfMany:
        if self.of_many is None:
            weight = torch.ops.quantized.linear_unpack(self.packed)[0]
            self.of_many = Int8OfMany(weight.int_repr(), weight.q_per_channel_scales(), self.bias)
        return self.of_many


def _int8_product(activation: Activation) -> tuple[Callable[..., Tensor], Activation]:
    """PyTorch's product with that activation, and the activation that it leaves out."""
    if activation == "relu":
        return torch.ops.quantized.linear_relu_dynamic.default, "none"
    return torch.ops.quantized.linear_dynamic.default, activation


class RowInt8Linear:
    """Weights of 8 bits with one scale for each row of W; activations of 8 bits with a scale and a minimum for each
    row of x, so that rows do not depend on each other.

    With x = s q + m and W = t Q, row by row, x Wᵀ = s t q Qᵀ + m W 1ᵀ, and the product q Qᵀ is one of integers.
    """

    def __init__(
        self,
        weight: Tensor,
        bias: Tensor | None,
        *,
        activation: Activation = "none",
        dtype: torch.dtype = torch.float32,
    ) -> None:
        """`dtype` is that of the result."""
        weight = weight.detach().float()
        largest = 127.0 if cpu_features()["vnni"] else 63.0  # without VNNI, sums of two 8-bit products overflow
        self.scales = weight.abs().amax(dim=1).clamp_min(1e-12) / largest  # (N,)
        ints = (weight / self.scales.unsqueeze(1)).round_().to(torch.int8)
        self.weight = torch.ops.onednn.qlinear_prepack.default(ints, None)
        sums = ints.sum(dim=1) * self.scales  # (N,), W 1ᵀ
        self.added = torch.stack([sums, torch.zeros_like(sums) if bias is None else bias.detach()]).to(dtype)  # (2,N)
        self.zeros = torch.zeros(len(ints), dtype=torch.int64)
        self.bias, self.activation, self.dtype = bias, activation, dtype

    def unpacked(self) -> Tensor:
        """(N,D)."""
        integers: Tensor = self.weight.to_dense().t()
        return integers * self.scales.unsqueeze(1)

    def followed_by(self, activation: Activation) -> Self:
        """As in `WeightLinear`."""
        return _with(self, activation=activation)

    def __call__(self, x: Tensor) -> Tensor:
        """(R,D) -> (R,N)."""
        product, scale, minimum = self._product(x)
        return _activated(self._with_added(product.mul_(scale), minimum), self.activation)

    def plus(self, x: Tensor, residual: Tensor) -> Tensor:
        """(R,D), (R,N) -> (R,N)."""
        product, scale, minimum = self._product(x)
        return self._with_added(torch.addcmul(residual, product, scale), minimum)

    def add_to(self, residual: Tensor, x: Tensor) -> None:
        """(R,N), (R,D)."""
        product, scale, minimum = self._product(x)
        self._with_added(residual.addcmul_(product, scale), minimum)

    def _product(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """q (t Q)ᵀ (R,N), and s and m (R,1)."""
        # each row of the result has its D bytes q, then s and m in float32
        coded = torch.ops.quantized.embedding_bag_byte_prepack.default(x.float())
        scale, minimum = coded[:, -8:].contiguous().view(torch.float32).to(self.dtype).split(1, dim=1)
        product = torch.ops.onednn.qlinear_pointwise.default(
            coded[:, :-8], 1.0, 0, self.weight, self.scales, self.zeros, None, 1.0, 0, self.dtype, "none", [], ""
        )
        return product, scale, minimum

    def _with_added(self, out: Tensor, minimum: Tensor) -> Tensor:
        """m W 1ᵀ and the bias, added to `out` (R,N) in its memory; one product is faster in bfloat16 alone."""
        if out.dtype == torch.bfloat16:
            return out.addmm_(F.pad(minimum, (0, 1), value=1.0), self.added)
        return out.addcmul_(minimum, self.added[0]).add_(self.added[1])


class FixedInt8Linear:
    """The product of an `Int8Projection` on oneDNN: integers in, scales, bias and activation in the same pass."""

    def __init__(
        self,
        linear: Int8Projection,
        *,
        activation: Activation = "none",
        dtype: torch.dtype = torch.float32,
        reader: Int8Projection | None = None,
    ) -> None:
        """`dtype` is that of the result; with a `reader` it is the codes that this uniform map takes, uint8."""
        self.weight, self.bias = linear.packed(), linear.bias
        self.rates, self.zero, self.scales = linear.rates.detach(), int(linear.zero), linear.scales.detach()
        self.step = 1 / float(linear.rates) if linear.uniform else None
        self.zeros = torch.zeros(linear.out_features, dtype=torch.int64)
        self.result = (1.0, 0, dtype) if reader is None else (1 / float(reader.rates), int(reader.zero), torch.uint8)
        self.applied: tuple[Any, ...] = activation, [], "none" if activation == "gelu" else ""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # PyTorch announces, once, another way to make such a tensor
            self.codes(torch.zeros(1, linear.in_features))

    def __call__(self, x: Tensor) -> Tensor:
        """(R,D) -> (R,N); x may be codes."""
        out: Tensor = torch.ops.onednn.qlinear_pointwise.default(*self._operands(x), *self.result, *self.applied)
        return out

    def plus(self, x: Tensor, residual: Tensor) -> Tensor:
        """(R,D), (R,N) -> (R,N)."""
        out = residual.clone()
        self.add_to(out, x)
        return out

    def add_to(self, residual: Tensor, x: Tensor) -> None:
        """(R,N), (R,D)."""
        x, scale, zero, weight, scales, zeros, bias = self._operands(x)
        torch.ops.onednn.qlinear_pointwise.binary(
            *(x, scale, zero, weight, scales, zeros, residual, bias, *self.result, 1.0, 0, "sum", 1.0, "none", [], "")
        )

    def _operands(self, x: Tensor) -> tuple[Any, ...]:
        codes = x if x.dtype == torch.uint8 else self.codes(x)
        return codes, 1.0, self.zero, self.weight, self.scales, self.zeros, self.bias

    def codes(self, x: Tensor) -> Tensor:
        """round(x ⊙ r + z) between 0 and 255, (R,D); PyTorch has a fast pass, for a type of its own alone."""
        if self.step is None:
            x = x * self.rates
        return codes_of(torch.quantize_per_tensor(x.float(), self.step or 1.0, self.zero, torch.quint8))
