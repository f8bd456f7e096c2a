"""Families of released models: configurations read both ways and weight tables of (ours, theirs, transform)."""

from atento.networks.families.reading import FAMILIES, family_of, read_released
from atento.networks.families.writing import release

__all__ = ["FAMILIES", "family_of", "read_released", "release"]
