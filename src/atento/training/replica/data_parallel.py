"""Several processes that train one network: its parts are dealt out, and gradients are summed over all of them."""

import itertools
import statistics
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from datetime import timedelta
from typing import TypeVar, cast

import torch
import torch.distributed as dist
from torch import Tensor

from atento.base.errors import AtentoError, TrainingError
from atento.config.sections.training import ParallelConfig
from atento.networks.interface import Network
from atento.storage.writer import Writers
from atento.training.replica.control_messages import (
    AGAIN,
    LOST,
    Channel,
    LostProcess,
    answered,
    as_here,
    description_of,
    is_of_network,
)
from atento.training.replica.local import GradientSum, Replica, Weights
from atento.training.replica.lost import begin
from atento.training.replica.sharded_weights import ShardedSum, ShardedWeights, shards_of
from atento.training.replica.sums import AllReduceSum, DeterministicAllReduce

UPDATES = 10  # that are measured, besides the first one, in which kernels are compiled
SLOW = 2.0  # times the usual pace


class Pace:
    """The seconds that each process takes for its parts of updates."""

    def __init__(self, size: int) -> None:
        self.updates = 0
        self.parts, self.seconds = [0] * size, [0.0] * size
        self.reported = False

    def add(self, computed: Sequence[tuple[int, float]]) -> None:
        """Take in the number of parts of an update, and the seconds, of each process."""
        self.updates += 1
        if self.updates > 1:  # the first compiles kernels
            for rank, (parts, seconds) in enumerate(computed):
                self.parts[rank] += parts
                self.seconds[rank] += seconds

    def slow_process(self) -> str | None:
        """Return a sentence about a process that takes twice as long for a part as the others, once."""
        paces = [seconds / parts for parts, seconds in zip(self.parts, self.seconds) if parts]  # seconds a part
        if self.reported or self.updates <= UPDATES or len(paces) < 2:
            return None
        slowest = max(paces)
        usual = statistics.median(pace for pace in paces if pace is not slowest)  # of the others
        if slowest < SLOW * usual:
            return None
        self.reported = True
        rank = next(r for r, parts in enumerate(self.parts) if parts and self.seconds[r] / parts == slowest)
        return (
            f"process {rank} takes {slowest * 1e3:,.0f} ms for a part of an update, and the others {usual * 1e3:,.0f} "
            "ms: they wait for it"
        )


T = TypeVar("T")

CHECK_EVERY = 100  # updates between two comparisons of the weights
PATIENCE = 6 * 3600.0  # seconds that processes wait while the first one prepares, validates or saves
SAVING = 600.0  # seconds that they wait for each other while all save their shards


class Processes(Replica):
    """One of several processes, each with a copy of the network or a shard of a copy.

    Part n of an update is computed by process n modulo the number of processes. In exact mode that number is first
    rounded up to a power of two, 2^k, and process r also has the parts of the others that leave the remainder r. So
    each process can sum the gradients of its parts up to level k of the tree.

    Args:
        config: the section `training.parallel` of the recipe.
        device: "cpu" or "cuda".
    """

    def __init__(self, config: ParallelConfig, device: str = "cpu") -> None:
        self.config = config
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        self.main = self.rank == 0
        self.update_channel, self.save_channel = Channel(config.timeout), Channel(PATIENCE)
        self.levels = (self.size - 1).bit_length() if config.exact else 0  # of the tree over processes
        self.slots = 1 << self.levels if config.exact else self.size  # 2^levels remainders in exact mode
        self.shards = None if config.shard == 1 else shards_of(device, config.shard, self._group, self.answered)
        if self.shards is not None:
            channel = Channel(SAVING)  # of its own, since threads use it
            shard = self.rank if self.shards.writes else None
            self.writers = Writers(self.main, shard, self.shards.count, channel.share)
        self.pace = Pace(self.size)
        self._checked = False  # whether the weights have been compared since the start
        self._told: Exception | None = None  # by another process, in `on_all_processes`
        self._in_turn = False  # in `main_process_first`: nobody waits for what the first process alone does

    def _group(self, ranks: list[int]) -> dist.ProcessGroup:
        """Return a group of some of the processes, with the time limit of an update."""
        group: dist.ProcessGroup = dist.new_group(ranks, timeout=timedelta(seconds=self.config.timeout))
        return group

    def _owner(self, number: int) -> int:
        return number % self.slots % self.size  # remainders beyond the processes are dealt round

    def ours(self) -> Iterator[bool]:
        """Return for each part of an update, in order, whether this process computes it."""
        return itertools.cycle([self._owner(number) == self.rank for number in range(self.slots)])

    def lacks_part(self, own: int, total: int) -> bool:
        """Return whether this process has a part less than the first one, and weights are sharded."""
        return self.shards is not None and own < -(-total // self.size)  # the first has ⌈total / size⌉

    def weights(self, network: Network, dtype: torch.dtype) -> Weights:
        """Return the weights, whole or sharded."""
        return super().weights(network, dtype) if self.shards is None else ShardedWeights(network, dtype, self.shards)

    def check(self, step: int, parameters: Sequence[Tensor]) -> None:
        """Compare a sum of the bits of all weights, at the first update after a start and every 100 updates.

        A shard is compared with the same shard of the other copies.
        Raises TrainingError: the weights or the steps of two processes differ.
        """
        begin(step)
        if self._checked and step % CHECK_EVERY:
            return
        self._checked = True
        everyones = self.update_channel.gather([step, checksum(parameters)])
        for rank, (other_step, sum_of_bits) in enumerate(everyones):
            if other_step != everyones[0][0]:
                raise TrainingError(f"process {rank} is at step {other_step}, and process 0 at {everyones[0][0]}")
            first = rank % self.config.shard  # the process of the first copy with the same weights
            if sum_of_bits != everyones[first][1]:
                raise TrainingError(
                    f"step {step}: the weights of process {rank} are not those of process {first}; run the same "
                    "command to continue from the last checkpoint"
                )

    def exchange(self, values: list[T]) -> list[T]:
        """Give the values of the parts of this process, and get those of all parts of the update, in order."""
        return self._in_order(self.update_channel.gather(values))

    def _in_order(self, everyones: list[list[T]]) -> list[T]:
        by_process = [iter(values) for values in everyones]
        total = sum(map(len, everyones))
        dealt = [sum(self._owner(number) == rank for number in range(total)) for rank in range(self.size)]
        if dealt != [len(values) for values in everyones]:
            raise TrainingError(
                f"the processes have {', '.join(str(len(values)) for values in everyones)} parts of an update, and "
                f"{', '.join(map(str, dealt))} were dealt: their data differ"
            )
        return [next(by_process[self._owner(number)]) for number in range(total)]  # by number of the part

    def together(self, compute: Callable[[], list[T]]) -> list[T]:
        """Compute the values of the parts of this process, and get those of all parts."""

        def timed() -> tuple[list[T], float]:
            started = time.perf_counter()
            try:
                return compute(), time.perf_counter() - started  # without the wait
            except Exception as error:
                if self.shards is None:
                    raise
                # the others wait for its part, and end when it ends
                what = str(error) if isinstance(error, AtentoError) else f"{type(error).__name__}: {error}"
                what = LOST if is_of_network(error) else f"{what:.300}; weights are sharded, so that all processes end"
                raise LostProcess(f"process {self.rank} of {self.size}: {what}; {AGAIN}") from error

        everyones = self.update_channel.share(timed)
        self.pace.add([(len(values), seconds) for values, seconds in everyones])
        return self._in_order([values for values, _ in everyones])

    def gradient_sum(self, weights: Weights, parts: int) -> GradientSum:
        """Return a sum over all parts of an update on all processes."""
        if isinstance(weights, ShardedWeights):
            return ShardedSum(weights)
        parameters = list(weights.parameters.values())
        return DeterministicAllReduce(self, parameters, parts) if self.config.exact else AllReduceSum(self, parameters)

    def slow_process(self) -> str | None:
        """Return a sentence about a process that computes much slower than the others, once.

        With sharded weights, all processes wait for the slowest one at each block, and nobody knows which it is.
        """
        return self.pace.slow_process() if self.shards is None else None

    def highest(self, value: int) -> int:
        """Return the highest of the values of all processes."""
        highest = torch.tensor([value])
        self.update_channel.highest(highest)
        return int(highest)

    def on_main_process(self, work: Callable[[], T]) -> T:
        """Let the first process alone do something, and return its result on all of them."""
        if self._in_turn:
            return work() if self.main else cast(T, None)
        return self.save_channel.share(lambda: work() if self.main else cast(T, None))[0]

    def gather(self, value: T) -> list[T]:
        """Give plain data to all processes, and get what each has given, by its number.

        Raises:
            The exception of another process whose `work` of `on_all_processes` has raised one.
        """
        everyones = self.save_channel.gather([value, None])
        for rank, (_, description) in enumerate(everyones):
            if description is not None:
                self._told = as_here(rank, *description)
                raise self._told
        return [value for value, _ in everyones]

    def on_all_processes(self, work: Callable[[], T]) -> T:
        """Do something on all processes at the same time, and return the result of this one.

        What the first process says with warnings, the others do not repeat.
        """
        try:
            with warnings.catch_warnings():
                if not self.main:
                    warnings.simplefilter("ignore")
                result = work()
        except Exception as error:
            if error is not self._told and not isinstance(error, LostProcess):
                self.save_channel.gather([None, description_of(error)])
            raise
        self.gather(None)
        return result

    def main_process_first(self, work: Callable[[], T]) -> T:
        """Do something on the first process, then on the others at the same time."""
        results: list[T] = []

        def take_turn() -> None:
            self._in_turn = True
            try:
                results.append(work())
            finally:
                self._in_turn = False

        for turn in (self.main, not self.main):
            self.save_channel.share(take_turn if turn else lambda: None)
        return results[0]

    def answered(self) -> AbstractContextManager[None]:
        """Turn the error of a collective operation in an update into one that says what has happened."""
        return answered(self.rank, self.size, self.config.timeout)


def checksum(parameters: Sequence[Tensor]) -> int:
    """Return a sum of the bits of parameters, weighted by their places in the list."""
    integers = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}  # by bytes an element
    total = 0
    for index, parameter in enumerate(parameters):
        bits = parameter.detach().contiguous().view(integers[parameter.element_size()])  # the bits, also of NaN
        total += (2 * index + 1) * int(bits.sum(dtype=torch.int64))  # odd factors: a swap of two tensors shows
    return total & (1 << 64) - 1  # modulo 2^64
