"""Run the sides of a comparison in processes of their own, in turns, so that noise affects all alike."""

import importlib.metadata
import importlib.util
import multiprocessing
import multiprocessing.context
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median
from types import TracebackType
from typing import Any, Protocol

import torch

from atento.errors import AtentoError, CapabilityError

_PAUSE = 0.25  # seconds between two turns: OpenMP of some libraries keeps its threads spinning for 0.2 after work
_MOST = 50  # rounds; more tell nothing new


class Contender(Protocol):
    """One side: making it imports its library, loading builds what is measured, then it runs piece after piece."""

    def load(self, *given: Any, **options: Any) -> None:
        """Raises CapabilityError where it cannot do what is asked for; the side is then left out."""

    def run(self, work: Any) -> Any:
        """Do one piece of work; what it gives back is compared between sides."""


@dataclass(frozen=True)
class Turn:
    """One piece of work: how long it took, what came out, and the MiB at most so far above the imported libraries."""

    seconds: float
    result: Any
    peak_mib: float | None


class Side:
    """A contender in a process of its own, with as many threads as this one has; a context that ends it.

    Raises:
        CapabilityError: it cannot do this; with its words. AtentoError: its process failed.
    """

    def __init__(self, kind: type[Contender], *given: Any) -> None:
        context: multiprocessing.context.ForkServerContext | multiprocessing.context.SpawnContext
        if "forkserver" in multiprocessing.get_all_start_methods():
            context = multiprocessing.get_context("forkserver")
            context.set_forkserver_preload(["atento.bench.processes"])  # PyTorch imported once for all processes
        else:
            context = multiprocessing.get_context("spawn")
        self._pipe, there = context.Pipe()
        self.name = " ".join([kind.__name__, *(str(value) for value in given)])
        self._process = context.Process(target=_serve, args=(there, kind, given, torch.get_num_threads()), daemon=True)
        self._process.start()
        there.close()
        refusal = self._hear()
        if refusal is not None:
            self.close()
            raise CapabilityError(refusal)

    def run(self, work: Any) -> Turn:
        """One turn."""
        turn: Turn = self._hear(work)
        return turn

    def close(self) -> None:
        """End the process."""
        self._pipe.close()  # it stops when nobody asks any more
        self._process.join()

    def _hear(self, said: Any = None) -> Any:
        """What the process answers, to what it is told if anything."""
        try:
            if said is not None:
                self._pipe.send(said)
            return self._pipe.recv()
        except (EOFError, ConnectionError):
            self._process.join()
            code = self._process.exitcode
            raise AtentoError(f"measuring {self.name} ended with {code}; its error is above") from None

    def __enter__(self) -> "Side":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


def _serve(pipe: Connection, kind: type[Contender], given: tuple[Any, ...], n_threads: int) -> None:
    """In the process of its own: build, say so, then answer each piece of work with a turn."""
    torch.set_num_threads(n_threads)
    contender = kind()
    before = _mib("VmRSS")
    try:
        contender.load(*given)
    except CapabilityError as error:
        pipe.send(str(error))
        return
    pipe.send(None)
    while True:
        try:
            work = pipe.recv()
        except EOFError:
            return
        began = time.perf_counter()
        result = contender.run(work)
        taken = time.perf_counter() - began
        most = _mib("VmHWM")
        pipe.send(Turn(taken, result, None if most is None or before is None else max(0.0, most - before)))


def _mib(name: str) -> float | None:
    """A size out of Linux's table about this process; None elsewhere."""
    file = Path("/proc/self/status")
    if not file.exists():
        return None
    lines = (line.split() for line in file.read_text(encoding="ascii", errors="replace").splitlines())
    return next((int(words[1]) / 1024 for words in lines if words and words[0] == f"{name}:"), None)


def take_turns(
    sides: Mapping[str, Side], work: Any, seconds: float, rounds: int = 3, *, warm: Any = None
) -> dict[str, list[Turn]]:
    """All sides at the same work, one after another (A, B, C, A, B, C ...), after one turn each to warm up.

    At least `rounds` rounds, and as many as make about `seconds` a side; between turns the machine rests. `warm` is
    what is done to warm up: the work itself if not given.
    """
    for side in sides.values():
        side.run(work if warm is None else warm)
    turns: dict[str, list[Turn]] = {name: [] for name in sides}
    spent, count = 0.0, 0
    while count < rounds or (spent < seconds * len(sides) and count < _MOST):
        for name, side in sides.items():
            time.sleep(_PAUSE)
            turn = side.run(work)
            turns[name].append(turn)
            spent += turn.seconds
        count += 1
    return turns


def best(turns: list[Turn]) -> float:
    """Seconds of the quickest turn: what the side takes where nothing disturbs it."""
    return min(turn.seconds for turn in turns)


def middle(turns: list[Turn]) -> float:
    """Seconds of the turn in the middle."""
    return median(turn.seconds for turn in turns)


def peak(turns: list[Turn]) -> int | None:
    """MiB at most in any turn, None where it is not known."""
    known = [turn.peak_mib for turn in turns if turn.peak_mib is not None]
    return round(max(known)) if known else None


def about(bench: str, size: str, packages: Sequence[str]) -> dict[str, Any]:
    """What the rows that follow were measured with."""
    found = {name: importlib.metadata.version(name) for name in packages if importlib.util.find_spec(name)}
    return {"bench": bench, "size": size, "threads": torch.get_num_threads(), "torch": torch.__version__, **found}
