"""Learning-rate schedules: the factor of the learning rate at each step, with linear warm-up; where a run pauses."""

import math
from collections.abc import Callable
from fractions import Fraction

from atento.config.training import TrainingConfig


def inverse_sqrt(progress: float, step: int, config: TrainingConfig) -> float:
    """√(warmup / step), which is 1 at the end of the warm-up (Vaswani et al. 2017, 5.3)."""
    return math.sqrt(max(1, config.warmup) / max(step, 1))


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


def learning_rate(config: TrainingConfig, step: int, steps: int) -> float:
    """Return the learning rate of update `step` of `steps`, counted from 1: linear warm-up, then the schedule."""
    if step <= config.warmup:
        return config.learning_rate * step / config.warmup
    progress = (step - config.warmup) / max(1, steps - config.warmup)
    return config.learning_rate * SCHEDULES[config.schedule](min(1.0, progress), step, config)


def pause_step(steps: int, share: Fraction, validate_every: int) -> int:
    """Return the first step with a validation after a share of the steps, so that a pause adds no validation.

    >>> pause_step(900, Fraction(1, 9), 40)
    120
    """
    return min(steps, math.ceil(share * steps / validate_every) * validate_every)
