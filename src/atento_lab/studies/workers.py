"""Jobs of a laboratory in order, in this process or in several with one thread each."""

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import TypeVar

import torch

Job = TypeVar("Job")
Result = TypeVar("Result")


def results(run: Callable[[Job], Result], jobs: Sequence[Job], workers: int) -> Iterable[Result]:
    """Yield the results of all jobs in order; with several workers, each is a process with one thread."""
    if workers == 1:
        yield from map(run, jobs)
        return
    with ProcessPoolExecutor(
        workers, mp_context=get_context("spawn"), initializer=torch.set_num_threads, initargs=(1,)
    ) as pool:
        yield from pool.map(run, jobs)
