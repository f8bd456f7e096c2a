"""Attention benchmark: time and peak memory of a layer, by mask, length, kernel and direction.

See docs/notes.md#a19.

Each contender runs in a process of its own, so that peak memory is its own. All must give the same result, or the
measurement stops.
"""

import importlib.util
import math
import multiprocessing
import multiprocessing.context
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from atento.bench.attention_layers import KERNELS, PEERS, SETTINGS, Case, Inputs, chosen, contenders, results
from atento.precision import best_precision
from atento.training.allocator import keep_freed_memory

LENGTHS = (128, 512, 2048, 4096, 8192, 16384, 65536)
TOLERANCE = {"float32": 1e-3, "bfloat16": 0.03}  # of the norm, between any two contenders
_REPEATS, _ENOUGH = 10, 0.5  # the best of so many calls, fewer once they took so many seconds
_FORWARD, _BOTH = "forward", "forward+backward"


@dataclass(frozen=True)
class Measured:
    """Best milliseconds and peak MiB by direction (None: not known here), and some of the numbers that came out."""

    ms: dict[str, float]
    peak_mib: dict[str, float | None]
    sample: list[list[float]]


def measure(case: Case, who: str, seconds: float) -> Measured:
    """One contender, in this process; about `seconds`, but at least one call in each direction."""
    build = {**KERNELS, **PEERS}[who]
    small = replace(case, length=16)
    warm = Inputs.of(small)
    results(build(small, warm), warm, True)
    given = Inputs.of(case)
    memory = _Memory(case.device)
    layer = build(case, given)
    ms: dict[str, float] = {}
    peaks: dict[str, float | None] = {}

    def forward() -> None:
        with torch.no_grad():
            layer.run(given.x, False)

    if not case.asks.dropout:  # which nobody asks for in using a model
        ms[_FORWARD] = _best(forward, seconds / 4, case.device)
        peaks[_FORWARD] = memory.peak()
    found = [_some(x) for x in results(layer, given, False)]
    ms[_BOTH] = _best(lambda: results(layer, given, True), seconds / 2, case.device)
    peaks[_BOTH] = memory.peak()
    return Measured(ms, peaks, found)


def _some(x: Tensor, count: int = 200) -> list[float]:
    """Numbers from all over a tensor, about so many."""
    step = max(1, x.numel() // count) | 1  # odd, so as not to stay in one column
    listed: list[float] = x.detach().flatten()[::step].float().tolist()
    return listed


def _best(call: Callable[[], object], seconds: float, device: str) -> float:
    """Milliseconds of the fastest of several calls within `seconds`; one call is made in any case.

    One processor thread is measured by its own time, which other work on the machine disturbs least.
    """
    alone = device == "cpu" and torch.get_num_threads() == 1
    clock = time.process_time if alone else time.perf_counter
    best, began = math.inf, time.perf_counter()
    for _ in range(_REPEATS):
        started = clock()
        call()
        if device == "cuda":
            torch.cuda.synchronize()
        best = min(best, clock() - started)
        if time.perf_counter() - began + best > min(seconds, _ENOUGH):
            break
    return 1000 * best


class _Memory:
    """What is taken from now on: on a GPU by PyTorch's count, on Linux by the kernel's, elsewhere not known."""

    def __init__(self, device: str) -> None:
        self.device = device
        if device == "cuda":
            torch.cuda.reset_peak_memory_stats()
        self.before = torch.cuda.memory_allocated() / 2**20 if device == "cuda" else _of_this_process("VmRSS")

    def peak(self) -> float | None:
        """MiB at most so far."""
        most = torch.cuda.max_memory_allocated() / 2**20 if self.device == "cuda" else _of_this_process("VmHWM")
        return None if most is None or self.before is None else max(0.0, most - self.before)


def _of_this_process(name: str) -> float | None:
    """A size in MiB out of Linux's table about this process."""
    return _sizes(Path("/proc/self/status")).get(name)


def _sizes(file: Path) -> dict[str, float]:
    """Lines such as `VmRSS:  2048 kB`, in MiB; nothing where there is no such file."""
    if not file.exists():
        return {}
    lines = (line.split() for line in file.read_text(encoding="ascii", errors="replace").splitlines())
    return {words[0].rstrip(":"): int(words[1]) / 1024 for words in lines if len(words) == 3 and words[2] == "kB"}


def _within_memory(device: str) -> None:
    """Let this process take no more than half of what is free, so that who wants more fails alone."""
    free = _sizes(Path("/proc/meminfo")).get("MemAvailable")
    if device == "cpu" and free is not None and sys.platform == "linux":
        import resource

        limit = int(free / 2 * 2**20)
        resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))


def _child(connection: Connection, case: Case, who: str, seconds: float, n_threads: int) -> None:
    """In a process of its own: measure and send back, or say that memory did not suffice."""
    torch.set_num_threads(n_threads)
    keep_freed_memory()  # as training does, for all alike: else much of the time goes into fresh pages
    _within_memory(case.device)
    try:
        connection.send(measure(case, who, seconds))
    except (MemoryError, RuntimeError) as error:
        if not isinstance(error, MemoryError) and not any(w in str(error) for w in ("memory", "bad_alloc")):
            raise
        connection.send("not enough memory")


def in_own_process(case: Case, who: str, seconds: float) -> Measured | str:
    """What `measure` found in a fresh process, or why there is nothing.

    Raises:
        RuntimeError: the process failed, with its own message on standard error.
    """
    context: multiprocessing.context.ForkServerContext | multiprocessing.context.SpawnContext
    if "forkserver" in multiprocessing.get_all_start_methods():
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["x_transformers", "atento.bench.attention"])  # imported once for all processes
    else:
        context = multiprocessing.get_context("spawn")
    here, there = context.Pipe(duplex=False)
    child = context.Process(target=_child, args=(there, case, who, seconds, torch.get_num_threads()), daemon=True)
    child.start()
    there.close()
    try:
        if not here.poll(60 + 20 * seconds):
            child.kill()
            return "took far too long"
        found: Measured | str = here.recv()
        return found
    except EOFError:
        child.join()
        if child.exitcode == -9:
            return "killed, as happens where memory is short"
        raise RuntimeError(f"measuring {who} ended with {child.exitcode}: {case}") from None
    finally:
        child.join()
        here.close()


@dataclass
class Forecast:
    """What a contender will take at the next length, by the lengths before, so that nothing goes past `seconds`."""

    seconds: float
    known: dict[tuple[str, int], list[tuple[int, float]]] = field(default_factory=dict)

    def record(self, who: str, batch: int, length: int, taken: float) -> None:
        """`taken` seconds for a call in each direction; infinite where it could not be done."""
        self.known.setdefault((who, batch), []).append((length, taken))

    def refusal(self, who: str, batch: int, length: int) -> str | None:
        """Why not to try, or None: time grows with the length as it did last, at most with its square."""
        seen = [(tokens, taken) for tokens, taken in self.known.get((who, batch), []) if tokens < length]
        if not seen:
            return None
        last, taken = seen[-1]
        if math.isinf(taken):
            return f"failed at {last} tokens"
        power = 2.0
        if len(seen) > 1 and taken > seen[-2][1]:
            power = min(2.0, max(1.0, math.log(taken / seen[-2][1]) / math.log(last / seen[-2][0])))
        expected = taken * (length / last) ** power
        return f"would take about {expected:.0f} s" if expected > self.seconds else None


def check_agreement(samples: dict[str, list[list[float]]], tolerance: float) -> None:
    """All contenders against the first, tensor by tensor, by the norm of the difference.

    Raises:
        RuntimeError: one of them computes something else, or nothing finite.
    """
    (first, expected), *others = samples.items()
    for name, found in others:
        for number, (one, other) in enumerate(zip(expected, found, strict=True)):
            a, b = torch.tensor(one), torch.tensor(other)
            off = float((a - b).norm() / a.norm().clamp(min=1e-30))
            if not off <= tolerance:  # so that NaN is refused
                what = "output" if number == 0 else f"gradient {number}"
                raise RuntimeError(f"{name} and {first} differ in their {what} by {off:.2g} of its norm")


def measure_attention(
    seconds: float,
    *,
    settings: Sequence[str] = tuple(SETTINGS),
    lengths: Sequence[int] = LENGTHS,
    precisions: Sequence[str] | None = None,
) -> Iterator[dict[str, Any]]:
    """Rows of milliseconds and peak MiB, ours and theirs; after each case the ratios of the kernel that we choose.

    A contender that would take more than `seconds` for a case is left out, with a row that says so; so is the plain
    equation past 4,096 tokens, without one. Length 512 is measured with a batch of 8 as well.
    """
    device = "cuda" if torch.cuda.is_available() else "cpu"
    if precisions is None:
        precisions = list(dict.fromkeys(["float32", best_precision(device)]))
    if importlib.util.find_spec("x_transformers") is None:
        yield {"bench": "attention", "kernel": "x-transformers", "skipped": "pip install x-transformers"}
    for precision in precisions:
        for setting in settings:
            forecast = Forecast(seconds)
            for length in lengths:
                for batch in (1, 8) if length == 512 else (1,):
                    yield from _rows(Case(setting, length, batch, precision, device), forecast)


def _rows(case: Case, forecast: Forecast) -> Iterator[dict[str, Any]]:
    """All contenders at one case, then the ratios."""
    found: dict[str, Measured] = {}
    for who in contenders(case):
        got = forecast.refusal(who, case.batch, case.length) or in_own_process(case, who, forecast.seconds)
        if isinstance(got, str):
            if not got.startswith("would"):
                forecast.record(who, case.batch, case.length, math.inf)
            yield case.row(kernel=who, skipped=got)
            continue
        found[who] = got
        taken = sum(got.ms.values()) + got.ms[_BOTH]  # one call more, for the comparison
        forecast.record(who, case.batch, case.length, taken / 1000)
    if not found:
        return
    check_agreement({name: one.sample for name, one in found.items()}, TOLERANCE[case.precision])
    for direction in next(iter(found.values())).ms:
        for who, one in found.items():
            peak = one.peak_mib[direction]
            yield case.row(
                kernel=who,
                direction=direction,
                ms=round(one.ms[direction], 3),
                peak_mib=None if peak is None else round(peak, 1),
            )
        yield from _ratios(case, direction, found)


def _ratios(case: Case, direction: str, found: dict[str, Measured]) -> Iterator[dict[str, Any]]:
    """The kernel that we choose: its time and memory over those of the best peer, its time over our best kernel's."""
    choice = chosen(case)
    peers = [one for name, one in found.items() if name in PEERS]
    if choice not in found or not peers:
        return
    own = found[choice]
    kernels = {name: one.ms[direction] for name, one in found.items() if name in KERNELS}
    ratios: dict[str, Any] = {"time_to_best_peer": round(own.ms[direction] / min(p.ms[direction] for p in peers), 2)}
    memory = own.peak_mib[direction]
    theirs = [peak for p in peers if (peak := p.peak_mib[direction]) is not None]
    if memory is not None and theirs:
        ratios["memory_to_best_peer"] = round(max(memory, 1.0) / max(min(theirs), 1.0), 2)
    best = min(kernels, key=lambda name: kernels[name])
    ratios["time_to_best_kernel"] = round(own.ms[direction] / kernels[best], 2)
    yield case.row(chosen=choice, direction=direction, **ratios, best_kernel=best)
