"""Batches that processes share, and batches that threads compute at a time: all results, in their order."""

import sys
import threading
from contextlib import suppress
from typing import Any

import pytest
import torch

from atento.base.precision import side_by_side, threads
from atento.tasks.length_batching import all_results, batches_shared, length_batches, run_in_batches
from failing import fails

CPU = torch.device("cpu")
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
        inside = dict(run_in_batches([1, 1], 1, lambda numbers: numbers, CPU))  # what is inside a batch is not shared
        assert inside == {0: 0, 1: 1}
        return [LENGTHS[row] ** 2 for row in rows]

    def work(rank: int) -> None:
        with batches_shared(Process(rank, size, values, barrier)):
            squares = dict(run_in_batches(LENGTHS, 8, compute, CPU, shared=True, pack=str, unpack=int))
            results[rank] = squares, all_results(range(25), lambda item: [rank, item], CPU)

    workers = [threading.Thread(target=work, args=(rank,)) for rank in range(size)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert sorted(computed) == sorted(length_batches(LENGTHS, 8))
    for squares, dealt in results:
        assert squares == {row: length**2 for row, length in enumerate(LENGTHS) if length}
        assert dealt == [[item % size, item] for item in range(25)]


def test_two_threads_compute_two_batches_at_a_time_as_one_thread_does() -> None:
    together = threading.Barrier(2)

    def compute(rows: list[int]) -> list[tuple[bool, int]]:
        together.wait(10)
        assert list(run_in_batches([1, 1], 1, lambda numbers: numbers, CPU)) == [(0, 0), (1, 1)]
        return [(torch.is_inference_mode_enabled(), torch.get_num_threads())]

    with threads(2), torch.inference_mode():
        found = list(run_in_batches([5, 5, 5, 5], 5, compute, CPU))
    assert found == [(row, (True, 1)) for row in range(4)]
    with threads(2):
        assert torch.get_num_threads() == 2
        assert list(run_in_batches([5], 5, lambda rows: [torch.get_num_threads()], CPU)) == [
            (0, 2)
        ]  # one batch has both
        assert all_results(range(3), lambda item: [item, torch.get_num_threads()], CPU) == [[0, 1], [1, 1], [2, 1]]
        assert list(run_in_batches([5, 5], 5, lambda rows: [torch.is_grad_enabled()], CPU)) == [(0, True), (1, True)]
        network = torch.nn.Linear(1, 1)
        network.register_forward_hook(lambda *_: None)  # hooks are called in order, by one thread
        by = list(run_in_batches([5, 5], 5, lambda rows: [threading.get_ident()], network))
        assert by == [(row, threading.get_ident()) for row in range(2)]


@pytest.mark.parametrize("count", [1, 2])
def test_a_batch_that_fails_ends_the_loop_with_its_error_and_the_batches_behind_it(count: int) -> None:
    begun: list[int] = []

    def compute(rows: list[int]) -> list[int]:
        begun.extend(rows)
        if rows == [1]:
            raise ValueError("broken")
        return rows

    with threads(count):
        fails(ValueError, "broken", list, run_in_batches([1] * 50, 1, compute, CPU))
        assert len(begun) < 10
        assert len(list(run_in_batches([1] * 5, 1, lambda rows: rows, CPU))) == 5


def test_callers_that_fail_at_the_same_time_wait_for_the_threads_in_turn() -> None:
    def fail() -> None:
        for _ in range(300):
            with suppress(ValueError), side_by_side(2, 1):
                raise ValueError("broken")

    callers = [threading.Thread(target=fail, daemon=True) for _ in range(4)]
    usual = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)  # threads take turns in the middle of everything
    try:
        for caller in callers:
            caller.start()
        for caller in callers:
            caller.join(10)
    finally:
        sys.setswitchinterval(usual)
    assert not any(caller.is_alive() for caller in callers)
