"""Training in two processes compared with one process of two threads, with plain DDP and with `accelerate`."""

import importlib.util
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

from atento.base.errors import AtentoError
from atento.base.precision import best_precision
from benchmarks.processes import about
from benchmarks.replica_side import Rate, Work

_ROUNDS = 2
_TOKENS = 4096  # real target tokens of an update, of all processes
_CORES = 2
_SIDE = "benchmarks.replica_side"
_CONTENDERS = {  # name of the row -> who trains, in how many processes
    "atento, 2 processes": ("atento", 2),
    "atento, 1 process": ("atento", 1),
    "transformers, 2 processes (DDP)": ("transformers", 2),
    "transformers, 1 process": ("transformers", 1),
    "accelerate, 2 processes": ("accelerate", 2),
}
_OURS = "atento, 2 processes"


def measure_processes(
    seconds: float,
    *,
    size: str = "small",
    tokens: int = _TOKENS,
    precisions: tuple[str, ...] = (),
    rounds: int = _ROUNDS,
) -> Iterator[dict[str, object]]:
    """Yield rows of real target tokens per second of each contender on two cores; the ratios come last.

    All processes of a contender share two cores: two processes have a thread each, one process has two. They take
    turns, in rounds.

    Args:
        seconds: about how long each contender is measured.
        size: a name of `replica_side.NETWORKS`.
        tokens: real target tokens of an update.
        precisions: "float32", "bfloat16"; empty: float32, and what this processor computes fastest.
        rounds: how often each contender is started.

    Raises:
        AtentoError: a contender failed.
    """
    yield about("processes", size, ("transformers", "accelerate"))
    contenders = {}
    for name, (who, processes) in _CONTENDERS.items():
        missing = [package for package in _PACKAGES[who] if importlib.util.find_spec(package) is None]
        if missing:
            yield {"bench": "processes", "who": name, "skipped": f"pip install {' '.join(missing)}"}
        else:
            contenders[name] = (who, processes)
    for precision in precisions or tuple(dict.fromkeys(("float32", best_precision("cpu")))):
        rates: dict[str, list[Rate]] = {name: [] for name in contenders}
        for _ in range(rounds):
            for name, (who, processes) in contenders.items():
                work = Work(who, size, precision, tokens, seconds / rounds, max(1, _CORES // processes), _cores())
                rates[name].append(run(work, processes))
        yield from _rows(precision, rates, contenders)


_PACKAGES: dict[str, tuple[str, ...]] = {
    "atento": (),
    "transformers": ("transformers",),
    "accelerate": ("transformers", "accelerate"),
}


def _rows(
    precision: str, rates: dict[str, list[Rate]], contenders: dict[str, tuple[str, int]]
) -> Iterator[dict[str, object]]:
    for name, measured in rates.items():
        yield {
            "bench": "processes",
            "who": name,
            "precision": precision,
            "threads": max(1, _CORES // contenders[name][1]),
            "real_tokens_per_second": round(_best(measured)),
            "real_tokens_per_processor_second": round(max(rate.tokens / rate.processor_seconds for rate in measured)),
            "rounds": [round(rate.tokens / rate.seconds) for rate in measured],
        } | _summing(measured)
    yield {"bench": "processes", "precision": precision} | {
        f"ratio_to_{name.partition(' (')[0].replace(', ', '_').replace(' ', '_')}": round(
            _best(rates[_OURS]) / _best(measured), 2
        )
        for name, measured in rates.items()
        if name != _OURS
    }


def _summing(rates: list[Rate]) -> dict[str, float]:
    """The share of the time in which gradients are summed over processes, of the best round; empty: not measured."""
    best = max(rates, key=lambda rate: rate.tokens / rate.seconds)
    if best.summing_seconds is None:
        return {}
    return {"summing_percent": round(100 * best.summing_seconds / best.seconds, 1)}


def _best(rates: list[Rate]) -> float:
    """Real tokens per second of the best round, the one that other work disturbed least."""
    return max(rate.tokens / rate.seconds for rate in rates)


def _cores() -> tuple[int, ...]:
    """The first processors of this machine that this process may use; empty where the system does not say."""
    return tuple(sorted(os.sched_getaffinity(0))[:_CORES]) if hasattr(os, "sched_getaffinity") else ()


def run(work: Work, processes: int) -> Rate:
    """Start the processes of a contender, several by torchrun, and return their rate.

    Raises:
        AtentoError: they failed.
    """
    command = [sys.executable, "-m", _SIDE]
    if processes > 1:
        torchrun = ["torch.distributed.run", f"--nproc-per-node={processes}", "--rdzv-backend=c10d"]
        address = ["--rdzv-endpoint=127.0.0.1:0", "--local-addr=127.0.0.1"]
        command = [sys.executable, "-m", *torchrun, *address, "-m", _SIDE]
    with tempfile.TemporaryDirectory(prefix="atento-") as folder:
        result = Path(folder) / "rate.json"
        threads = {"OMP_NUM_THREADS": str(work.threads), "TOKENIZERS_PARALLELISM": "false"}
        done = subprocess.run(
            [*command, json.dumps(asdict(work)), str(result)],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | threads,
            check=False,
        )
        if done.returncode or not result.exists():
            lines = done.stderr.strip().splitlines() or ["nothing was said"]
            cause = next((line for line in lines if "Error" in line), lines[-1])
            raise AtentoError(f"{work.who} in {processes} processes ended with {done.returncode}: {cause}")
        return Rate(**json.loads(result.read_text(encoding="utf-8")))
