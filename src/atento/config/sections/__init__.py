"""The sections of a recipe and the parts of a network, as dataclasses."""
