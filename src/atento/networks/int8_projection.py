"""Weights of 8 bits in an encoder: linear maps whose inputs have 8 bits too, a table of tokens; they replace others."""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from atento.attention.dropout import Randomness
from atento.networks.layers import OutputMatrix, TokenEmbedding
from atento.networks.stack.stack import Stack, linear_maps

_ROWS = 4096  # of a table, rounded at a time
LEVELS = 255.0  # the largest code of an input; weights have -127 to 127


class Int8Projection(nn.Module):
    """x (...,D) -> ((q - z) Qᵀ) ⊙ t + b (...,N), with q = round(x ⊙ r + z) between 0 and 255.

    Q (N,D) are the weights as integers, t (N,) their scales, r (D,) how many codes a unit of each input channel takes,
    and z the code of zero. All are fixed, so that rows do not depend on one another. A `uniform` map has one rate for
    all channels, so that another map can hand it codes.
    """

    def __init__(self, n_inputs: int, n_outputs: int, *, bias: bool, uniform: bool) -> None:
        super().__init__()
        self.in_features, self.out_features = n_inputs, n_outputs
        self.codes = nn.Parameter(torch.zeros(n_outputs, n_inputs, dtype=torch.int8), requires_grad=False)
        self.scales = nn.Parameter(torch.ones(n_outputs), requires_grad=False)
        self.rates = nn.Parameter(torch.ones(1 if uniform else n_inputs), requires_grad=False)
        self.zero = nn.Parameter(torch.zeros((), dtype=torch.uint8), requires_grad=False)
        self.bias = nn.Parameter(torch.zeros(n_outputs), requires_grad=False) if bias else None
        self._packed: Tensor | None = None

    @property
    def uniform(self) -> bool:
        """Whether all channels of the input have one rate."""
        return len(self.rates) == 1

    @property
    def weight(self) -> Tensor:
        """The weights (N,D) that the integers stand for."""
        return self.integers * self.scales.unsqueeze(1) * self.rates  # (N,D): the integers by row and by input channel

    def packed(self) -> Tensor:
        """The integers as oneDNN multiplies them, in place of `codes`, which is empty from then on."""
        if self._packed is None:
            self._packed = torch.ops.onednn.qlinear_prepack.default(self.codes.detach(), None)
            self.codes = nn.Parameter(self.codes.new_empty(0), requires_grad=False)
        return self._packed

    @property
    def integers(self) -> Tensor:
        """Q (N,D)."""
        return self.codes if self._packed is None else self._packed.to_dense().t().contiguous()

    def forward(self, x: Tensor, random: Randomness | None = None) -> Tensor:
        """(...,D) -> (...,N); `random` is that of `Projection`, which has no effect here."""
        scaled = x * self.rates + self.zero  # codes before they are rounded
        codes = scaled + (scaled.round().clamp(0, LEVELS) - scaled).detach()  # the gradient passes through rounding
        out = F.linear(codes - self.zero, self.integers.to(x.dtype)) * self.scales
        return out if self.bias is None else out + self.bias

    def _save_to_state_dict(self, destination: dict[str, Tensor], prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        destination[f"{prefix}codes"] = self.integers


def coded_rows(weight: Tensor) -> tuple[Tensor, Tensor]:
    """The integers (N,D) and scales (N,) of the rows of a matrix (N,D): s = max |row| / 127, and the row / s, rounded.

    The last 7 of the 24 digits of s are 0, so that the product of 127 and s is exact, and rounding what the rows stand
    for gives the same integers and scales again.
    """
    weight = weight.detach().float()
    largest = torch.maximum(weight.amax(dim=1), -weight.amin(dim=1))  # max |row|, (N,)
    scales = (largest / 127).clamp(min=torch.finfo(torch.float32).tiny)  # never 0, by which rows are divided
    scales = (scales.view(torch.int32) & ~0x7F).view(torch.float32)  # clears the last 7 of 24 digits
    rounded = [  # a slice at a time, so that no second table is held in float32
        (rows / by).round_().to(torch.int8) for rows, by in zip(weight.split(_ROWS), scales.unsqueeze(1).split(_ROWS))
    ]
    return torch.cat(rounded), scales


class Int8Table(nn.Module):
    """Replaces a table of tokens or an output matrix: rows of 8-bit integers with a scale, a quarter of the memory.

    A row is c ⊙ s, by `coded_rows`.
    """

    codes: Tensor  # (V,D)
    factors: Tensor  # (V,1), of the vectors

    def __init__(self, weight: Tensor, scale: float = 1.0) -> None:
        super().__init__()
        codes, scales = coded_rows(weight)
        self.register_buffer("codes", codes, persistent=False)
        self.register_buffer("factors", scales.unsqueeze(1) * scale, persistent=False)
        self.scales = nn.Parameter(scales, requires_grad=False)
        self.held = codes.numel() - len(scales)  # integers that no parameter counts

    @property
    def weight(self) -> Tensor:
        """(V,D), the numbers that the integers stand for, in new memory."""
        return self.codes * self.scales.unsqueeze(1)

    def forward(self, ids: Tensor) -> Tensor:
        """(B,L) -> (B,L,D)."""
        return F.embedding(ids, self.codes) * F.embedding(ids, self.factors)  # integers times their row's scale

    def _save_to_state_dict(self, destination: dict[str, Tensor], prefix: str, keep_vars: bool) -> None:
        destination[f"{prefix}weight"] = self.weight


def in_8_bits(table: nn.Module) -> nn.Module:
    """An `Int8Table` in place of a `TokenEmbedding`; another table as it is."""
    return Int8Table(table.weight, table.scale) if type(table) is TokenEmbedding else table


def multiplies_by_table(network: nn.Module) -> bool:
    """Whether a head multiplies by the table of tokens."""
    matrices = [module for module in network.modules() if isinstance(module, OutputMatrix)]
    return any(matrix.weight is None and matrix.own is None for matrix in matrices)


def hold_tables_in_8_bits(network: nn.Module, *, outputs: bool) -> None:
    """Replace the tables of tokens, of source and target; with `outputs` also the matrix of an output that has one."""
    for name, module in list(network.named_children()):
        setattr(network, name, in_8_bits(module))
    for module in network.modules() if outputs else ():
        if isinstance(module, OutputMatrix) and module.weight is not None:
            module.own, module.weight = Int8Table(module.weight), None


def has_int8_weights(network: nn.Module) -> bool:
    """Whether the linear maps of this network are `Int8Projection`."""
    return any(isinstance(module, Int8Projection) for module in network.modules())


def with_int8_maps(stack: Stack, weights: Mapping[str, Tensor], prefix: str) -> None:
    """Replace the linear maps of the layers by those that these weights, under names with that prefix, are of."""
    names = {id(module): name for name, module in stack.named_modules()}
    for owner, name in linear_maps(stack):
        linear = getattr(owner, name)
        rates = weights.get(f"{prefix}{names[id(linear)]}.rates")
        uniform = rates is None or len(rates) == 1  # as saved: one rate, or one a channel
        new = Int8Projection(linear.in_features, linear.out_features, bias=linear.bias is not None, uniform=uniform)
        setattr(owner, name, new)
