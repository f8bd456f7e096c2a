"""Attention benchmark: time and peak memory of a layer, by mask, length, kernel and direction.

See docs/notes.md#a19. Each contender runs in its own process, so that its peak memory is measured separately. All must
give the same result; otherwise the benchmark stops.
"""

import importlib.util
import math
import multiprocessing
import multiprocessing.context
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection
from pathlib import Path

import torch
from torch import Tensor

from atento.base.precision import best_precision
from atento.training.allocator import raise_trim_threshold
from benchmarks.attention_layers import DENSE, KERNELS, PEERS, SETTINGS, Case, Inputs, chosen, contenders, results

LENGTHS = (128, 512, 2048, 4096, 8192, 16384, 65536)
TOLERANCE = {"float32": 1e-3, "bfloat16": 0.03}  # relative to the norm, between any two contenders
_MAX_CALLS, _MAX_SECONDS = 10, 0.5  # limits of the calls of which the best counts
_FORWARD, _BOTH = "forward", "forward+backward"


@dataclass(frozen=True)
class Measured:
    """Best milliseconds and peak MiB by direction (None: unknown), and a sample of the resulting numbers."""

    ms: dict[str, float]
    peak_mib: dict[str, float | None]
    sample: list[list[float]]


def measure(case: Case, contender: str, seconds: float) -> Measured:
    """Measure one contender in this process, for about `seconds`, with at least one call in each direction."""
    build = {**KERNELS, **PEERS}[contender]
    warm_up_case = replace(case, length=16)  # the first call of a kernel takes longer
    warm_up_inputs = Inputs.of(warm_up_case)
    results(build(warm_up_case, warm_up_inputs), warm_up_inputs, True)
    inputs = Inputs.of(case)
    memory = _Memory(case.device)
    layer = build(case, inputs)
    ms: dict[str, float] = {}
    peaks: dict[str, float | None] = {}

    def forward() -> None:
        with torch.no_grad():
            layer.run(inputs.x, False)

    if not case.options.dropout:  # dropout is measured only in training
        ms[_FORWARD] = _best(forward, seconds / 4, case.device)
        peaks[_FORWARD] = memory.peak()
    sample = [_sample(x) for x in results(layer, inputs, False)]
    ms[_BOTH] = _best(lambda: results(layer, inputs, True), seconds / 2, case.device)
    peaks[_BOTH] = memory.peak()
    return Measured(ms, peaks, sample)


def _sample(x: Tensor, count: int = 200) -> list[float]:
    """Return about `count` numbers, spread over a tensor."""
    step = max(1, x.numel() // count) | 1  # odd, so the samples are not all in one column
    numbers: list[float] = x.detach().flatten()[::step].float().tolist()
    return numbers


def _best(call: Callable[[], object], seconds: float, device: str) -> float:
    """Return the milliseconds of the fastest of several calls within `seconds`; there is at least one call.

    With one CPU thread the process time is measured, which other work on the machine disturbs least.
    """
    single_threaded = device == "cpu" and torch.get_num_threads() == 1
    clock = time.process_time if single_threaded else time.perf_counter
    best, start = math.inf, time.perf_counter()
    for _ in range(_MAX_CALLS):
        call_start = clock()
        call()
        if device == "cuda":
            torch.cuda.synchronize()
        best = min(best, clock() - call_start)
        if time.perf_counter() - start + best > min(seconds, _MAX_SECONDS):
            break
    return 1000 * best  # milliseconds


class _Memory:
    """Memory allocated from now on: PyTorch's count on a GPU, the kernel's on Linux, unknown elsewhere."""

    def __init__(self, device: str) -> None:
        self.device = device
        if device == "cuda":
            torch.cuda.reset_peak_memory_stats()
        self.before = torch.cuda.memory_allocated() / 2**20 if device == "cuda" else _process_memory("VmRSS")  # MiB

    def peak(self) -> float | None:
        """Return the peak so far in MiB."""
        used = torch.cuda.max_memory_allocated() / 2**20 if self.device == "cuda" else _process_memory("VmHWM")
        return None if used is None or self.before is None else max(0.0, used - self.before)


def _process_memory(name: str) -> float | None:
    """Return a size in MiB from Linux's status of this process."""
    return _memory_table(Path("/proc/self/status")).get(name)


def _memory_table(file: Path) -> dict[str, float]:
    """Read lines such as `VmRSS:  2048 kB`, in MiB; empty if the file does not exist."""
    if not file.exists():
        return {}
    lines = (line.split() for line in file.read_text(encoding="ascii", errors="replace").splitlines())
    return {words[0].rstrip(":"): int(words[1]) / 1024 for words in lines if len(words) == 3 and words[2] == "kB"}


def _limit_memory(device: str) -> None:
    """Limit this process to half of the free memory, so that only a contender that needs more fails."""
    free = _memory_table(Path("/proc/meminfo")).get("MemAvailable")
    if device == "cpu" and free is not None and sys.platform == "linux":
        import resource

        limit = int(free / 2 * 2**20)  # bytes
        resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))


def _child(connection: Connection, case: Case, contender: str, seconds: float, n_threads: int) -> None:
    """Measure in a separate process and send the result, or the text that memory did not suffice."""
    torch.set_num_threads(n_threads)
    raise_trim_threshold()  # as in training, for all contenders: otherwise much time goes into new pages
    _limit_memory(case.device)
    try:
        connection.send(measure(case, contender, seconds))
    except (MemoryError, RuntimeError) as error:
        if not isinstance(error, MemoryError) and not any(w in str(error) for w in ("memory", "bad_alloc")):
            raise
        connection.send("not enough memory")


def in_own_process(case: Case, contender: str, seconds: float) -> Measured | str:
    """Return the result of `measure` in a new process, or the reason why there is none.

    Raises:
        RuntimeError: the process failed, with its own message on standard error.
    """
    context: multiprocessing.context.ForkServerContext | multiprocessing.context.SpawnContext
    if "forkserver" in multiprocessing.get_all_start_methods():
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["x_transformers", "benchmarks.attention"])  # imported once for all processes
    else:
        context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    child = context.Process(
        target=_child, args=(sender, case, contender, seconds, torch.get_num_threads()), daemon=True
    )
    child.start()
    sender.close()
    try:
        if not receiver.poll(60 + 20 * seconds):  # seconds
            child.kill()
            return "timed out"
        result: Measured | str = receiver.recv()
        return result
    except EOFError:
        child.join()
        if child.exitcode == -9:
            return "killed, probably for lack of memory"
        raise RuntimeError(f"measuring {contender} ended with {child.exitcode}: {case}") from None
    finally:
        child.join()
        receiver.close()


@dataclass
class Forecast:
    """Predicts the duration of a contender at the next length, so that no measurement exceeds `seconds`."""

    seconds: float
    known: dict[tuple[str, int], list[tuple[int, float]]] = field(default_factory=dict)

    def record(self, contender: str, batch: int, length: int, duration: float) -> None:
        """Record the seconds of one call in each direction; infinite for a failure."""
        self.known.setdefault((contender, batch), []).append((length, duration))

    def refusal(self, contender: str, batch: int, length: int) -> str | None:
        """Return the reason to skip a case, or None.

        Time is assumed to grow as before, at most with the square of the length.
        """
        shorter = [(tokens, duration) for tokens, duration in self.known.get((contender, batch), []) if tokens < length]
        if not shorter:
            return None
        last, duration = shorter[-1]
        if math.isinf(duration):
            return f"failed at {last} tokens"
        power = 2.0  # as attention itself grows
        if len(shorter) > 1 and duration > shorter[-2][1]:
            power = min(2.0, max(1.0, math.log(duration / shorter[-2][1]) / math.log(last / shorter[-2][0])))
        expected = duration * (length / last) ** power
        return f"would take about {expected:.0f} s" if expected > self.seconds else None


def check_agreement(samples: Mapping[str, Sequence[Sequence[float] | Tensor]], tolerance: float) -> None:
    """Compare all contenders with the first, tensor by tensor, by the norm of the difference.

    Raises:
        RuntimeError: one of them computes something else, or nothing finite.
    """
    (first, expected), *remaining = samples.items()
    for name, tensors in remaining:
        for number, (expected_values, values) in enumerate(zip(expected, tensors, strict=True)):
            a, b = torch.as_tensor(expected_values), torch.as_tensor(values)
            difference = float((a - b).norm() / a.norm().clamp(min=1e-30))
            if not difference <= tolerance:  # so that NaN is refused
                tensor_name = "output" if number == 0 else f"gradient {number}"
                raise RuntimeError(f"{name} and {first} differ in their {tensor_name} by {difference:.2g} of its norm")


def measure_attention(
    seconds: float,
    *,
    settings: Sequence[str] = tuple(SETTINGS),
    lengths: Sequence[int] = LENGTHS,
    precisions: Sequence[str] | None = None,
) -> Iterator[dict[str, object]]:
    """Yield rows of milliseconds and peak MiB of all contenders; after each case the ratios of the automatic kernel.

    A contender that would take more than `seconds` for a case is skipped, with a row that says so; the plain equation
    is skipped beyond 4,096 tokens, without a row. Length 512 is also measured with a batch of 8.
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


def _rows(case: Case, forecast: Forecast) -> Iterator[dict[str, object]]:
    """Measure all contenders at one case and yield their rows, then the ratios."""
    measurements: dict[str, Measured] = {}
    for contender in contenders(case):
        measured = forecast.refusal(contender, case.batch, case.length) or in_own_process(
            case, contender, forecast.seconds
        )
        if isinstance(measured, str):
            if not measured.startswith("would"):
                forecast.record(contender, case.batch, case.length, math.inf)
            yield case.row(kernel=contender, skipped=measured)
            continue
        measurements[contender] = measured
        duration = sum(measured.ms.values()) + measured.ms[_BOTH]  # one call more, for the comparison
        forecast.record(contender, case.batch, case.length, duration / 1000)
    if not measurements:
        return
    same = {name: measurement.sample for name, measurement in measurements.items() if name != DENSE}
    check_agreement(same, TOLERANCE[case.precision])
    for direction in next(iter(measurements.values())).ms:
        for contender, measurement in measurements.items():
            peak = measurement.peak_mib[direction]
            yield case.row(
                kernel=contender,
                direction=direction,
                ms=round(measurement.ms[direction], 3),
                peak_mib=None if peak is None else round(peak, 1),
            )
        yield from _ratios(case, direction, measurements)


def _ratios(case: Case, direction: str, measurements: dict[str, Measured]) -> Iterator[dict[str, object]]:
    """Yield time and memory of the automatic kernel relative to the best peer, and its time to our best kernel; where
    there is no peer, its time to dense attention."""
    kernel = chosen(case)
    if {kernel, DENSE} <= measurements.keys():
        ratio = measurements[kernel].ms[direction] / measurements[DENSE].ms[direction]
        yield case.row(chosen=kernel, direction=direction, time_to_dense=round(ratio, 2))
    peers = [measurement for name, measurement in measurements.items() if name in PEERS]
    if kernel not in measurements or not peers:
        return
    ours = measurements[kernel]
    kernels = {name: measurement.ms[direction] for name, measurement in measurements.items() if name in KERNELS}
    ratios: dict[str, object] = {
        "time_to_best_peer": round(ours.ms[direction] / min(p.ms[direction] for p in peers), 2)
    }
    memory = ours.peak_mib[direction]
    peer_peaks = [peak for p in peers if (peak := p.peak_mib[direction]) is not None]
    if memory is not None and peer_peaks:
        ratios["memory_to_best_peer"] = round(max(memory, 1.0) / max(min(peer_peaks), 1.0), 2)  # 1 MiB at least
    best = min(kernels, key=lambda name: kernels[name])
    ratios["time_to_best_kernel"] = round(ours.ms[direction] / kernels[best], 2)
    yield case.row(chosen=kernel, direction=direction, **ratios, best_kernel=best)
