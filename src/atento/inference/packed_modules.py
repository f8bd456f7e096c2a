"""Modules that hold the weights of linear maps in packed form alone, and put them in place of others."""

from __future__ import annotations

from collections import OrderedDict
from copy import deepcopy
from itertools import accumulate
from typing import TypedDict, TypeVar, Unpack

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from atento.base.precision import best_precision, cpu_features, has_bfloat16_products
from atento.inference.int8_linear import Int8Linear
from atento.inference.packed_linear import (
    SMALL,
    TRANSPOSED,
    Activation,
    ConvertedLinear,
    OneDnnLinear,
    PlainLinear,
    Precision,
    WeightLinear,
    has_packed_products,
)
from atento.networks.stack.stack import Stack

ModuleT = TypeVar("ModuleT", bound=nn.Module)


class Kept(TypedDict, total=False):
    """What `pack` is told of the other copies of a weight, and of the rows of its products."""

    steps: bool
    is_held: bool
    as_it_is: bool


def pack(
    weight: Tensor,
    bias: Tensor | None,
    precision: Precision,
    *,
    activation: Activation = "none",
    steps: bool = False,
    is_held: bool = False,
    as_it_is: bool = False,
) -> WeightLinear:
    """A linear layer with its weight (N,D) packed once for products in that precision, and its activation.

    Args:
        weight: (N,D).
        bias: (N,).
        activation: of the output.
        steps: most products have few rows, as those of a decoder. A row may then depend on their number.
        is_held: something else holds the weight, so that the layer of a decoder may read it too.
        as_it_is: a graph holds a packed copy (`onnx_steps.py`), so that there is no other one.
    """
    is_float32 = precision != "int8" and weight.dtype == torch.float32
    is_small = steps and is_held and is_float32 and weight.numel() < SMALL
    if (
        as_it_is
        or is_small
        or weight.device.type != "cpu"
        or weight.dtype == torch.float64
        or not has_packed_products()
    ):
        return PlainLinear(weight.detach(), None if bias is None else bias.detach(), activation=activation)
    if precision == "int8":
        return Int8Linear(weight, bias, activation=activation)
    if weight.dtype == torch.bfloat16 and not has_bfloat16_products():
        return ConvertedLinear(weight, bias, activation=activation, inner=torch.float32)
    if steps and is_float32 and weight.numel() <= TRANSPOSED and cpu_features()["amx"]:
        return PlainLinear(weight.detach().t().contiguous().t(), bias, activation=activation)
    return OneDnnLinear(weight, bias, activation=activation, is_held=steps and is_held)


class PackedModule(nn.Module):
    """Replaces an `nn.Linear`: packed products of its weight, which is unpacked where someone asks for it.

    Each part computes some of the outputs, one after the other, in a precision of its own.
    """

    def __init__(self, linear: nn.Linear, *parts: WeightLinear, sizes: tuple[int, ...] = ()) -> None:
        """`sizes`: the outputs of each of several parts."""
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.parts, self.dtype = parts, linear.weight.dtype
        self.ends = list(accumulate(sizes or (self.out_features,)))
        self.held = sum(parameter.numel() for parameter in linear.parameters())

    @property
    def weight(self) -> Tensor:
        """(N,D), in new memory; of 8 bits, the numbers that they stand for."""
        return torch.cat([part.unpacked() for part in self.parts]) if len(self.parts) > 1 else self.parts[0].unpacked()

    @property
    def bias(self) -> Tensor | None:
        """(N,)."""
        biases = [part.bias.detach() for part in self.parts if part.bias is not None]
        return torch.cat(biases) if biases else None

    def forward(self, x: Tensor, random: object = None) -> Tensor:
        """(...,D) -> (...,N); `random` is that of `Projection`, which has no effect here."""
        return self.rows(x, 0, self.out_features)

    def rows(self, x: Tensor, start: int, stop: int, random: object = None) -> Tensor:
        """(...,D) -> (...,stop - start), the outputs from `start` to before `stop`."""
        if x.requires_grad and torch.is_grad_enabled():  # packed products have no gradient
            bias = None if self.bias is None else self.bias[start:stop].to(x.dtype)  # (stop - start,)
            return F.linear(x, self.weight[start:stop].to(x.dtype), bias)
        flat = x.flatten(0, -2).to(self.dtype)  # (R,D)
        outputs, first = [], 0
        for part, last in zip(self.parts, self.ends):
            if first < stop and last > start:
                outputs.append(part(flat)[:, max(start - first, 0) : stop - first])  # (R,part of the outputs)
            first = last
        out = torch.cat(outputs, dim=1) if len(outputs) > 1 else outputs[0]  # (R,stop - start)
        rows: Tensor = out.to(x.dtype).unflatten(0, x.shape[:-1])
        return rows

    def __deepcopy__(self, memo: object) -> PackedModule:
        """The module itself, which never changes."""
        return self

    def _save_to_state_dict(self, destination: dict[str, Tensor], prefix: str, keep_vars: bool) -> None:
        destination[f"{prefix}weight"] = self.weight
        if self.bias is not None:
            destination[f"{prefix}bias"] = self.bias


def pack_modules(module: ModuleT, precision: Precision, **kept: Unpack[Kept]) -> ModuleT:
    """The module itself, with a `PackedModule` in place of every `nn.Linear` inside it; `kept` as in `pack`."""
    for name, child in list(module.named_children()):
        if isinstance(child, nn.Linear):
            packed = pack(child.weight, child.bias, precision, **kept)
            setattr(module, name, PackedModule(child, packed))
        else:
            pack_modules(child, precision, **kept)
    return module


def pack_decoder(stack: Stack, precision: Precision, **kept: Unpack[Kept]) -> None:
    """Replace the linear maps of a decoder's layers by packed ones; what is read of a source, once, is not int8."""
    steps: Kept = {**kept, "steps": True}
    for block in stack.layers:
        attention = block.cross_attention
        linear: nn.Module | None = None if attention is None else attention.input
        if attention is not None and isinstance(linear, nn.Linear):
            queries = attention.n_heads * attention.d_head  # outputs of the map: Q, then K and V
            weight, bias = linear.weight, linear.bias
            biases = (None, None) if bias is None else (bias[:queries], bias[queries:])
            halved = precision == "int8" and weight.dtype == torch.float32 and has_packed_products()
            parts = (
                pack(weight[:queries], biases[0], precision, **steps),
                ConvertedLinear(weight[queries:], biases[1], inner=torch.bfloat16)
                if halved and best_precision("cpu") == "bfloat16"
                else pack(
                    weight[queries:],
                    biases[1],
                    "float32" if precision == "int8" else precision,
                    as_it_is=steps.get("as_it_is", False),
                ),
            )
            packed = PackedModule(linear, *parts, sizes=(queries, linear.out_features - queries))
            setattr(attention, "input", packed)  # noqa: B010 - the attribute has the type of what is replaced
        pack_modules(block, precision, **steps)


def copy_sharing_weights(network: ModuleT) -> ModuleT:
    """A copy of modules that shares the memory of weights and buffers, until they are packed or change their dtype."""
    copied: dict[int, object] = {
        id(weight): nn.Parameter(weight.detach(), requires_grad=False) for weight in network.parameters()
    }
    copied |= {id(buffer): buffer for buffer in network.buffers()}
    kept = [value for module in network.modules() for value in vars(module).values()]
    # a module has a dozen tables of hooks, whose copies take two thirds of the time where they are not made here
    copied |= {id(one): OrderedDict() for one in kept if type(one) is OrderedDict and not one}
    return deepcopy(network, copied)
