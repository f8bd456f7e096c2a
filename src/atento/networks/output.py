"""What every network hands back: one class, so that callers need not know the family."""

from dataclasses import dataclass
from typing import Any

from torch import Tensor


@dataclass
class Output:
    """hidden (B,L,D), logits (B,L,V), pooled (B,D), encoded (B,S,D), decode state; what does not apply is None."""

    hidden: Tensor
    logits: Tensor | None = None
    pooled: Tensor | None = None
    encoded: Tensor | None = None
    state: Any = None
