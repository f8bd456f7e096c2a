"""Attention: masks, positions, kernels, multi-head attention, what it looks at, what may leak. Needs only PyTorch."""

from atento.attention.kernels import attend, attention_weights
from atento.attention.observe import observe
from atento.attention.prove import Proof, prove

__all__ = ["Proof", "attend", "attention_weights", "observe", "prove"]
