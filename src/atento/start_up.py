"""A start without collections of garbage, which would look at all that is imported again and again."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def without_collections() -> Iterator[None]:
    """Import and load what stays: nothing is collected meanwhile, and later collections leave out what was made.

    PyTorch's import makes hundreds of thousands of objects. Collections take an eighth of the processor time of a
    command that translates one line.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.freeze()
            gc.enable()
