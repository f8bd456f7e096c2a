"""Run the contenders of a comparison in separate processes, alternately, so that noise affects all of them alike."""

import importlib.metadata
import importlib.util
import multiprocessing
import multiprocessing.context
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median
from types import TracebackType
from typing import Any, Protocol

import torch

from atento.base.errors import AtentoError, CapabilityError
from atento.base.start_up import machine_environment
from benchmarks.devices import forget_peak, wait

_PAUSE = 0.25  # seconds between two runs: OpenMP of some libraries keeps its threads spinning for 0.2 s
_MAX_ROUNDS = 50


class Contender(Protocol):
    """One contender: constructing it imports its library, `load` prepares, and `run` does one piece of work."""

    def load(self, *arguments: Any, **options: Any) -> None:
        """Prepare the measurement.

        Raises:
            CapabilityError: the contender does not support the arguments; the benchmark then skips it.
        """

    def run(self, work: Any) -> Any:
        """Do one piece of work; the results of contenders are compared."""


@dataclass(frozen=True)
class Measurement:
    """One piece of work: its duration, its result, the peak MiB so far above the imported libraries (on a GPU: of its
    tensors there), and the processor time of all its threads, which other programs affect less than the duration."""

    seconds: float
    result: Any
    peak_mib: float | None
    processor_seconds: float = 0.0


class Side:
    """A contender in a separate process with the same number of threads as this one; a context manager that ends it.

    One that is given the device "cuda" runs in this process: waits of threads and memory of a process, for which
    others are started, are not measured there, and to import a library again takes longer than a round.

    A contender of another library (`other_library`) has the environment of the machine, without our waits of threads.

    Args:
        kind: the class of the contender.
        arguments: of its `load`.
        environment: all variables of its process; None: those of this process.
        threads: CPU threads; None: as many as this process.

    Raises:
        CapabilityError: the contender does not support the arguments. AtentoError: its process failed.
    """

    def __init__(
        self,
        kind: type[Contender],
        *arguments: Any,
        environment: Mapping[str, str] | None = None,
        threads: int | None = None,
    ) -> None:
        self.name = " ".join([kind.__name__, *(str(value) for value in arguments)])
        self.here = Measured(kind, arguments) if "cuda" in arguments else None
        if self.here is not None:
            return
        if environment is None and getattr(kind, "other_library", False):
            environment = machine_environment()
        context: multiprocessing.context.ForkServerContext | multiprocessing.context.SpawnContext
        if environment is None and "forkserver" in multiprocessing.get_all_start_methods():
            context = multiprocessing.get_context("forkserver")
            context.set_forkserver_preload(["benchmarks.processes"])  # PyTorch is imported once for all processes
        else:
            context = multiprocessing.get_context("spawn")
        self._pipe, child_pipe = context.Pipe()
        self._process = context.Process(
            target=_serve, args=(child_pipe, kind, arguments, threads or torch.get_num_threads()), daemon=True
        )
        with _variables(environment):
            self._process.start()
        child_pipe.close()
        refusal = self._exchange()
        if refusal is not None:
            self.close()
            raise CapabilityError(refusal)

    def run(self, work: Any) -> Measurement:
        """Run one piece of work and return its measurement."""
        measurement: Measurement = self._exchange(work) if self.here is None else self.here.run(work)
        return measurement

    def close(self) -> None:
        """End the process, or free what the contender holds."""
        if self.here is not None:
            self.here = None
            forget_peak()
            return
        self._pipe.close()  # the process stops when the pipe is closed
        self._process.join()

    def _exchange(self, message: object = None) -> Any:
        """Send a message, if there is one, and return the answer of the process."""
        try:
            if message is not None:
                self._pipe.send(message)
            return self._pipe.recv()
        except (EOFError, ConnectionError):
            self._process.join()
            code = self._process.exitcode
            raise AtentoError(f"measuring {self.name} ended with {code}; its error is above") from None

    def __enter__(self) -> "Side":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


@contextmanager
def _variables(environment: Mapping[str, str] | None) -> Iterator[None]:
    """Let this process have exactly these variables meanwhile, which a process that it starts inherits."""
    before = dict(os.environ)
    try:
        if environment is not None:
            os.environ.clear()
            os.environ.update(environment)
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


class Measured:
    """A contender in this process, and the memory that it holds.

    Args:
        kind: the class of the contender.
        arguments: of its `load`.

    Raises:
        CapabilityError: the contender does not support the arguments.
    """

    def __init__(self, kind: type[Contender], arguments: tuple[object, ...]) -> None:
        forget_peak()
        self._contender = kind()
        before, on_gpu = memory_mib("VmRSS"), _gpu_memory()[0]
        self._contender.load(*arguments)
        self._before = before
        self._held = _gpu_memory()[0] - on_gpu  # on a GPU, where others may hold theirs in the same process

    def run(self, work: Any) -> Measurement:
        """Run one piece of work and return its measurement."""
        wait()
        on_gpu, _ = _gpu_memory(forget=True)
        start, start_processor = time.perf_counter(), time.process_time()
        result = self._contender.run(work)
        wait()
        duration, processor = time.perf_counter() - start, time.process_time() - start_processor
        after, highest = _gpu_memory()
        peak = memory_mib("VmHWM")
        above = None if peak is None or self._before is None else max(0.0, peak - self._before)
        if torch.cuda.is_initialized():
            above = self._held + highest - on_gpu
            self._held += after - on_gpu
        return Measurement(duration, result, above, processor)


def _gpu_memory(forget: bool = False) -> tuple[float, float]:
    """MiB of tensors on the GPU now, and at most since this was asked with `forget`; zeros in a process without one."""
    if not torch.cuda.is_initialized():
        return 0.0, 0.0
    if forget:
        torch.cuda.reset_peak_memory_stats()
    return torch.cuda.memory_allocated() / 2**20, torch.cuda.max_memory_allocated() / 2**20


def _serve(pipe: Connection, kind: type[Contender], arguments: tuple[object, ...], n_threads: int) -> None:
    """In the separate process: load, report it, then answer each piece of work with a measurement."""
    torch.set_num_threads(n_threads)
    try:
        measured = Measured(kind, arguments)
    except CapabilityError as error:
        pipe.send(str(error))
        return
    pipe.send(None)
    while True:
        try:
            work = pipe.recv()
        except EOFError:
            return
        pipe.send(measured.run(work))


def memory_mib(name: str, process: int | str = "self") -> float | None:
    """Return a size in MiB from Linux's status of a process, of this one by default; None on other systems."""
    file = Path(f"/proc/{process}/status")
    if not file.exists():
        return None
    lines = (line.split() for line in file.read_text(encoding="ascii", errors="replace").splitlines())
    return next((int(words[1]) / 1024 for words in lines if words and words[0] == f"{name}:"), None)


def alternate(
    sides: Mapping[str, Side], work: Any, seconds: float, rounds: int = 3, *, warm_up: object = None
) -> dict[str, list[Measurement]]:
    """Run all contenders on the same work alternately (A, B, C, A, B, C ...), after one warm-up run each.

    Args:
        seconds: about how long each contender runs; the machine rests between runs.
        rounds: the minimum number of rounds.
        warm_up: the work of the warm-up run; None uses `work`.
    """
    for side in sides.values():
        side.run(work if warm_up is None else warm_up)
    measurements: dict[str, list[Measurement]] = {name: [] for name in sides}
    total_seconds, count = 0.0, 0
    while count < rounds or (total_seconds < seconds * len(sides) and count < _MAX_ROUNDS):
        for name, side in sides.items():
            if side.here is None:
                time.sleep(_PAUSE)
            measurement = side.run(work)
            measurements[name].append(measurement)
            total_seconds += measurement.seconds
        count += 1
    return measurements


def best_seconds(measurements: list[Measurement]) -> float:
    """Return the seconds of the fastest run, the one that other work disturbed least."""
    return min(measurement.seconds for measurement in measurements)


def median_seconds(measurements: list[Measurement]) -> float:
    """Return the median of the seconds."""
    return median(measurement.seconds for measurement in measurements)


def peak_mib(measurements: list[Measurement]) -> int | None:
    """Return the peak MiB over all runs, or None if it is unknown."""
    known = [measurement.peak_mib for measurement in measurements if measurement.peak_mib is not None]
    return round(max(known)) if known else None


def about(bench: str, size: str, packages: Sequence[str]) -> dict[str, object]:
    """Return a row that describes the setup: sizes, threads and versions."""
    versions = {name: importlib.metadata.version(name) for name in packages if importlib.util.find_spec(name)}
    return {"bench": bench, "size": size, "threads": torch.get_num_threads(), "torch": torch.__version__, **versions}
