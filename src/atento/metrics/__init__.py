"""Text to scores: each metric gives a value with its parts, its settings and its interval. No torch."""

from atento.metrics.score import Score
from atento.metrics.significance import PairedTest, paired_test
from atento.metrics.text import METRICS, bleu, chrf, exact_match, metric_named, ter

__all__ = [
    "METRICS",
    "PairedTest",
    "Score",
    "bleu",
    "chrf",
    "exact_match",
    "metric_named",
    "paired_test",
    "ter",
]
