"""The version of Atento."""

__version__ = "0.2.0"
