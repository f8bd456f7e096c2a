"""Attention: masks, positions, kernels, multi-head attention, recording of weights, leak checks. Needs only PyTorch."""

from atento.attention.kernels import attend, attention_weights
from atento.attention.observe import observe
from atento.attention.prove import Proof, prove

__all__ = ["Proof", "attend", "attention_weights", "observe", "prove"]
