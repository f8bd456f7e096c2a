"""Start the processes of a run on this machine with PyTorch's elastic agent, and pass signals on to them."""

import logging
import os
import signal
import sys
import tempfile
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path

from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs
from torch.distributed.elastic.multiprocessing.api import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from atento.base.precision import available_cores
from atento.training.replica.environment import LAUNCHER
from atento.training.replica.joined import STATUS_FILE

RESTARTS = 3  # how often a run is started again after a process was killed
SAVING = 600  # seconds that a signal leaves the processes to save a checkpoint
STOPPED = 75  # exit status of a run that a signal stopped
UNSAVED = "; no checkpoint was saved: the same command continues from the last one, or begins"


def launch(
    processes: int, module: str, arguments: Sequence[str], report: Callable[[str], None], unsaved: str = UNSAVED
) -> int:
    """Run a module of Python in several processes of this machine, and wait for them.

    If a process is killed, the others end, and all start again from the last checkpoint. SIGTERM, SIGINT and SIGUSR1 go
    to all processes, which save a checkpoint.

    Args:
        processes: how many.
        report: called with each line for the user.
        unsaved: what the line about a signal adds if the processes were ended before they could stop by themselves.

    Returns:
        The exit status: 0, or that of the first process, or 128 and the number of the signal that ended it.
    """
    logging.disable(logging.ERROR)  # the agent logs what is reported here
    os.environ[LAUNCHER] = str(os.getpid())
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, available_cores() // processes)))
    try:
        return _supervised(processes, module, arguments, report)
    except SignalException as stop:
        number = signal.Signals(stop.sigval)
        report(f"stopped by {number.name}{unsaved}")
        return 128 + int(number)


def _supervised(processes: int, module: str, arguments: Sequence[str], report: Callable[[str], None]) -> int:
    """Start the processes, and again if one is killed; return the exit status.
    Raises SignalException: a signal has ended them, and the first one has said nothing about it.
    """
    for restarts_left in reversed(range(RESTARTS + 1)):
        again = [argument for argument in arguments if argument != "--force"]  # the folder is that of this run
        with tempfile.TemporaryDirectory(prefix="atento-") as folder:
            status_file = Path(folder) / "status"
            os.environ[STATUS_FILE] = str(status_file)
            config = LaunchConfig(
                min_nodes=1,
                max_nodes=1,
                nproc_per_node=processes,
                run_id=uuid.uuid4().hex,
                rdzv_backend="c10d",
                rdzv_endpoint="127.0.0.1:0",
                local_addr="127.0.0.1",
                max_restarts=0,  # the agent would also start again after a mistake in a recipe
                signals_to_handle="SIGTERM,SIGINT,SIGUSR1,SIGHUP,SIGQUIT",
                shutdown_timeout=SAVING,
                logs_specs=DefaultLogsSpecs(log_dir=folder),
            )
            run = elastic_launch(config, sys.executable)
            try:
                run("-m", module, *(arguments if restarts_left == RESTARTS else again))
            except SignalException:
                if status_file.exists():  # the first process has said how it ended
                    return int(status_file.read_text(encoding="ascii"))
                raise
            except ChildFailedError as error:
                codes = {rank: failure.exitcode for rank, failure in error.failures.items()}
                killed = {rank: -code for rank, code in codes.items() if 0 > code != -signal.SIGTERM}
                if not killed:  # the status is that of the first process, if it failed by itself
                    failed = (codes[rank] for rank in sorted(codes) if codes[rank] > 0)
                    return STOPPED if STOPPED in codes.values() else next(failed, 128 + signal.SIGTERM)
            else:
                return 0
        rank, number = next(iter(killed.items()))
        what = f"process {rank} of {processes} was killed by {signal.Signals(number).name}"
        if restarts_left:
            report(f"{what}; all start again from the last checkpoint ({RESTARTS - restarts_left + 1} of {RESTARTS})")
        else:
            report(f"error: {what}, as before; run the same command to continue from the last checkpoint")
    return 1
