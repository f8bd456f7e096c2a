"""Runs blocks on workers side by side: hands them out, does those of a lost worker again, and writes the parts."""

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from queue import SimpleQueue
from types import TracebackType

from atento.base.errors import AtentoError
from atento_cli.scale.line_blocks import Block
from atento_cli.scale.workers import Answer, Worker, WorkerLost

ATTEMPTS = 3  # of a block, or of a worker to load the model
_FAILED = 3  # blocks that fail `ATTEMPTS` times before the run ends
_ENDING = 5.0  # seconds that workers have to end

Start = Callable[[int], Worker]  # the number of the worker -> the worker, which may still be loading


@dataclass(frozen=True)
class _Outcome:
    """What became of a block; without one, what a new worker said."""

    block: Block | None
    result: Answer | WorkerLost | BaseException


class WorkerPool:
    """Workers, each driven by a thread of this process; a context manager that ends them.

    Args:
        start: starts one.
    """

    def __init__(self, count: int, start: Start) -> None:
        self._start, self._closed = start, False
        self._blocks: SimpleQueue[tuple[Block, bytes] | None] = SimpleQueue()
        self.outcomes: SimpleQueue[_Outcome] = SimpleQueue()
        self._workers: dict[int, Worker] = {}
        self._lock = threading.Lock()
        self._threads = [threading.Thread(target=self._drive, args=(n,), daemon=True) for n in range(count)]

    def __enter__(self) -> "WorkerPool":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the workers, whatever they do."""
        with self._lock:
            self._closed = True
            workers = list(self._workers.values())
        for _ in self._threads:
            self._blocks.put(None)
        for worker in workers:
            worker.close()
        deadline = time.monotonic() + _ENDING
        for thread in self._threads:  # one may be starting a worker, which it then ends
            thread.join(max(0.0, deadline - time.monotonic()))

    def put(self, block: Block, raw: bytes) -> None:
        """Hand out a block to the next worker that is free."""
        self._blocks.put((block, raw))

    def _drive(self, number: int) -> None:
        """Give one worker block after block, in a thread; a lost worker is replaced before the next block.

        A worker without a model takes no block: a cluster that has lost a machine may never have room for it.
        """
        worker: Worker | None = None
        while not self._closed:
            block: Block | None = None
            try:
                if worker is None:
                    worker = self._started(number)
                    self.outcomes.put(_Outcome(None, worker.ready()))
                item = self._blocks.get()
                if item is None:
                    return
                block, raw = item
                self.outcomes.put(_Outcome(block, worker.answer(block, raw)))
            except WorkerLost as error:
                with self._lock:
                    lost = self._workers.pop(number, None)
                if lost is not None:
                    lost.close()
                worker = None
                self.outcomes.put(_Outcome(block, error))
            except BaseException as error:
                self.outcomes.put(_Outcome(block, error))
                return

    def _started(self, number: int) -> Worker:
        worker = self._start(number)
        with self._lock:
            self._workers[number] = worker
            closed = self._closed
        if closed:
            worker.close()
        return worker


class BlockRun:
    """A run over blocks.

    Args:
        start: starts one.
        done: called with a block and its answer, in the order in which they are finished.
        heard: called with what a worker says when its model is loaded.
        lost: called with a sentence about a worker that was lost.
    """

    def __init__(
        self,
        workers: int,
        start: Start,
        done: Callable[[Block, Answer], object],
        heard: Callable[[Answer], object] = lambda answer: None,
        lost: Callable[[str], object] = lambda text: None,
    ) -> None:
        self._workers, self._start, self._done, self._heard, self._lost = workers, start, done, heard, lost
        self._under_way: dict[int, tuple[Block, bytes]] = {}
        self._attempts = Counter[int]()
        self._failed: list[tuple[Block, WorkerLost]] = []
        self._unloaded = 0  # workers in a row that were lost before they had a model

    def run(self, blocks: Iterable[tuple[Block, bytes]]) -> None:
        """Answer all blocks, with their bytes or none.

        A block that lost `ATTEMPTS` workers is left out while the others go on; the error at the end names it.
        Raises AtentoError: the model cannot be loaded, a block cannot be read, or it lost every worker that tried it.
        """
        waiting = iter(blocks)
        with WorkerPool(self._workers, self._start) as pool:
            self._hand_out(pool, waiting)
            while self._under_way and len(self._failed) < _FAILED:
                outcome = pool.outcomes.get()
                block, result = outcome.block, outcome.result
                if isinstance(result, Answer):
                    if block is None:
                        self._unloaded = 0
                        self._heard(result)
                    else:
                        del self._under_way[block.number]
                        self._done(block, result)
                elif not isinstance(result, WorkerLost):
                    raise result  # no loss of a worker: trying again would not help
                elif block is None:  # lost before it had a model
                    self._unloaded += 1
                    if self._unloaded == ATTEMPTS:
                        raise AtentoError(
                            f"the model could not be loaded in {ATTEMPTS} workers; the last time {result}"
                        )
                    self._lost(f"a worker was lost before its model was loaded: {result}")
                elif (attempts := self._attempts[block.number] + 1) < ATTEMPTS:
                    self._attempts[block.number] = attempts
                    self._lost(f"a worker was lost in {block.range}, which is done again: {result}")
                    pool.put(*self._under_way[block.number])
                else:
                    del self._under_way[block.number]
                    self._failed.append((block, result))
                self._hand_out(pool, waiting)
        if self._failed:
            names = ", ".join(block.range for block, _ in self._failed)
            raise AtentoError(f"{names} failed {ATTEMPTS} times; the last time {self._failed[-1][1]}")

    def _hand_out(self, pool: WorkerPool, waiting: Iterator[tuple[Block, bytes]]) -> None:
        """Keep one block ready beside those that workers have."""
        while len(self._under_way) <= self._workers and (item := next(waiting, None)) is not None:
            self._under_way[item[0].number] = item
            pool.put(*item)
