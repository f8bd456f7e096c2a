"""Who writes checkpoints: a thread beside the next training steps, and processes that each save a shard."""

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor


@dataclass(frozen=True)
class Writers:
    """One of the processes that save sharded weights together (`atento.storage.shards`)."""

    main: bool  # whether this process commits the checkpoint; it has shard 0
    shard: int | None  # number of the shard that this process writes, from 0; None: another process writes it
    shards: int  # number of shards
    # does something on all processes and returns the plain results of all; raises an exception on all, if it is raised
    # on any
    on_all_processes: Callable[[Callable[[], object]], list[Any]]


class CheckpointWriter:
    """Writes one checkpoint at a time in a thread.

    Attributes:
        step: the step of the checkpoint that is being written; None: there is none.
    """

    def __init__(self) -> None:
        self.step: int | None = None
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None

    def start(self, step: int, write: Callable[[], None]) -> None:
        """Begin to write; the checkpoint before must have been waited for.

        If the system gives no thread, it is written before this returns.
        """
        if self.step is not None:
            raise ValueError(f"the checkpoint of step {self.step} has not been waited for")

        def work() -> None:
            try:
                write()
            except BaseException as error:  # raised where it is waited for
                self._error = error

        self.step, self._error = step, None
        thread = threading.Thread(target=work, name=f"checkpoint of step {step}")
        try:
            thread.start()
        except RuntimeError:  # too little memory for a thread
            work()
        else:
            self._thread = thread

    @property
    def done(self) -> bool:
        """Whether nothing is being written now."""
        return self._thread is None or not self._thread.is_alive()

    def wait(self) -> None:
        """Wait for the checkpoint. Raises CheckpointError: it could not be written."""
        if self._thread is not None:
            self._thread.join()
        error, self.step, self._thread, self._error = self._error, None, None, None
        if error is not None:
            raise error


def cpu_copy(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return copies of tensors on the CPU; training may change the originals then."""
    return {name: tensor.detach().to("cpu", copy=True) for name, tensor in tensors.items()}
