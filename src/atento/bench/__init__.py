"""Measurements beside peers, in one run; a table of them by name."""

from collections.abc import Callable, Iterator
from typing import Any

from atento.bench.training import measure_training

BENCHES: dict[str, Callable[[float], Iterator[dict[str, Any]]]] = {"training": measure_training}
