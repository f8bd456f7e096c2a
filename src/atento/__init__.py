"""Atento: attention models for language. This file names what a user imports, and loads it only when it is used."""

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"
__all__ = ["__version__", "evaluate", "load", "train"]

if TYPE_CHECKING:
    from atento.evaluation import evaluate
    from atento.model import load
    from atento.tasks.run import train

_HOMES = {"load": "atento.model", "evaluate": "atento.evaluation", "train": "atento.tasks.run"}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'atento' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOMES[name]), name)
