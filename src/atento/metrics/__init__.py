"""Metrics of text: each returns a `Score` with parts, settings and a bootstrap interval. Does not need torch.

`atento.metrics.utilities` has the same measures as matrices, for all pairs of two lists of texts.
"""

from atento.metrics.classes import accuracy
from atento.metrics.overlap import f1_bleu_rouge, token_f1
from atento.metrics.rouge import rouge
from atento.metrics.score import Score
from atento.metrics.significance import PairedTest, paired_test
from atento.metrics.table import METRICS, metric_named
from atento.metrics.text import bleu, chrf, exact_match, ter

__all__ = [
    "METRICS",
    "PairedTest",
    "Score",
    "accuracy",
    "bleu",
    "chrf",
    "exact_match",
    "f1_bleu_rouge",
    "metric_named",
    "paired_test",
    "rouge",
    "ter",
    "token_f1",
]
