"""Random numbers as a function of (seed, sample, position), without a generator whose order of use would matter.

A row's draws do not depend on the rest of the batch.
"""

from torch import Tensor

from atento.splitmix import INCREMENT, mix, mix_, signed
from atento.splitmix import uniform as as_uniform

_ROWS, _STREAMS = 1, 2  # the purpose of a hash: a seed of a row is never the key of a stream too


def row_seed(seed: int, row: int) -> int:
    """The seed of a row, from one for all: `generate(seed=s)` gives row i `row_seed(s, i)`.

    With `row_seed(seed, N)` for line N, a file gives the same outputs whatever the batches. Seeds are whole numbers;
    those that agree in their lowest 64 bits are the same. Different rows get different seeds.
    """
    return mix(_ROWS, seed, row)


def stream_key(seed: int, sample: int, *use: int) -> int:
    """The start of the stream of one sample of a row, as a signed 64-bit number; each further use has its own."""
    return signed(mix(_STREAMS, seed, sample, *use))


def uniform(keys: Tensor, position: int | Tensor) -> Tensor:
    """The number at `position` of each stream: keys (R,) int64 -> (R,) in [0, 1), multiples of 2 ** -53, float64.

    `position` is one number for all streams, or (R,) int64.
    """
    if isinstance(position, int):
        return as_uniform(mix_(keys + signed((position + 1) * INCREMENT)))
    return as_uniform(mix_(keys + (position + 1) * signed(INCREMENT)))  # modulo 2 ** 64, as above
