"""The version of Atento."""

__version__ = "0.1.0"
