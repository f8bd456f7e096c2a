"""Learning-rate schedules at hand-computed steps: warm-up, then each shape."""

import math
from dataclasses import replace

import pytest

from atento.config.training import TrainingConfig
from atento.training.schedule import SCHEDULES, learning_rate

CONFIG = TrainingConfig(learning_rate=0.8, warmup=100)


def rate(schedule: str, step: int, *, warmup: int = 100, steps: int = 500) -> float:
    return learning_rate(replace(CONFIG, schedule=schedule, warmup=warmup), step, steps)  # type: ignore[arg-type]


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_f4_warm_up_is_a_straight_line_to_the_peak(schedule: str) -> None:
    assert [rate(schedule, step) for step in (1, 25, 50, 100)] == pytest.approx([0.008, 0.2, 0.4, 0.8])


def test_f4_inverse_square_root_is_the_papers() -> None:
    """Vaswani et al., eq. 3, d^-½ · min(step^-½, step · warmup^-1.5), scaled to its peak."""
    assert [rate("inverse-sqrt", step) for step in (100, 400, 10_000)] == pytest.approx([0.8, 0.4, 0.08])
    peak = min(100**-0.5, 100 * 100**-1.5)
    for step in (1, 7, 100, 101, 399):
        assert rate("inverse-sqrt", step) == pytest.approx(0.8 * min(step**-0.5, step * 100**-1.5) / peak)


def test_f4_cosine_linear_and_constant() -> None:
    """From the peak at step 100 to the end at 500: a quarter, a half, the end."""
    for step, cosine, linear in ((200, 0.5 + math.sqrt(0.125), 0.75), (300, 0.5, 0.5), (500, 0.0, 0.0)):
        assert rate("cosine", step) == pytest.approx(0.8 * cosine, abs=1e-12)
        assert rate("linear", step) == pytest.approx(0.8 * linear, abs=1e-12)
        assert rate("constant", step) == 0.8


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_no_warm_up_begins_at_or_under_the_peak_and_never_rises(schedule: str) -> None:
    rates = [rate(schedule, step, warmup=0, steps=50) for step in range(1, 51)]
    assert 0.97 * 0.8 <= rates[0] <= 0.8 and rates == sorted(rates, reverse=True) and min(rates) >= 0


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_run_shorter_than_its_warm_up_or_extended_stays_between_zero_and_the_peak(schedule: str) -> None:
    for warmup, steps in ((100, 20), (20, 20), (0, 1), (5, 6)):
        for step in range(1, steps + 1):
            assert 0 <= rate(schedule, step, warmup=warmup, steps=steps) <= 0.8
    assert 0 <= rate(schedule, 600) <= 0.8  # a step past the end


def test_f4_warm_up_stable_decay_equals_its_formula() -> None:
    """500 steps, 100 of them warm-up: a decay of 0.25 is the last 100 steps, a straight line to 0 at step 500."""
    config = replace(CONFIG, schedule="wsd", decay=0.25)
    for step in range(1, 501):
        expected = 0.8 * step / 100 if step <= 100 else 0.8 if step <= 400 else 0.8 * (500 - step) / 100
        assert learning_rate(config, step, 500) == pytest.approx(expected, abs=1e-12), step
    assert learning_rate(replace(config, decay=1.0), 300, 500) == rate("linear", 300)
