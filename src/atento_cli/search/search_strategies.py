"""The strategies of a search: which values each trial has, and how many trials train for which share of the steps."""

import itertools
import random
from collections.abc import Iterator
from fractions import Fraction
from typing import NamedTuple

from atento.base.errors import RecipeError, UsageError
from atento.config.reading.dumping import scalar_text
from atento.config.reading.yaml12 import Node
from atento_cli.search.space import Dimension, size

STRATEGIES = ("random", "grid", "halving")
_MAX_VALUES = 100_000

Values = dict[str, Node]  # the values of a trial by key


class Rung(NamedTuple):
    """A stage of a search: the best `n_trials` trials train until this share of their steps."""

    n_trials: int
    share: Fraction


def trials_of(strategy: str, dimensions: list[Dimension], count: int | None, seed: int) -> list[Values]:
    """Return the values of each trial in order; at most `count`, fewer if the space has fewer.
    Raises RecipeError: a grid over a range without a step. UsageError: an unknown strategy, or no `count` where the
    strategy needs one.
    """
    if strategy not in STRATEGIES:
        raise UsageError(f"--strategy must be one of {', '.join(STRATEGIES)}: got {strategy!r}")
    if count is not None and count < 1:
        raise UsageError(f"--trials must be at least 1: got {count}")
    if strategy == "grid":
        return list(itertools.islice(grid(dimensions), count))
    if count is None:
        raise UsageError(f"--trials is missing: strategy {strategy} needs the number of trials")
    return list(itertools.islice(drawn(dimensions, seed), count))


def grid(dimensions: list[Dimension]) -> Iterator[Values]:
    """Yield all combinations; the last key changes fastest.
    Raises RecipeError: a range has neither a step nor integers, or more than 100,000 values.
    """
    for dimension in dimensions:
        if dimension.count is not None and dimension.count > _MAX_VALUES:
            raise RecipeError(
                f"{dimension.checked[0].position}: {dimension.key} has {dimension.count:,} values, and strategy grid "
                f"takes at most {_MAX_VALUES:,}; give a larger `step`"
            )
        if dimension.count is None:
            raise RecipeError(
                f"{dimension.checked[0].position}: {dimension.key} is a range without `step`, which strategy grid "
                "cannot go through; list its choices"
            )
    values = [[dimension.at(index) for index in range(dimension.count or 0)] for dimension in dimensions]
    for nodes in itertools.product(*values):
        yield {dimension.key: node for dimension, node in zip(dimensions, nodes)}


def drawn(dimensions: list[Dimension], seed: int) -> Iterator[Values]:
    """Yield random trials, all different; trial k depends on the seed, k and the space alone.

    A trial that equals an earlier one is drawn again. The end comes when a finite space is used up.
    """
    limit = size(dimensions)
    earlier: set[str] = set()
    for number in itertools.count(1):
        if limit is not None and len(earlier) >= limit:
            return
        for attempt in itertools.count():
            values = {
                dimension.key: dimension.draw(random.Random(f"{seed} {number} {attempt} {dimension.key}").random())
                for dimension in dimensions
            }
            text = scalar_text({key: node.bare() for key, node in values.items()})
            if text not in earlier:
                break
        earlier.add(text)
        yield values


def rungs_of(strategy: str, n_trials: int, eta: int) -> list[Rung]:
    """Return the rungs of a search: one with all steps, or those of successive halving (Jamieson & Talwalkar 2016).

    Rung k of K has n_trials / eta^k trials, rounded down, and ends at the share 1 / eta^(K-1-k) of the steps. K is the
    largest number that leaves a trial in the last rung.

    >>> [(rung.n_trials, str(rung.share)) for rung in rungs_of("halving", 10, 3)]
    [(10, '1/9'), (3, '1/3'), (1, '1')]
    """
    if eta < 2:
        raise UsageError(f"--eta must be at least 2: got {eta}")
    if strategy != "halving":
        return [Rung(n_trials, Fraction(1))]
    counts = list(itertools.takewhile(lambda count: count > 0, (n_trials // eta**k for k in itertools.count())))
    return [Rung(count, Fraction(1, eta ** (len(counts) - 1 - k))) for k, count in enumerate(counts)]
