"""Random tensors, and the largest tensor that is made: shared by the tests of attention."""

from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


def normal(*size: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    """Normal numbers of a seed, the same ones in every dtype but for rounding."""
    return torch.randn(size, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def distance(vectors: Any, expected: Any) -> float:
    """The largest distance of a vector from the expected one, relative to the expected norm."""
    vectors, expected = torch.as_tensor(vectors), torch.as_tensor(expected)
    return float(((vectors - expected).norm(dim=-1) / expected.norm(dim=-1)).max())


class Largest(TorchDispatchMode):
    """The most elements of any tensor that an operation returns, and the most bytes that one stands on."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.elements = self.bytes = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for made in tree_leaves(out):
            if isinstance(made, Tensor):
                self.elements = max(self.elements, made.numel())
                self.bytes = max(self.bytes, made.untyped_storage().nbytes())
        return out
