"""Learning-rate schedules at hand-computed steps: warm-up, then each shape."""

import math
from dataclasses import asdict, replace

import pytest

from atento.config.sections.training import TrainingConfig, beyond_the_run
from atento.training.optimizer import SCHEDULES, learning_rate, warmup_steps_of
from atento.training.run_state import TrainerState

CONFIG = TrainingConfig(learning_rate=0.8, warmup=100)


def rate(schedule: str, step: int, *, warmup: int | None = 100, steps: int = 499) -> float:
    return learning_rate(replace(CONFIG, schedule=schedule, warmup=warmup), step, steps)  # type: ignore[arg-type]


def test_f4_warm_up_is_a_straight_line_and_every_schedule_its_formula() -> None:
    for schedule in SCHEDULES:
        assert [rate(schedule, step) for step in (1, 25, 50, 100)] == pytest.approx([0.008, 0.2, 0.4, 0.8])
        rates = [rate(schedule, step, warmup=0, steps=50) for step in range(1, 51)]
        assert 0.97 * 0.8 <= rates[0] <= 0.8 and rates == sorted(rates, reverse=True) and min(rates) >= 0
        for warmup, steps in ((100, 20), (20, 20), (0, 1), (5, 6)):
            for step in range(1, steps + 1):
                assert 0 <= rate(schedule, step, warmup=warmup, steps=steps) <= 0.8
        assert 0 <= rate(schedule, 600) <= 0.8  # a step past the end
    # Vaswani et al., eq. 3, d^-½ · min(step^-½, step · warmup^-1.5), scaled to its peak
    assert [rate("inverse-sqrt", step) for step in (100, 400, 10_000)] == pytest.approx([0.8, 0.4, 0.08])
    peak = min(100**-0.5, 100 * 100**-1.5)
    for step in (1, 7, 100, 101, 399):
        assert rate("inverse-sqrt", step) == pytest.approx(0.8 * min(step**-0.5, step * 100**-1.5) / peak)
    # From the peak at step 100 to 0 one step after the last, 499: a quarter, a half, the end
    for step, cosine, linear in ((200, 0.5 + math.sqrt(0.125), 0.75), (300, 0.5, 0.5), (500, 0.0, 0.0)):
        assert rate("cosine", step) == pytest.approx(0.8 * cosine, abs=1e-12)
        assert rate("linear", step) == pytest.approx(0.8 * linear, abs=1e-12) and rate("constant", step) == 0.8
    # 499 steps, 100 of them warm-up: a decay of 0.25 is a straight line from step 400 to 0 at step 500
    decaying = replace(CONFIG, schedule="wsd", decay=0.25)
    for step in range(1, 501):
        expected = 0.8 * step / 100 if step <= 100 else 0.8 if step <= 400 else 0.8 * (500 - step) / 100
        assert learning_rate(decaying, step, 499) == pytest.approx(expected, abs=1e-12), step
    assert learning_rate(replace(decaying, decay=1.0), 300, 499) == rate("linear", 300)


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("warmup", [None, 0, 1, 3, 200])
def test_every_update_of_every_run_learns(schedule: str, warmup: int | None) -> None:
    for steps in (*range(1, 12), 50, 999):
        rates = [rate(schedule, step, warmup=warmup, steps=steps) for step in range(1, steps + 1)]
        assert min(rates) > 0, (steps, rates)
        if warmup is None:  # the peak is reached in any run, as far as a single update of decay allows
            assert max(rates) >= 0.8 * (steps / (steps + 1) if steps < 5 else 1), (steps, rates)


def test_an_open_warm_up_goes_by_the_run_and_what_a_short_one_cannot_do_is_said() -> None:
    lengths = [warmup_steps_of(TrainingConfig(), steps) for steps in (1, 4, 9, 100, 999, 1000, 100_000)]
    assert lengths == [0, 0, 1, 20, 199, 200, 200]
    assert warmup_steps_of(TrainingConfig(warmup=7), 5) == 7
    # They reached 0 at the last update; a state without `zero_at` is one of theirs
    for schedule, last in (("linear", 0.0), ("cosine", 0.0), ("wsd", 0.0), ("constant", 0.8)):
        config = replace(CONFIG, schedule=schedule)  # type: ignore[arg-type]
        assert learning_rate(config, 500, 500, zero_at=0) == pytest.approx(last)
    state = asdict(TrainerState(step=3))
    assert TrainerState.from_dict(state).zero_at == 1
    assert TrainerState.from_dict({key: value for key, value in state.items() if key != "zero_at"}).zero_at == 0
    for written, steps, said in BEYOND:
        config = TrainingConfig(**written)  # type: ignore[arg-type]
        sentences, alone = (list(beyond_the_run(config, steps, validated=validated)) for validated in (True, False))
        assert len(sentences) == (said is not None) and (said is None or sentences[0].startswith(said))
        assert said is None or "early_stop" in written or sentences == alone


BEYOND = [
    ({"warmup": 200}, 9, "`training.warmup` 200 is longer than the run of 9 updates: the learning rate ends at 4.5%"),
    ({"early_stop": 2}, 900, "`training.early_stop` 2 cannot stop the run of 900 updates, which has 2 validations"),
    ({"average": 5}, 900, "`training.average` 5 is more than the 2 checkpoints of the run of 900 updates"),
    ({"warmup": 9, "early_stop": 1, "average": 2}, 900, None),
    ({}, 1, None),
]
