"""What is known of a process that does not answer: the update that each process has begun, and a flight record."""

import contextlib
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

_KEY = "atento/update"  # of the store by which the processes have found each other


def begin(update: int) -> None:
    """Note for the other processes that this one begins an update."""
    with contextlib.suppress(RuntimeError):  # the process with the store has ended, as the next message will say
        _store().set(f"{_KEY}/{dist.get_rank()}", str(update))


def begun(size: int) -> str:
    """Return which update each process has begun, for a message; empty if nobody knows."""
    try:
        keys = [f"{_KEY}/{rank}" for rank in range(size)]
        updates = [int(_store().get(key)) if _store().check([key]) else 0 for key in keys]  # 0: it has begun none
    except RuntimeError:  # the process with the store has ended
        return ""
    behind = [rank for rank, update in enumerate(updates) if update < max(updates)]  # behind the one that is furthest
    if not behind:
        return f"; all had begun update {max(updates)}" if max(updates) else ""
    named = ", ".join(f"process {rank} update {updates[rank]}" for rank in behind[:5])
    return f"; the last update begun is {max(updates)}, and by {named}{' ...' if len(behind) > 5 else ''}"


def write_record(folder: Path | None, rank: int, cause: BaseException | None) -> None:
    """Write for a bug report how a process was lost, and the last collective operations of this one.

    Args:
        folder: the run folder; None: nothing is written.
        rank: number of this process.
        cause: the error of the library that sends messages, for the log; users are told what it means.
    """
    if folder is None or not folder.is_dir():
        return
    if cause is not None:
        with contextlib.suppress(OSError), (folder / "train.log").open("a", encoding="utf-8", newline="\n") as log:
            words = " ".join(str(cause).split())
            log.write(f"process {rank}: {words}\n")
    dump = getattr(torch._C._distributed_c10d, "_dump_fr_trace_json", None)  # of gloo; NCCL writes files of its own
    if dump is None:
        return
    with contextlib.suppress(OSError, RuntimeError):
        (folder / f"flight-recorder-{rank}.json").write_bytes(dump())


def _store() -> Any:
    return dist.distributed_c10d._get_default_store()
