"""Time of each part of a decoding step of the fast step functions, in the settings of the decoding benchmark.

Every part is a call with a clock around it; the time of the clocks themselves counts for "the rest of a step".
"""

import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from atento.inference.fast import FastStepFunction
from atento.inference.packed_linear import Precision
from benchmarks.decoding import CELLS, PRECISIONS, SIZES
from benchmarks.decoding_sides import Ours, Work, write_weights

_NAMES = {
    "self_input": "queries, keys, values",
    "self_output": "output of self-attention",
    "cross_queries": "queries of cross-attention",
    "cross_output": "output of cross-attention",
    "inner": "feed-forward, inner",
    "outer": "feed-forward, outer",
}
Spent = dict[str, float]


class _Clock:
    """Wraps a callable, or a product, and adds up its seconds under a name."""

    def __init__(self, part: Any, name: str, durations: Spent) -> None:
        self.part, self.name, self.durations = part, name, durations

    def __call__(self, *arguments: object, **keywords: Any) -> object:
        return self._timed(self.part, *arguments, **keywords)

    def plus(self, *arguments: Any) -> Any:
        """Call and time `PackedLinear.plus`."""
        return self._timed(self.part.plus, *arguments)

    def _timed(self, call: Callable[..., object], *arguments: Any, **keywords: object) -> object:
        start = time.perf_counter()
        result = call(*arguments, **keywords)
        self.durations[self.name] += time.perf_counter() - start
        return result


def measure_parts(
    seconds: float,
    *,
    size: str = "transformer-base",
    cells: Sequence[Work] = CELLS,
    precisions: Sequence[Precision] = PRECISIONS,
) -> Iterator[dict[str, object]]:
    """Yield milliseconds per step and shares of the total for each cell and precision, in about `seconds` overall."""
    with tempfile.TemporaryDirectory() as name:
        write_weights(Path(name), SIZES[size])
        for precision in precisions:
            side = Ours()
            side.load(Path(name), precision)
            assert isinstance(side.step_function, FastStepFunction)
            durations: Spent = defaultdict(float)
            _put_clocks(side.step_function, durations)
            for work in cells:
                yield _measured(side, work, precision, durations, seconds / len(cells) / len(precisions))


def _put_clocks(step_function: FastStepFunction, durations: Spent) -> None:
    """Put clocks around every part of a step."""
    for layer in step_function.layers:
        for attribute, name in _NAMES.items():
            if getattr(layer, attribute) is not None:
                setattr(layer, attribute, _Clock(getattr(layer, attribute), name, durations))
        layer.norms = [_Clock(norm, "norms", durations) for norm in layer.norms]  # type: ignore[misc]
    for attribute, name in (
        ("attend", "attention itself"),
        ("embedding", "embedding and positions"),
        ("inputs", "embedding and positions"),
        ("project", "projection to the vocabulary"),
        ("step", "step"),
        ("begin", "reading the source"),
    ):
        setattr(step_function, attribute, _Clock(getattr(step_function, attribute), name, durations))


def _measured(side: Ours, work: Work, precision: str, durations: Spent, seconds: float) -> dict[str, object]:
    side.run(work)  # a warm-up, which is not counted
    durations.clear()
    start, rounds = time.perf_counter(), 0
    while not rounds or time.perf_counter() - start < seconds:
        side.run(work)
        rounds += 1
    total = time.perf_counter() - start
    step, begin = durations.pop("step"), durations.pop("reading the source")
    parts = dict(durations) | {"the rest of a step": step - sum(durations.values()), "the search": total - step - begin}
    per_step = 1e3 / (rounds * work.new_tokens)  # milliseconds
    ordered = sorted(parts.items(), key=lambda part: -part[1])
    return {
        "bench": "parts",
        "sentences": len(work.lengths),
        "beam": work.beam,
        "who": f"atento {precision}",
        "ms_a_step": round((total - begin) * per_step, 3),
        "ms_reading_the_source": round(begin * 1e3 / rounds, 2),
        "parts": {
            name: f"{seconds_of_part * per_step:.3f} ms, {seconds_of_part / (total - begin):.0%}"
            for name, seconds_of_part in ordered
        },
    }
