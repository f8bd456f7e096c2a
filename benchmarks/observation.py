"""Cost of observing attention in a training step: not observed, one layer, all layers."""

import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any

import torch

from atento.attention import multihead, observe
from atento.base.precision import best_precision
from atento.config.sections.training import TrainingConfig
from atento.data.objectives.sequence_to_sequence import parallel
from atento.networks import build_network
from atento.training.allocator import raise_trim_threshold
from atento.training.step import Updater
from benchmarks.training import SIZES, natural_lengths

_LINE = "record"


def measure_observation(seconds: float) -> Iterator[dict[str, object]]:
    """Yield rows of milliseconds per update.

    The modes alternate update by update, so that noise affects all of them alike.
    """
    config = SIZES["small"]
    raise_trim_threshold()
    torch.manual_seed(1)
    network = build_network(config)
    precision = best_precision("cpu")
    updater = Updater(network, TrainingConfig(learning_rate=1e-4), precision)
    source, target = natural_lengths(6000, config.vocab_size)
    batches = parallel(source, target, budget=4096, seed=1, pad_id=0, start_id=2, eos_id=3)
    contexts: dict[str, Callable[[], Any]] = {
        "without the call": _WithoutRecord,
        "off": nullcontext,
        "one layer": lambda: observe(updater.compute_network, layers=[-1]),
        "all layers": lambda: observe(updater.compute_network),
    }
    durations: dict[str, list[float]] = {name: [] for name in contexts}
    start, number = time.perf_counter(), 0
    while time.perf_counter() - start < seconds * len(contexts) or number < 3:
        for name, context in contexts.items():
            update_start = time.perf_counter()
            with context():
                updater.update(batches.parts(number), number + 1, 1e-4)
            durations[name].append(time.perf_counter() - update_start)
        number += 1
    medians = {name: sorted(times[1:])[len(times[1:]) // 2] for name, times in durations.items()}
    for name, duration in medians.items():
        share = duration / medians["without the call"] - 1
        yield {
            "bench": "observation",
            "looking": name,
            "ms_an_update": round(duration * 1e3, 1),
            "more": f"{share:+.1%}",
        }


class _WithoutRecord:
    """The attention layer without the call that records observations."""

    def __enter__(self) -> None:
        self.record = getattr(multihead, _LINE)
        setattr(multihead, _LINE, lambda *arguments: None)

    def __exit__(self, *error: object) -> None:
        setattr(multihead, _LINE, self.record)
