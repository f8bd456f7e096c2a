"""Join the processes that a launcher has started: torchrun, or `atento train --nproc`."""

import os
import signal
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

from atento.base.errors import AtentoError, ReadingNotice, UsageError, counted
from atento.config.sections.training import ParallelConfig
from atento.training.replica import environment
from atento.training.replica.control_messages import LostProcess, answered
from atento.training.replica.data_parallel import Processes
from atento.training.replica.environment import end_with_parent
from atento.training.replica.local import Replica
from atento.training.replica.lost import begun, write_record

STATUS_FILE = "ATENTO_STATUS_FILE"  # environment variable: where the first process writes the exit status of a failure


@contextmanager
def said_once() -> Iterator[None]:
    """Let the first process of a machine alone say how files are read and why it is refused: the others have the same
    command and recipe.
    """
    first = not environment.launched() or environment.local_rank() == 0
    with warnings.catch_warnings():
        if not first:
            warnings.simplefilter("ignore", ReadingNotice)
        try:
            yield
        except AtentoError as error:
            if first:
                raise
            raise SystemExit(error.exit_status) from error


@contextmanager
def replica_joined(config: ParallelConfig, device: str, folder: Path | None = None) -> Iterator[Replica]:
    """Join the processes that train together, as the environment names them; a process alone joins nobody.

    The first process says why a run ends. The others end with the same exit status and say nothing, unless they lost
    the first one.

    Args:
        config: the section `training.parallel` of the recipe.
        device: "cpu" or "cuda"; each process of a machine gets a GPU of its own.
        folder: where a process that has lost another writes its last collective operations; None: nowhere.

    Raises UsageError: the number of processes is not that of the recipe, or there are fewer GPUs than processes.
    LostProcess: the other processes do not answer.
    """
    rank, size = environment.rank(), environment.world_size()
    needed = config.shard if config.replicate == "auto" else config.replicate * config.shard
    with said_once():
        if size % config.shard if config.replicate == "auto" else size != needed:  # it cannot be divided into copies
            named = {"replicate": config.replicate, "shard": config.shard}
            keys = [f"`training.parallel.{key}` is {value}" for key, value in named.items() if value not in ("auto", 1)]
            raise UsageError(
                f"{' and '.join(keys) or '`training.parallel.replicate` is 1'}, and "
                f"{counted(size, 'process', 'processes')} {'was' if size == 1 else 'were'} started: give --nproc "
                f"{needed}{' or a multiple of it' if config.replicate == 'auto' else ''}, or start as many by torchrun"
            )
    if size == 1:
        yield Replica(config.exact)
        return
    end_with_parent()
    _connect(config, device, rank, size)
    try:
        yield Processes(config, torch.device(device).type)
    except AtentoError as error:
        lost = LostProcess(f"{error}{begun(size)}") if isinstance(error, LostProcess) else None
        if lost is not None:
            write_record(folder, rank, error.__cause__)
        # a launcher sends SIGTERM to all as soon as one process has ended; each may end by itself
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        if rank == 0 and STATUS_FILE in os.environ:
            Path(os.environ[STATUS_FILE]).write_text(str(error.exit_status), encoding="ascii")
        if lost is not None:
            raise lost from error
        if rank == 0:
            raise
        raise SystemExit(error.exit_status) from error
    else:
        dist.destroy_process_group()


def _connect(config: ParallelConfig, device: str, rank: int, size: int) -> None:
    backend = "gloo"
    if device.startswith("cuda"):
        backend, local = "cpu:gloo,cuda:nccl", environment.local_rank()
        if device != "cuda" or local >= torch.cuda.device_count():
            raise UsageError(
                f"each process needs a GPU of its own, and this machine has {torch.cuda.device_count()}: got device "
                f"{device!r} and process {local} of this machine; start fewer processes, or give --device cpu"
            )
        torch.cuda.set_device(local)
    missing = [name for name in ("MASTER_ADDR", "MASTER_PORT") if name not in os.environ]
    if missing:
        raise UsageError(
            f"WORLD_SIZE is {size}, and {' and '.join(missing)} {'is' if len(missing) == 1 else 'are'} not set: start "
            "training by `atento train --nproc` or torchrun"
        )
    with answered(rank, size, config.timeout):
        dist.init_process_group(
            backend, rank=rank, world_size=size, timeout=timedelta(seconds=config.timeout), init_method="env://"
        )
