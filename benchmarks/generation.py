"""Generation by a decoder compared with `transformers` on the same weights, run alternately.

GPT-2 small with random weights, prompts of natural lengths (log-normal, median 24), 1 and 16 at once, 64 new tokens
each, greedy; both contenders forbid EOS. Each runs in a separate process with the same number of threads.
"""

import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from atento.config import presets
from atento.config.sections.network import NetworkConfig
from benchmarks.decoding import ON_GPU, PRECISIONS, Comparison, compare, sides_on
from benchmarks.decoding_sides import Work, write_weights
from benchmarks.devices import device_of
from benchmarks.processes import about

_TINY_IDS: dict[str, object] = {"ids": {"pad": 199, "unk": 199, "bos": 199, "eos": 199, "start": 199}}
SIZES: dict[str, NetworkConfig] = {
    "gpt2": presets.gpt2(),
    "tiny": presets.gpt2(vocab_size=200, d_model=32, d_ff=64, n_heads=4, n_layers=2, max_len=128, **_TINY_IDS),
}
_COMPARISONS: tuple[Comparison, ...] = tuple(
    (ours, "transformers float32", None) for ours in ("fastest", "atento float32", "atento plain")
)


def prompt_lengths(count: int, seed: int = 1) -> tuple[int, ...]:
    """Return log-normal lengths of median 24 tokens, between 4 and 60; a single prompt has the median."""
    if count == 1:
        return (24,)
    drawn = 24 * np.random.default_rng(seed).lognormal(0, 0.5, count)  # median 24, σ 0.5
    return tuple(int(length) for length in np.clip(drawn, 4, 60))


CELLS = tuple(Work(prompt_lengths(count), 1, 64) for count in (1, 16))


def measure_generation(
    seconds: float,
    *,
    device: str = "cpu",
    size: str = "gpt2",
    cells: Sequence[Work] = CELLS,
    precisions: Sequence[str] = PRECISIONS,
    rounds: int = 3,
) -> Iterator[dict[str, object]]:
    """Yield rows of tokens per second (of the best and the median round) and peak MiB; the last rows are the ratios.

    Prompts have left padding, which `transformers` needs. Each contender is measured for about `seconds` over all
    cells, and at least `rounds` rounds.
    """
    device = device_of(device)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "weights"
        write_weights(folder, SIZES[size])
        sides = sides_on(device, folder, precisions)
        yield about("generation", size, ("transformers",))
        comparisons = _COMPARISONS if device == "cpu" else ON_GPU
        yield from compare("generation", sides, cells, seconds / len(cells), rounds, comparisons)
