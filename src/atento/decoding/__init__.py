"""Decoding: from a step function to sequences. Knows no network."""

from atento.decoding.generate import generate
from atento.decoding.hypothesis import Beam, Greedy, Hypothesis

__all__ = ["Beam", "Greedy", "Hypothesis", "generate"]
