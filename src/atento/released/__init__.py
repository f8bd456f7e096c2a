"""Families of released models: configurations read both ways and weight tables of (ours, theirs, transform)."""

from atento.released.read_layout import FAMILIES, family_of, read_released
from atento.released.write_layout import release

__all__ = ["FAMILIES", "family_of", "read_released", "release"]
