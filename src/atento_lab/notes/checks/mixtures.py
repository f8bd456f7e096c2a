"""Check of mixtures of data: rates by formula, and as drawn (docs/notes.md#f10)."""

from functools import partial

import numpy as np

from atento.config.sections.mixing import MixingConfig
from atento.data.batches.batch import Ragged
from atento.data.batches.mixture import Mixture, Shares
from atento.data.batches.planning import PlannedBatches
from atento.data.objectives.sequence_to_sequence import parallel
from atento_lab.notes.finding import AtMost, Finding, compare

_SIZES = {"large": 6000, "middle": 600, "small": 60}  # examples of two target tokens
_UPDATES = 400


def mixtures() -> Finding:
    """F10: rates n^(1/T) with a cap on n; T = 1 is proportional, a large T equal."""
    targets = {name: 2.0 * count for name, count in _SIZES.items()}  # of each text its token and EOS
    value, expected = {}, {}
    for name, config, temperature, cap in (
        ("proportional", MixingConfig("proportional", cap=10**9), 1.0, 1e9),
        ("temperature 1", MixingConfig("temperature", 1.0), 1.0, 1e9),
        ("temperature 2", MixingConfig("temperature", 2.0), 2.0, 1e9),
        ("temperature 2, cap 2,000", MixingConfig("temperature", 2.0, 2000), 2.0, 2000),
        ("temperature 1,000,000", MixingConfig("temperature", 1e6), 1e6, 1e9),
    ):
        ((_, weights),) = config.rates(tuple(targets.values()))
        value[name] = [weight / sum(weights) for weight in weights]
        powers = [min(size, cap) ** (1 / temperature) for size in targets.values()]
        expected[name] = [power / sum(powers) for power in powers]
    rates = value["temperature 2"]
    mixture = Mixture(
        [partial(_pairs, count) for count in _SIZES.values()],
        lambda members: Shares.constant(rates),
        budget=240,
        seed=1,
    )
    drawn = np.concatenate([mixture.slot_members(update) for update in range(_UPDATES)])
    deviations = [
        abs(int((drawn == number).sum()) - len(drawn) * rate) / (len(drawn) * rate * (1 - rate)) ** 0.5  # of a binomial
        for number, rate in enumerate(rates)
    ]
    return compare(
        {**value, "drawn, standard deviations away": max(deviations)},
        {**expected, "drawn, standard deviations away": AtMost(3.0)},
        drawing="\n".join(f"{name:<26}" + "  ".join(f"{rate:.3f}" for rate in rates) for name, rates in value.items()),
        remark="`data.mixing` in a recipe; sizes count target tokens",
    )


def _pairs(count: int, budget: int) -> PlannedBatches:
    side = Ragged([[4]] * count)
    return parallel(side, side, budget=budget, seed=1, pad_id=0, start_id=1, eos_id=2)
