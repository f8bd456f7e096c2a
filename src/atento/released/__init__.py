"""Families of released models: configurations read both ways and weight tables of (ours, theirs, transform)."""

from atento.released.reading import FAMILIES, family_of, read_released
from atento.released.writing import release

__all__ = ["FAMILIES", "family_of", "read_released", "release"]
