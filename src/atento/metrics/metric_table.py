"""The metrics by name, learned ones among them: what each scores and reads, and which way is better. No torch."""

import math
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from inspect import signature
from types import MappingProxyType
from typing import Literal

from atento.base.errors import UsageError, nearest
from atento.metrics import rankings
from atento.metrics.answers import squad
from atento.metrics.bleu import bleu, chrf, exact_match, ter
from atento.metrics.classes import accuracy, calibration_error, f1, matthews, multilabel_f1, report, subset_accuracy
from atento.metrics.correlation import pearson, spearman
from atento.metrics.rouge import f1_bleu_rouge, rouge, rouge_n, token_f1
from atento.metrics.score import Outputs, Score, ratio
from atento.metrics.tag_scores import entity_f1, tag_accuracy


@dataclass(frozen=True)
class Metric:
    """A metric: its function of (predictions, references), what it scores, which way is better, whether `report_table`
    shows its parts, and what else it scores.
    """

    score: Callable[..., Score]
    outputs: Outputs = "texts"
    better: Literal["higher", "lower"] = "higher"
    table: bool = False
    also: Outputs | None = None

    def scores(self, outputs: Outputs | None) -> bool:
        """Whether it scores outputs of that kind."""
        return outputs is not None and outputs in (self.outputs, self.also)


METRICS: dict[str, Metric] = {
    "bleu": Metric(bleu),
    "chrf": Metric(chrf),
    "ter": Metric(ter, better="lower"),
    **{f"rouge{order}": Metric(partial(rouge_n, order)) for order in (1, 2)},
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
    "multilabel-report": Metric(partial(multilabel_f1, sides=True), "class sets", table=True),
    "entity-f1": Metric(entity_f1, "tags", table=True),
    "tag-accuracy": Metric(tag_accuracy, "tags"),
    "tag-report": Metric(partial(tag_accuracy, sides=True), "tags", table=True),
    "squad": Metric(squad, "answers"),
    "squad-pt": Metric(lambda predictions, references: squad(predictions, references, language="pt"), "answers"),
    "pearson": Metric(pearson, "numbers"),
    "spearman": Metric(spearman, "numbers"),
    "mrr": Metric(rankings.mrr, "vector pairs", also="rankings"),
    "recall@1": Metric(rankings.recall_at_1, "vector pairs", also="rankings"),
    "cosine-spearman": Metric(rankings.cosine_spearman, "vector pairs"),
    "ndcg": Metric(rankings.ndcg, "rankings"),
    **{f"ndcg@{k}": Metric(partial(rankings.ndcg, k=k), "rankings") for k in (1, 3, 5, 10, 20, 100)},
    "map": Metric(rankings.mean_average_precision, "rankings"),
    **{f"recall@{k}": Metric(partial(rankings.recall, k=k), "rankings") for k in (3, 5, 10, 20, 100, 1000)},
}


MEAN = "mean"  # of the first metrics of several tasks


def lower_is_better(name: str) -> bool:
    """Whether a lower score of that name is better; `nll`, the loss of a validation, is one."""
    return name == "nll" or (name in METRICS and METRICS[name].better == "lower")


def options_by_name(metrics: Iterable[str | Mapping[str, Mapping[str, str]]]) -> dict[str, Mapping[str, str]]:
    """The options of each metric by its name, in their order, from names and mappings of names to options."""
    items = ({item: {}} if isinstance(item, str) else item for item in metrics)
    return {name: options for item in items for name, options in item.items()}


def quality(scores: Mapping[str, float], names: Sequence[str]) -> tuple[float, ...]:
    """Validation scores in the order in which they decide what is best, each so that higher is better.

    One that is missing or not finite is the worst.
    """
    values = (signed(name, scores.get(name, math.nan)) for name in names)
    return tuple(value if math.isfinite(value) else -sys.float_info.max for value in values)  # JSON has no infinity


def signed(name: str, value: float) -> float:
    """A validation score so that higher is better, and back again."""
    return 0.0 - value if lower_is_better(name) else value  # of 0 not -0.0


def row_named(name: str) -> Metric:
    """The metric of that name; of a learned one, `NAME:FOLDER`, a row whose function `tasks/learned_metrics.py` has.
    Raises UsageError: there is no such metric; the message lists the metrics.
    """
    if name in METRICS:
        return METRICS[name]
    if learned_name(name) is not None:
        return Metric(partial(_of_a_model, name))
    if name in LEARNED:
        raise UsageError(f"{name} is computed by a model: name its folder, {name}:FOLDER")
    raise UsageError(f"unknown metric {name!r}{nearest(name, [*METRICS, *LEARNED])}")


def _of_a_model(name: str, predictions: Sequence[str], references: Sequence[str]) -> Score:
    raise UsageError(f"{name} is computed by a model: atento.tasks.learned_metrics.learned_metric loads it")


def metric_named(name: str, options: Mapping[str, str] = MappingProxyType({})) -> Callable[..., Score]:
    """The function of the metric of that name, with options that are texts.

    Raises:
        UsageError: as `row_named`, or the metric has no such option.
    """
    score = row_named(name).score
    for option in options:
        known = [one.name for one in signature(score).parameters.values() if one.annotation in (str, str | None)]
        if option not in known:
            raise UsageError(f"the metric {name} has no option {option!r}{nearest(option, known) if known else ''}")
    return partial(score, **options) if options else score


@dataclass(frozen=True)
class LearnedMetric:
    """A metric that a model computes, whose folder is named behind a colon: `comet:FOLDER`."""

    title: str  # its name in papers
    source: bool = False  # whether it reads the source of each output
    references: float = 1  # how many reference sets it reads at most
    # the numbers of a segment, of which the last is its score; the others are parts
    columns: tuple[str, ...] = ("score",)
    options: tuple[str, ...] = ()  # names of its own options


LEARNED: dict[str, LearnedMetric] = {
    "bertscore": LearnedMetric(
        "BERTScore", references=float("inf"), columns=("precision", "recall", "f1"), options=("layer", "idf")
    ),
    "comet": LearnedMetric("COMET", source=True),
    "comet-kiwi": LearnedMetric("COMET-Kiwi", source=True, references=0),
}


def learned_name(metric: str) -> tuple[str, str] | None:
    """The name and the folder of a learned metric `NAME:FOLDER`; None: a name without a colon.
    Raises UsageError: no learned metric has that name, or no folder is named.
    """
    name, colon, folder = metric.partition(":")
    if not colon:
        return None
    if name not in LEARNED:
        raise UsageError(f"unknown learned metric {name!r}{nearest(name, list(LEARNED))}")
    if not folder:
        raise UsageError(f"{name}:FOLDER names a model folder: got none")
    return name, folder


def check_inputs(name: str, references: int, source: bool) -> None:
    """Raises UsageError: that learned metric reads a source that is not given, or other references."""
    row = LEARNED[name]
    if references and not row.references:
        raise UsageError(f"{name} compares outputs with their sources alone, without references: got references")
    if references > row.references:
        raise UsageError(f"{name} takes one reference for each output: got {references} sets of references")
    if row.references and not references:
        raise UsageError(f"{name} compares outputs with references: got none")
    if row.source and not source:
        raise UsageError(f"{name} reads the source of each output: got none (`sources`, or --source FILE)")
    if source and not row.source:
        raise UsageError(f"{name} does not read sources: got them")


def learned_score(name: str, rows: Sequence[Sequence[float]], settings: str) -> Score:
    """The mean over segments of the last of their numbers, with the means of the others as parts.

    Args:
        name: of the metric.
        rows: the numbers of each segment, a column each of `LEARNED[name].columns`.
        settings: all that changes the score.
    """
    columns = LEARNED[name].columns
    segments = [[*row, 1.0] for row in rows]  # 1: a row counts one segment
    means = [sum(column) / len(segments) for column in zip(*rows)]
    parts = dict(zip(columns[:-1], means)) | {"count": float(len(segments))}
    return Score(LEARNED[name].title, means[-1], parts, settings, segments, partial(ratio, at=-2), digits=4)
