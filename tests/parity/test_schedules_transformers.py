"""Learning-rate schedules beside those of transformers, at every update."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import transformers

from atento.config.sections.training import TrainingConfig
from atento.training.optimizer import SCHEDULES, learning_rate

STEPS, WARMUP = 59, 10
THEIRS: dict[str, Callable[[Any], Any]] = {
    "linear": lambda optimizer: transformers.get_linear_schedule_with_warmup(optimizer, WARMUP, STEPS + 1),
    "cosine": lambda optimizer: transformers.get_cosine_schedule_with_warmup(optimizer, WARMUP, STEPS + 1),
    "constant": lambda optimizer: transformers.get_constant_schedule_with_warmup(optimizer, WARMUP),
    "inverse-sqrt": lambda optimizer: transformers.get_inverse_sqrt_schedule(optimizer, WARMUP),
    "wsd": lambda optimizer: transformers.get_wsd_schedule(
        optimizer, WARMUP, 25, num_training_steps=STEPS + 1, decay_type="linear"
    ),
}


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_f4_the_rates_are_those_of_transformers_without_its_first_update_of_rate_zero(schedule: str) -> None:
    """Theirs begin a warm-up at 0, in an update that changes nothing; their last update has a rate above 0."""
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.8)
    theirs = THEIRS[schedule](optimizer)
    rates = []
    for _ in range(STEPS + 1):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        theirs.step()
    config = TrainingConfig(learning_rate=0.8, warmup=WARMUP, schedule=schedule, decay=0.5)  # type: ignore[arg-type]
    ours = [learning_rate(config, step, STEPS) for step in range(1, STEPS + 1)]
    assert rates[0] == 0 and ours == pytest.approx(rates[1:], rel=1e-12) and ours[-1] > 0
