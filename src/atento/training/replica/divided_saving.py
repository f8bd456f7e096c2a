"""The processes that save a checkpoint of divided weights together."""

from collections.abc import Callable
from typing import TypeVar

from atento.training.replica.control_messages import Channel, as_here, description_of

T = TypeVar("T")

SAVING = 600.0  # seconds that processes wait for each other


class SavingProcesses:
    """The processes as they save a checkpoint together, also in threads (`training.replica.local.Writers`).

    Args:
        writes: whether this process has the first copy of its shard, which is saved.
        shards: number of shards.
    """

    def __init__(self, writes: bool, shards: int) -> None:
        self.channel = Channel(SAVING)  # of their own, since threads use it
        self.main, self.shards = self.channel.rank == 0, shards
        self.shard = self.channel.rank if writes else None

    def all_do(self, work: Callable[[], T]) -> list[T]:
        """Do something on all processes, and return the plain results of all.

        Raises:
            An exception on all processes, if `work` raises one on any.
        """
        failure: Exception | None = None
        result: object = None
        try:
            result = work()
        except Exception as error:
            failure = error
        everyones = self.channel.gather([result, None if failure is None else description_of(failure)])
        if failure is not None:
            raise failure
        for rank, (_, description) in enumerate(everyones):
            if description is not None:
                raise as_here(rank, *description)
        return [result for result, _ in everyones]
