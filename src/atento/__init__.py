"""Atento: attention models for language. This file names what a user imports, and loads it only when it is used."""

from atento.base.old_names import import_old_names
from atento.base.start_up import set_short_waits
from atento.base.version import __version__

__all__ = ["AtentoError", "Index", "Model", "Tokenizer", "__version__", "evaluate", "glue", "load", "search"]
__all__ += ["suggest", "suspect", "train"]

TYPE_CHECKING = False  # as in `typing`, whose import takes milliseconds of the start of each command
if TYPE_CHECKING:
    from atento.base.errors import AtentoError
    from atento.evaluation import evaluate
    from atento.model import Model, load
    from atento.retrieval.text_index import Index
    from atento.runs.train import train
    from atento.text import Tokenizer
    from atento_cli.labels.next_labels import suggest
    from atento_cli.labels.suspect_labels import suspect
    from atento_cli.search.run_search import search
    from atento_cli.suites.run_suite import glue

_HOMES = {
    "AtentoError": "atento.base.errors",
    "Index": "atento.retrieval.text_index",
    "Model": "atento.model",
    "Tokenizer": "atento.text",
    "evaluate": "atento.evaluation",
    "glue": "atento_cli.suites.run_suite",
    "load": "atento.model",
    "search": "atento_cli.search.run_search",
    "suggest": "atento_cli.labels.next_labels",
    "suspect": "atento_cli.labels.suspect_labels",
    "train": "atento.runs.train",
}


set_short_waits()
import_old_names()


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module 'atento' has no attribute {name!r}")
    from importlib import import_module

    found = globals()[name] = getattr(import_module(_HOMES[name]), name)  # so that this is asked once for each name
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
