"""Learning-rate schedules: the factor of the learning rate at each step, with linear warm-up; where a run pauses."""

import math
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction

from atento.config.sections.training import TrainingConfig, warmup_of


def inverse_sqrt(progress: float, step: int, config: TrainingConfig) -> float:
    """√(warmup / step), which is 1 at the end of the warm-up (Vaswani et al. 2017, 5.3)."""
    return math.sqrt(max(1, config.warmup or 0) / max(step, 1))


def cosine(progress: float, step: int, config: TrainingConfig) -> float:
    """Half a cosine, from 1 to 0 (Loshchilov & Hutter 2017)."""
    return 0.5 * (1 + math.cos(math.pi * progress))


def linear(progress: float, step: int, config: TrainingConfig) -> float:
    """A straight line from 1 to 0."""
    return 1 - progress


def constant(progress: float, step: int, config: TrainingConfig) -> float:
    """Always 1."""
    return 1.0


def wsd(progress: float, step: int, config: TrainingConfig) -> float:
    """1, then a straight line to 0 in the last share `decay` (warm-up, stable, decay; Hu et al. 2024, MiniCPM, 4.2)."""
    return min(1.0, (1 - progress) / config.decay)


SCHEDULES: dict[str, Callable[[float, int, TrainingConfig], float]] = {
    "inverse-sqrt": inverse_sqrt,
    "cosine": cosine,
    "linear": linear,
    "constant": constant,
    "wsd": wsd,
}


def learning_rate(config: TrainingConfig, step: int, steps: int, *, zero_at: int = 1) -> float:
    """Return the learning rate of an update: linear warm-up, then the schedule.

    The last update of a decay to 0 learns too, as in transformers.

    Args:
        config: the section of the recipe.
        step: number of the update, from 1.
        steps: updates of the run.
        zero_at: how many updates after the last one a decay reaches 0.
    """
    warmup = warmup_of(config, steps)
    if config.warmup is None:
        config = replace(config, warmup=warmup)
    if step <= warmup:
        return config.learning_rate * step / warmup
    progress = (step - warmup) / max(1, steps + zero_at - warmup)
    return config.learning_rate * SCHEDULES[config.schedule](min(1.0, progress), step, config)


def pause_step(steps: int, share: Fraction, validate_every: int) -> int:
    """Return the first step with a validation after a share of the steps, so that a pause adds no validation.

    >>> pause_step(900, Fraction(1, 9), 40)
    120
    """
    return min(steps, math.ceil(share * steps / validate_every) * validate_every)
