"""Metrics: each returns a `Score` with parts, settings and a bootstrap interval. Does not need torch.

`atento.metrics.mbr_utilities` has measures of text as matrices, for all pairs of two lists of texts.
"""

from atento.metrics.answers import squad
from atento.metrics.bleu import bleu, chrf, exact_match, ter
from atento.metrics.classes import (
    ConfusionMatrix,
    accuracy,
    calibration_error,
    confusion,
    confusion_of,
    f1,
    matthews,
    multilabel_f1,
    report,
    subset_accuracy,
)
from atento.metrics.correlation import pearson, spearman
from atento.metrics.label_counts import report_table
from atento.metrics.metric_table import METRICS, metric_named
from atento.metrics.perplexity import perplexity
from atento.metrics.rankings import mean_average_precision, ndcg, retrieval, retrieval_of_vectors
from atento.metrics.rouge import f1_bleu_rouge, rouge, token_f1
from atento.metrics.score import Score
from atento.metrics.significance import PairedTest, paired_test
from atento.metrics.tag_scores import entity_f1, tag_accuracy

__all__ = [
    "METRICS",
    "ConfusionMatrix",
    "PairedTest",
    "Score",
    "accuracy",
    "bleu",
    "calibration_error",
    "chrf",
    "confusion",
    "confusion_of",
    "entity_f1",
    "exact_match",
    "f1",
    "f1_bleu_rouge",
    "matthews",
    "mean_average_precision",
    "metric_named",
    "multilabel_f1",
    "ndcg",
    "paired_test",
    "pearson",
    "perplexity",
    "report",
    "report_table",
    "retrieval",
    "retrieval_of_vectors",
    "rouge",
    "spearman",
    "squad",
    "subset_accuracy",
    "tag_accuracy",
    "ter",
    "token_f1",
]
