"""How a process starts: idle threads of OpenMP wait shortly, and no garbage is collected. Imports next to nothing."""

import gc
import os
import sys
from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager

# How long idle threads of OpenMP wait before they sleep: GNU's in turns of a loop (2,000 are some 50 to 100
# microseconds; 300,000 by default), and LLVM's and Intel's, of macOS, in milliseconds (200 by default).
SHORT_WAITS = {"GOMP_SPINCOUNT": "2000", "KMP_BLOCKTIME": "1"}
LONG_WAITS = {"GOMP_SPINCOUNT": "300000", "KMP_BLOCKTIME": "200"}  # their defaults
waits: dict[str, str] = {}  # the variables that this process has set
TOO_LATE = "torch" in sys.modules


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


def set_short_waits(environment: MutableMapping[str, str] = os.environ) -> None:
    """Let idle threads of OpenMP sleep soon; `import atento` does it, before PyTorch reads the variables.

    By default they spin for milliseconds, which takes the processor from the thread that another program, or a product
    of the same network, needs: on two processors with a load of nine, decoding took 30 times as long. What the user has
    chosen stays. Child processes inherit the variables. Results are the same bits.
    """
    if not environment.keys() & {*SHORT_WAITS, "OMP_WAIT_POLICY"}:
        environment.update(SHORT_WAITS)
        waits.update(SHORT_WAITS)


def machine_environment() -> dict[str, str]:
    """The environment with the default waits where `set_short_waits` has set others: that of another library."""
    return dict(os.environ) | {name: LONG_WAITS[name] for name, value in waits.items() if os.environ.get(name) == value}
