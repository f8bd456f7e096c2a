"""Updates that are random samples of several tasks, cut into parts of similar lengths."""

from itertools import combinations, pairwise, product

import numpy as np
import pytest
from numpy.typing import NDArray

from atento.config.tables.tasks import TASKS
from atento.data.batches.planning import CPU_PARTS, GPU_PARTS, _cheapest_parts, plan

LABELS, PAIRS, UPDATES = 600, 400, 40
RANDOM = np.random.default_rng(3)
SOURCES = np.concatenate([RANDOM.integers(5, 60, LABELS), RANDOM.integers(4, 30, PAIRS)])
TARGETS = np.concatenate([np.full(LABELS, 2), RANDOM.integers(4, 30, PAIRS)])


def updates(random_updates: bool, epoch: int = 0) -> list[list[NDArray[np.int64]]]:
    return plan(SOURCES, TARGETS, UPDATES, 1, 7, epoch, random_updates=random_updates)


def test_an_epoch_has_every_example_once_in_equal_updates_of_both_tasks() -> None:
    planned = updates(True)
    assert len(planned) == UPDATES
    assert sorted(np.concatenate([part for parts in planned for part in parts]).tolist()) == list(range(len(SOURCES)))
    tokens = [sum(int(TARGETS[part].sum()) for part in parts) for parts in planned]
    assert max(abs(count - TARGETS.sum() / UPDATES) for count in tokens) <= TARGETS.max()
    assert all((a == b).all() for a, b in zip(planned[3], updates(True)[3]))
    assert sorted(np.concatenate(planned[0])) != sorted(np.concatenate(updates(True, epoch=1)[0]))
    lengths = np.array([1, 90, 1, 1, 1, 40])
    for count, epoch in product(range(1, 7), range(6)):  # the longest may come last
        planned = plan(lengths, lengths, count, 1, 5, epoch, random_updates=True)
        assert len(planned) == count and all(parts and all(map(len, parts)) for parts in planned)
    assert [name for name, spec in TASKS.items() if spec.several_tasks] == ["text-to-text"]

    def mixed(planned: list[list[NDArray[np.int64]]]) -> int:
        shares = [float((np.concatenate(parts) < LABELS).mean()) for parts in planned]
        return sum(0.1 < share < 0.95 for share in shares)

    assert mixed(updates(True)) == UPDATES and mixed(updates(False)) < UPDATES / 4
    sizes = [int(SOURCES[part].max() + TARGETS[part].max()) * len(part) for parts in updates(True) for part in parts]
    assert max(sizes) <= 4096
    long = _cheapest_parts(np.array([9000, 3, 9000]), np.array([3, 3, 9000]), CPU_PARTS)
    assert sorted(part.tolist() for part in long) == [[0], [1], [2]]
    for size in (CPU_PARTS, GPU_PARTS):
        parts = _cheapest_parts(np.full(50_000, 6), np.full(50_000, 2), size)
        assert sum(map(len, parts)) == 50_000 and max(map(len, parts)) <= 2 * size.tokens // 8


@pytest.mark.parametrize("seed", range(5))
def test_the_parts_are_the_cheapest_of_all_cuts(seed: int) -> None:
    random = np.random.default_rng(seed)
    sources, targets = random.integers(1, 900, 9), random.integers(1, 300, 9)
    order = np.lexsort((sources, targets))

    def cost(parts: list[NDArray[np.int64]]) -> int:
        return sum(int(sources[part].max() + targets[part].max()) * len(part) + CPU_PARTS.cost for part in parts)

    cuts = [cut for count in range(9) for cut in combinations(range(1, 9), count)]
    divisions = [[order[a:b] for a, b in pairwise((0, *cut, 9))] for cut in cuts]
    small = [parts for parts in divisions if all(cost([part]) - CPU_PARTS.cost <= 4096 for part in parts)]
    assert len(small) < len(divisions) and cost(_cheapest_parts(sources, targets, CPU_PARTS)) == min(map(cost, small))
