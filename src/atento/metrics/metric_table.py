"""The metrics by name: what each scores, and which way is better."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from atento.errors import UsageError, nearest
from atento.metrics.answers import squad
from atento.metrics.calibration import calibration_error
from atento.metrics.class_sets import multilabel_f1, subset_accuracy
from atento.metrics.classes import accuracy, f1, matthews, report
from atento.metrics.correlation import pearson, spearman
from atento.metrics.output_kinds import Outputs
from atento.metrics.rouge import rouge
from atento.metrics.score import Score
from atento.metrics.tag_scores import entity_f1, tag_accuracy
from atento.metrics.text import bleu, chrf, exact_match, ter
from atento.metrics.token_overlap import f1_bleu_rouge, token_f1
from atento.metrics.vector_pairs import cosine_spearman, mrr, recall_at_1


@dataclass(frozen=True)
class Metric:
    """A metric: its function of (predictions, references), what it scores, which way is better, and whether
    `report_table` shows its parts.
    """

    score: Callable[..., Score]
    outputs: Outputs = "texts"
    better: Literal["higher", "lower"] = "higher"
    table: bool = False


METRICS: dict[str, Metric] = {
    "bleu": Metric(bleu),
    "chrf": Metric(chrf),
    "ter": Metric(ter, better="lower"),
    "rouge": Metric(rouge),
    "token-f1": Metric(token_f1),
    "f1-bleu-rouge": Metric(f1_bleu_rouge),
    "exact-match": Metric(exact_match),
    "accuracy": Metric(accuracy, "classes"),
    "f1": Metric(f1, "classes"),
    "matthews": Metric(matthews, "classes"),
    "report": Metric(report, "classes", table=True),
    "calibration-error": Metric(calibration_error, "probabilities", better="lower"),
    "subset-accuracy": Metric(subset_accuracy, "class sets"),
    "multilabel-f1": Metric(multilabel_f1, "class sets"),
    "entity-f1": Metric(entity_f1, "tags", table=True),
    "tag-accuracy": Metric(tag_accuracy, "tags"),
    "squad": Metric(squad, "answers"),
    "pearson": Metric(pearson, "numbers"),
    "spearman": Metric(spearman, "numbers"),
    "mrr": Metric(mrr, "vector pairs"),
    "recall@1": Metric(recall_at_1, "vector pairs"),
    "cosine-spearman": Metric(cosine_spearman, "vector pairs"),
}


def lower_is_better(name: str) -> bool:
    """Whether a lower score of that name is better; `nll`, the loss of a validation, is one."""
    return name == "nll" or (name in METRICS and METRICS[name].better == "lower")


def signed(name: str, value: float) -> float:
    """A validation score so that higher is better, and back again."""
    return -value if lower_is_better(name) else value


def metric_named(name: str) -> Callable[..., Score]:
    """The function of the metric of that name.

    Raises:
        UsageError: there is no such metric; the message lists the metrics.
    """
    if name not in METRICS:
        raise UsageError(f"unknown metric {name!r}{nearest(name, list(METRICS))}")
    return METRICS[name].score
