"""Worker processes that answer blocks of texts, and give the answers in the order of the blocks."""

import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue
from typing import Protocol, TypeVar

from atento.base.errors import AtentoError
from atento.base.processes import Child, Message, receive, send

SEPARATOR = "\0"  # of the texts of a block; no text of a file has it
Answer = Message
T = TypeVar("T")


class TextWorkers(Protocol):
    """Workers that answer blocks of texts, wherever they are."""

    def answers(self, blocks: Iterable[list[str]]) -> Iterator[tuple[list[str], Answer]]:
        """Yield each block with its answer, in order; only a few blocks are in memory at a time.
        Raises AtentoError: a worker ended, and its block could not be answered.
        """
        ...

    def close(self) -> None:
        """End the workers."""
        ...


class TextProcesses:
    """Worker processes of this machine.

    Args:
        program: what a worker runs (`python -c`), which calls `serve`.
        arguments: of the program.
        count: number of processes.
    """

    def __init__(self, program: str, arguments: Sequence[str], count: int) -> None:
        self._free: SimpleQueue[Child] = SimpleQueue()
        self._workers = [Child("-c", program, *arguments, TOKENIZERS_PARALLELISM="false") for _ in range(count)]
        for worker in self._workers:
            self._free.put(worker)
        self._threads = ThreadPoolExecutor(max(1, count))

    def answers(self, blocks: Iterable[list[str]]) -> Iterator[tuple[list[str], Answer]]:
        """Yield each block with its answer, in order."""
        submit = lambda texts: self._threads.submit(self._exchange, texts)  # noqa: E731
        yield from in_order(blocks, submit, lambda future: future.result(), 2 * len(self._workers))

    def _exchange(self, texts: bytes) -> Answer:
        """Send texts to a free worker and return its answer."""
        worker = self._free.get()
        try:
            worker.send(texts, b"")
            answer = worker.receive()
        finally:
            self._free.put(worker)
        if answer is None:
            raise AtentoError(f"a process that reads text ended with status {worker.wait()}; its error is above")
        return answer

    def close(self) -> None:
        """End the workers."""
        for worker in self._workers:
            worker.close()
        self._threads.shutdown(cancel_futures=True)


def in_order(
    blocks: Iterable[list[str]], submit: Callable[[bytes], T], result: Callable[[T], Answer], most: int
) -> Iterator[tuple[list[str], Answer]]:
    """Yield blocks with their answers, in order.

    Args:
        blocks: of texts.
        submit: begins to answer the texts of a block, in UTF-8 with `SEPARATOR` between.
        result: waits for the answer.
        most: number of blocks that wait for their answers.
    """
    waiting: deque[tuple[list[str], T]] = deque()
    for block in blocks:
        waiting.append((block, submit(SEPARATOR.join(block).encode("utf-8"))))
        if len(waiting) > most:
            texts, under_way = waiting.popleft()
            yield texts, result(under_way)
    while waiting:
        texts, under_way = waiting.popleft()
        yield texts, result(under_way)


def serve(answer: Callable[[bytes], Answer]) -> None:
    """In a worker: answer each block of texts on standard input, until the input ends."""
    while (message := receive(sys.stdin.buffer)) is not None:
        send(sys.stdout.buffer, *answer(message[0]))
