"""Decoding: from a step function to sequences. Knows no network."""

from atento.decoding.generate import generate
from atento.decoding.hypothesis import Hypothesis
from atento.decoding.strategies import MBR, Beam, Greedy, Sample

__all__ = ["MBR", "Beam", "Greedy", "Hypothesis", "Sample", "generate"]
