"""The result of every network: one class, so that callers need not know the network's class."""

from dataclasses import dataclass
from typing import Any

from torch import Tensor


@dataclass
class Output:
    """hidden (B,L,D), logits (B,L,V), pooled (B,D), encoded (B,S,D), decode state; None where not applicable."""

    hidden: Tensor
    logits: Tensor | None = None
    pooled: Tensor | None = None
    encoded: Tensor | None = None
    state: Any = None


@dataclass(frozen=True)
class Replaced:
    """The state of an `Output` of `Network.replaced`."""

    vectors: Tensor  # (N,E) what the generator predicts each masked token from
    weight: Tensor  # (V,E), its output matrix. bias: (V,)
    bias: Tensor | None
    ids: Tensor  # (B,L) the text with sampled tokens in place of masks, which the network has read
