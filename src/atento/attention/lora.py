"""Linear maps with low-rank adapters, W x + scale · B A x (LoRA, Hu et al. 2022).

The weights of the map keep their names; an adapter's are `adapters.NAME.a` and `adapters.NAME.b` beside them.
"""

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from atento.attention.dropout import Randomness, dropout
from atento.attention.multihead import Projection


class LowRank(nn.Module):
    """An adapter of some rows of a linear map: B A, with A (R,D) and B (N,R); B begins as zeros.

    Args:
        d_in: width of the map's input, D.
        start: the first of the rows.
        rows: how many rows, N.
        rank: R.
    """

    def __init__(self, d_in: int, start: int, rows: int, rank: int) -> None:
        super().__init__()
        self.start, self.stop = start, start + rows  # one past the last row
        self.a = nn.Parameter(torch.empty(rank, d_in))
        self.b = nn.Parameter(torch.zeros(rows, rank))
        nn.init.kaiming_uniform_(self.a, a=math.sqrt(5))  # as nn.Linear begins

    def product(self, scale: float) -> Tensor:
        """What the adapter adds to its rows of the weight: scale · B A (N,D), in float32 at least."""
        wide = torch.promote_types(self.a.dtype, torch.float32)  # bfloat16 would round a sum of `rank` products
        return scale * (self.b.to(wide) @ self.a.to(wide))


class AdaptedLinear(Projection):
    """A linear map with adapters of some of its rows; several may stand in one map, as query and value do in `input`.

    Args:
        linear: the map; its weight and bias are taken over, not copied.
        rows: name of each adapter -> the first of its rows and how many.
        rank: of each adapter.
        scale: factor of the adapters' output.
        dropout: share of the adapters' inputs that is set to 0 in training.
    """

    def __init__(
        self, linear: nn.Linear, rows: Mapping[str, tuple[int, int]], *, rank: int, scale: float, dropout: float
    ) -> None:
        nn.Module.__init__(self)
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.weight, self.bias = linear.weight, linear.bias
        self.scale, self.dropout = scale, dropout
        self.active = True
        self.adapters = nn.ModuleDict(
            {
                name: LowRank(linear.in_features, start, count, rank).to(linear.weight.device)
                for name, (start, count) in rows.items()
            }
        )

    def forward(self, x: Tensor, random: Randomness | None = None) -> Tensor:
        """(...,D) -> (...,N)."""
        return self.rows(x, 0, self.out_features, random)

    def rows(self, x: Tensor, start: int, stop: int, random: Randomness | None = None) -> Tensor:
        """(...,D) -> (...,stop - start), the output of the rows from `start` to before `stop`."""
        is_whole = (start, stop) == (0, self.out_features)
        out = F.linear(x, self.weight, self.bias) if is_whole else super().rows(x, start, stop)
        adapters = [adapter for adapter in self.low_ranks() if adapter.start < stop and adapter.stop > start]
        if not self.active or not adapters:
            return out
        x = dropout(x, self.dropout, random) if self.training else x  # for the adapters: the map reads the whole x
        # one product for all A; one for all B, each padded with zeros to all the rows
        down = F.linear(x, torch.cat([adapter.a for adapter in adapters]))  # (...,A·R) for A adapters
        up = torch.cat([_padded(adapter, start, stop) for adapter in adapters], dim=1)  # (stop - start,A·R)
        return torch.addmm(out.flatten(0, -2), down.flatten(0, -2), up.t(), alpha=self.scale).view(out.shape)

    def low_ranks(self) -> Iterator[LowRank]:
        """The adapters."""
        for adapter in self.adapters.values():
            assert isinstance(adapter, LowRank)  # tells the type checker what the dictionary holds
            yield adapter


def _padded(adapter: LowRank, start: int, stop: int) -> Tensor:
    """B of an adapter (stop - start,R): its rows among those, zeros elsewhere."""
    first, last = max(adapter.start, start), min(adapter.stop, stop)
    b = adapter.b[first - adapter.start : last - adapter.start]
    return F.pad(b, (0, 0, first - start, stop - last))  # rows before and behind its own


@contextmanager
def adapters_joined(network: nn.Module) -> Iterator[None]:
    """Compute with adapters joined to the weights, as a loaded model does; afterwards the weights have their old bits.

    Without adapters, nothing is done.
    """
    adapted = [module for module in network.modules() if isinstance(module, AdaptedLinear)]
    weights = [linear.weight.data for linear in adapted]
    try:
        for linear in adapted:
            weight = linear.weight.detach().clone()
            for adapter in linear.low_ranks():
                rows = weight[adapter.start : adapter.stop]
                rows.copy_(rows + adapter.product(linear.scale).detach())  # in place, through the view
            linear.weight.data, linear.active = weight, False
        yield
    finally:
        for linear, weight in zip(adapted, weights):
            linear.weight.data, linear.active = weight, True
