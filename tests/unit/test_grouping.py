"""Batches that processes share: each computes some, and all get the results of all."""

import threading
from typing import Any

import pytest

from atento.tasks.grouping import all_results, batches_shared, by_length, results_of

LENGTHS = [3, 1, 4, 1, 5, 9, 2, 6, 0, 5]


class Process:
    """One of several threads that exchange what they have."""

    def __init__(self, rank: int, size: int, values: list[Any], barrier: threading.Barrier) -> None:
        self.rank, self.size, self.values, self.barrier = rank, size, values, barrier

    def gather(self, value: Any) -> list[Any]:
        self.values[self.rank] = value
        self.barrier.wait(10)
        everyones = list(self.values)
        self.barrier.wait(10)
        return everyones


@pytest.mark.parametrize("size", [1, 2, 3, 7])
def test_each_batch_is_computed_once_and_all_processes_have_all_results(size: int) -> None:
    values, barrier = [None] * size, threading.Barrier(size)
    computed: list[list[int]] = []
    results: list[Any] = [None] * size

    def compute(rows: list[int]) -> list[int]:
        computed.append(rows)
        inside = dict(results_of([[7], [8]], lambda numbers: numbers))  # what is inside a batch is not shared
        assert inside == {7: 7, 8: 8}
        return [LENGTHS[row] ** 2 for row in rows]

    def work(rank: int) -> None:
        with batches_shared(Process(rank, size, values, barrier)):
            squares = dict(results_of(by_length(LENGTHS, 8), compute, pack=str, unpack=int))
            results[rank] = squares, all_results(range(5), lambda item: [rank, item])

    workers = [threading.Thread(target=work, args=(rank,)) for rank in range(size)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert sorted(computed) == sorted(by_length(LENGTHS, 8))
    for squares, dealt in results:
        assert squares == {row: length**2 for row, length in enumerate(LENGTHS) if length}
        assert dealt == [[item % size, item] for item in range(5)]
