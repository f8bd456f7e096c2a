"""Short messages between processes: plain data as JSON, with explicit time limits."""

import json
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, TypeVar, cast

import torch
import torch.distributed as dist
from torch import Tensor

from atento.base.errors import AtentoError, TrainingError

T = TypeVar("T")
SHORT = 1016  # bytes of a message that needs one collective operation


# what gloo and NCCL say of a process that has ended or does not answer; not of an address that cannot be reached
_SILENT = re.compile(
    r"(closed|reset) by peer|broken pipe|timed? ?out|socket closed|remote process exited", re.IGNORECASE
)
LOST = "another process has ended, or has not answered"
AGAIN = "run the same command to continue from the last checkpoint"


class OtherProcess(AtentoError):
    """Another process has failed, and says why."""

    def __init__(self, message: str, exit_status: int) -> None:
        super().__init__(message)
        self.exit_status = exit_status


class LostProcess(TrainingError):
    """Another process has ended or does not answer."""


class Channel:
    """Messages of all processes to all, on the CPU.

    Args:
        seconds: how long a process waits for the others.
    """

    def __init__(self, seconds: float) -> None:
        self.rank, self.size, self.seconds = dist.get_rank(), dist.get_world_size(), seconds
        self.group = dist.new_group(backend="gloo", timeout=timedelta(seconds=seconds))

    def gather(self, value: object) -> list[Any]:
        """Send plain data to all processes; return what each has sent, by its number.
        Raises LostProcess: a process has ended, or does not answer in time.
        """
        data = json.dumps(value).encode("ascii")
        heads = self._gather(len(data).to_bytes(8, "big") + data[:SHORT], 8 + SHORT)  # one round is enough for most
        sizes = [int.from_bytes(head[:8], "big") for head in heads]  # length in 8 bytes, then the beginning
        rests = [b""] * self.size
        if max(sizes) > SHORT:
            rests = self._gather(data[SHORT:], max(sizes) - SHORT)  # a second round, only for long ones
        return [json.loads((head[8:] + rest)[:size]) for head, rest, size in zip(heads, rests, sizes)]

    def share(self, work: Callable[[], T]) -> list[T]:
        """Do something on all processes, and return the plain results of all.

        Raises:
            An exception on all processes, if `work` raises one on any.
        """
        failure: Exception | None = None
        result = cast(T, None)
        try:
            result = work()
        except LostProcess:  # nobody can be told
            raise
        except Exception as error:  # the others must not wait for this process
            failure = error
        everyones = self.gather([result, None if failure is None else description_of(failure)])
        if failure is not None:
            raise failure
        for rank, (_, description) in enumerate(everyones):
            if description is not None:
                raise as_here(rank, *description)
        return [result if rank == self.rank else value for rank, (value, _) in enumerate(everyones)]

    def _gather(self, data: bytes, size: int) -> list[bytes]:
        ours = torch.frombuffer(bytearray(data.ljust(size, b"\0")), dtype=torch.uint8)
        everyones = [torch.empty_like(ours) for _ in range(self.size)]
        with self.answered():
            dist.all_gather(everyones, ours, group=self.group)
        return [tensor.numpy().tobytes() for tensor in everyones]

    def highest(self, values: Tensor) -> None:
        """Replace each value by its highest on all processes, in place."""
        with self.answered():
            dist.all_reduce(values, dist.ReduceOp.MAX, group=self.group)

    @contextmanager
    def answered(self) -> Iterator[None]:
        """Turn the error of a collective operation into one that says what has happened."""
        with answered(self.rank, self.size, self.seconds):
            yield


def is_of_network(error: Exception) -> bool:
    """Return whether a collective operation has failed, and not a computation of this process."""
    return isinstance(error, dist.DistError) or "gloo" in str(error) or "NCCL" in str(error)


@contextmanager
def answered(rank: int, size: int, seconds: float) -> Iterator[None]:
    """Turn the error of a collective operation into one that says what has happened.

    What the library says of a process that does not answer is left to the cause of the error, for --debug and the log;
    other words of it are repeated.
    Raises LostProcess: a process has ended, or does not answer in time.
    """
    try:
        yield
    except (RuntimeError, ValueError) as error:
        line = str(error).strip().partition("\n")[0]
        reason = re.sub(r"^\[[^]]*\.cc:\d+\] ", "", line)  # without the place in the source of PyTorch
        silent = _SILENT.search(reason) and "connect to" not in reason
        said = "" if silent else f" ({reason:.160})"
        raise LostProcess(f"process {rank} of {size}: {LOST} within {seconds:g} s{said}; {AGAIN}") from error


def description_of(error: Exception) -> list[object]:
    """Return an exception as plain data: kind, text, exit status."""
    if isinstance(error, AtentoError):
        return ["", str(error), error.exit_status]
    text = f"{type(error).__name__}: {error}"
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return ["memory", text, 1]
    return ["runtime" if isinstance(error, RuntimeError) else "", text, 1]


def as_here(rank: int, kind: str, text: str, exit_status: int) -> Exception:
    """Return the exception of another process as one of this process; memory that ran out there has run out here."""
    message = f"process {rank}: {text}"
    if kind == "memory":
        return MemoryError(message)
    return RuntimeError(message) if kind == "runtime" else OtherProcess(message, exit_status)
