"""Families compared with `transformers`: forward pass and training step at equal size and precision; time and memory.

Every contender runs in a separate process (`family_side`), so that none inherits another's memory.
"""

import json
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

from atento.base.errors import AtentoError
from atento.base.precision import best_precision
from benchmarks.family_side import CASES, SHAPES


def measure_families(seconds: float) -> Iterator[dict[str, object]]:
    """Yield rows of milliseconds and peak MiB, ours and theirs; the last rows are the ratios, ours to theirs."""
    for family in CASES:
        for shape in SHAPES:
            for work in ("forward", "training"):
                for precision in dict.fromkeys(("float32", best_precision("cpu"))):
                    yield from _pair(family, shape, work, precision, seconds / 6)


def _pair(family: str, shape: str, work: str, precision: str, seconds: float) -> Iterator[dict[str, object]]:
    case = {"bench": "families", "family": family, "shape": shape, "work": work, "precision": precision}
    results = {}
    for who in ("atento", "transformers"):
        results[who] = _side(who, family, shape, work, precision, seconds)
        yield case | {"who": who} | results[who]
    ours, theirs = results["atento"], results["transformers"]
    yield case | {
        "time_ratio": round(ours["milliseconds"] / theirs["milliseconds"], 3),
        "memory_ratio": round(ours["peak_mib"] / theirs["peak_mib"], 3),
    }


def _side(who: str, family: str, shape: str, work: str, precision: str, seconds: float) -> dict[str, Any]:
    import torch

    arguments = [who, family, shape, work, precision, str(seconds), str(torch.get_num_threads())]
    process = subprocess.run(
        [sys.executable, "-m", "benchmarks.family_side", *arguments], capture_output=True, text=True, check=False
    )
    if process.returncode:
        last = (process.stderr.strip().splitlines() or ["no message"])[-1]
        raise AtentoError(f"{' '.join(arguments)}: {last}")
    row: dict[str, object] = json.loads(process.stdout.splitlines()[-1])
    return row
