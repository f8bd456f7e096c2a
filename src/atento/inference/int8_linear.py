"""Linear layers with weights of 8 bits on the CPU: activations with one scale for all rows, one for each, or fixed."""

import warnings
from collections.abc import Callable
from typing import Any, Self

import torch
import torch.nn.functional as F
from torch import Tensor

from atento.base.precision import cpu_features
from atento.inference.packed_linear import READ_WHOLE, Activation, WeightLinear, activated, changed, has_int8_products
from atento.networks.int8_projection import Int8Projection

LARGE_VOCABULARY = 1 << 13
MANY, MANY_OF_VOCABULARY = 32, 4  # rows from which on oneDNN's product is faster than PyTorch's


class Int8OfMany:
    """oneDNN's product of 8-bit weights and many rows, which uses the tiles of AMX; all rows of a call share a scale.

    x (R,D) -> act(x Wᵀ + b) (R,N) in float32, of the integers and scales of the rows of W (N,D)."""

    def __init__(self, integers: Tensor, scales: Tensor, bias: Tensor | None) -> None:
        self.weight = torch.ops.onednn.qlinear_prepack.default(integers, None)
        self.scales, self.zeros = scales.float(), torch.zeros(len(scales), dtype=torch.int64)
        self.bias = None if bias is None else bias.detach().float()

    def __call__(self, x: Tensor, activation: str) -> Tensor:
        """`activation` as in `Activation`."""
        coded = torch.quantize_per_tensor_dynamic(x, torch.quint8, False)
        out: Tensor = torch.ops.onednn.qlinear_pointwise.default(
            *(codes_of(coded), coded.q_scale(), coded.q_zero_point(), self.weight, self.scales, self.zeros, self.bias),
            *(1.0, 0, torch.float32, activation, [], "none" if activation == "gelu" else ""),
        )
        return out


def codes_of(coded: Tensor) -> Tensor:
    """The codes, uint8, of a tensor of PyTorch's own quantized type, in its memory."""
    return torch.empty(0, dtype=torch.uint8).set_(coded.untyped_storage(), 0, coded.shape, coded.stride())


class Int8Linear(WeightLinear):
    """Weights of 8 bits with one scale for each row of W; activations of 8 bits with one scale for all rows of a call.

    x (R,D) and the result are float32. Rows of one call share a scale, so the last digits of a row depend on the other
    rows. A scale for each row was measured too: in decoding it costs more than it gains.

    Many rows take oneDNN's product where the processor has AMX: 32 rows, and 4 of a large vocabulary. It has the weight
    in a layout of its own, which is made when so many rows first come.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None, *, activation: Activation = "none") -> None:
        weight = weight.detach().float()
        scales = weight.abs().amax(dim=1).clamp_min(1e-12).double() / 127.0  # (N,)
        zeros = torch.zeros(len(scales), dtype=torch.int64)  # symmetric codes: 0 stands for 0
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # PyTorch announces another way to make such a tensor
            ints = torch.quantize_per_channel(weight, scales, zeros, 0, torch.qint8)
        self.packed = torch.ops.quantized.linear_prepack(ints, None if bias is None else bias.detach().float())
        self.bias = bias
        self.product, self.activation = _int8_product(activation)
        self.whole_activation = activation
        self.of_many: Int8OfMany | None = None
        self.many = MANY_OF_VOCABULARY if len(weight) >= LARGE_VOCABULARY else MANY
        self.has_many = weight.numel() >= READ_WHOLE and has_int8_products() and cpu_features()["amx"]
        self.narrow = not cpu_features()["vnni"]  # without VNNI, sums of 8-bit products overflow, so activations have 7

    def __call__(self, x: Tensor) -> Tensor:
        """(R,D) -> (R,N)."""
        if self.has_many and x.shape[0] >= self.many:
            if self.of_many is None:
                weight = torch.ops.quantized.linear_unpack(self.packed)[0]
                self.of_many = Int8OfMany(weight.int_repr(), weight.q_per_channel_scales(), self.bias)
            return self.of_many(x, self.whole_activation)
        # else PyTorch asks the packed weight, which is no tensor, for a method of its own, by two C++ exceptions a call
        with torch._C.DisableTorchFunctionSubclass():
            out: Tensor = self.product(x, self.packed, self.narrow)
        return activated(out, self.activation)

    def unpacked(self) -> Tensor:
        """(N,D)."""
        weight: Tensor = torch.ops.quantized.linear_unpack(self.packed)[0].dequantize()
        return weight

    def followed_by(self, activation: Activation) -> Self:
        """As in `WeightLinear`."""
        product, rest = _int8_product(activation)
        return changed(self, product=product, activation=rest, whole_activation=activation)


def _int8_product(activation: Activation) -> tuple[Callable[..., Tensor], Activation]:
    """PyTorch's product with that activation, and the activation that it leaves out.

    It is the operator itself: its Python wrapper looks at each argument of each call, half as long as a product takes.
    """
    if activation == "relu":
        return torch.ops.quantized.linear_relu_dynamic.default._op, "none"
    return torch.ops.quantized.linear_dynamic.default._op, activation


class RowInt8Linear(WeightLinear):
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

    def __call__(self, x: Tensor) -> Tensor:
        """(R,D) -> (R,N)."""
        product, scale, minimum = self._product(x)
        return activated(self._with_added(product.mul_(scale), minimum), self.activation)

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
        x = x * self.rates if self.step is None else x
        return codes_of(torch.quantize_per_tensor(x.float(), self.step or 1.0, self.zero, torch.quint8))
