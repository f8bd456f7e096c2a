"""Atento: attention models for language. This file names what a user imports, and loads it only when it is used."""

from atento.start_up import set_short_waits
from atento.version import __version__

__all__ = ["AtentoError", "Index", "Model", "Tokenizer", "__version__", "evaluate", "glue", "load", "search"]
__all__ += ["suggest", "suspect", "train"]

TYPE_CHECKING = False  # as in `typing`, whose import takes milliseconds of the start of each command
if TYPE_CHECKING:
    from atento.errors import AtentoError
    from atento.evaluation import evaluate
    from atento.model import Model, load
    from atento.retrieval.text_index import Index
    from atento.runs.next_labels import suggest
    from atento.runs.search.run_search import search
    from atento.runs.suspect_labels import suspect
    from atento.runs.train import train
    from atento.suites.run_suite import glue
    from atento.text import Tokenizer

_HOMES = {
    "AtentoError": "atento.errors",
    "Index": "atento.retrieval.text_index",
    "Model": "atento.model",
    "Tokenizer": "atento.text",
    "evaluate": "atento.evaluation",
    "glue": "atento.suites.run_suite",
    "load": "atento.model",
    "search": "atento.runs.search.run_search",
    "suggest": "atento.runs.next_labels",
    "suspect": "atento.runs.suspect_labels",
    "train": "atento.runs.train",
}


set_short_waits()


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module 'atento' has no attribute {name!r}")
    from importlib import import_module

    found = globals()[name] = getattr(import_module(_HOMES[name]), name)  # so that this is asked once for each name
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
