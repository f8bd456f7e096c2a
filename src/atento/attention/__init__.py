"""Attention: masks, positions, kernels, multi-head attention and its observation. Needs PyTorch alone."""

from atento.attention.kernels import attend, attention_weights
from atento.attention.observe import observe

__all__ = ["attend", "attention_weights", "observe"]
