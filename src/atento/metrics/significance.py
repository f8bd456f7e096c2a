"""Paired bootstrap test of the difference between two systems."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from atento.base.errors import UsageError
from atento.metrics.bleu import References
from atento.metrics.metric_table import metric_named
from atento.metrics.score import Score, resampled


@dataclass(frozen=True)
class PairedTest:
    """Two scores on the same references; `difference` is the first minus the second, `p_value` is two-sided."""

    first: Score
    second: Score
    difference: float
    p_value: float
    samples: int
    seed: int

    def __str__(self) -> str:
        return (
            f"difference {self.difference:+.{self.first.digits}f}, p = {self.p_value:.4f} "
            f"(paired bootstrap, {self.samples} samples, seed {self.seed})"
        )


def paired_test(
    metric: str | Callable[..., Score],
    a: Sequence[str],
    b: Sequence[str],
    references: References,
    samples: int = 1000,
    seed: int = 1,
) -> PairedTest:
    """Test whether the difference of the scores of `a` and `b` is larger than chance, by the paired bootstrap.

    Both are scored on the same resampled sentences. The p-value is that of sacrebleu: the share of samples whose
    absolute difference deviates from its mean by more than the observed difference, with one added to both counts; 1
    for equal outputs.

    Args:
        metric: a name in `METRICS`, or one of its functions.
        a: outputs of the first system.
        b: outputs of the second system for the same sentences.
        references: as for the metric.
        samples: number of bootstrap samples.
        seed: random seed.

    Raises:
        UsageError: the lengths differ, the metric is unknown, or `samples` is below 1.

    Paper: Koehn 2004, Statistical significance tests for machine translation evaluation.
    """
    import numpy as np

    if len(a) != len(b):
        raise UsageError(
            f"a paired test needs one output a sentence from both systems: got {len(a)} and {len(b)}; "
            "check that both files answer the same input"
        )
    scorer = metric_named(metric) if isinstance(metric, str) else metric
    first, second = scorer(a, references), scorer(b, references)
    blocks = list(resampled([first, second], samples, seed))
    ours, theirs = (np.concatenate([np.array(block[side]) for block in blocks]) for side in (0, 1))  # (samples,) each
    strays = np.abs(ours - theirs)
    strays -= strays.mean()  # how far each sample is from the mean of all
    difference = first.value - second.value
    same = bool(np.array_equal(ours, theirs))  # equal outputs
    p_value = 1.0 if same else (int(np.sum(strays > abs(difference))) + 1) / (samples + 1)  # + 1: never 0
    return PairedTest(first, second, difference, p_value, samples, seed)
