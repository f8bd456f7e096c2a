"""How far the probabilities of a classifier can be trusted: a temperature, thresholds by precision, reliability."""

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from atento.base.errors import DataError, TrainingError, counted, listed
from atento.config.sections.confidence import ConfidenceConfig
from atento.data.records.splits import Split
from atento.metrics import Score, calibration_error
from atento.models.model_folder import confidence_file
from atento.storage.atomic_files import write_atomically
from atento.tasks.classification import gives_label_sets, label_scores, probabilities_of
from atento.tasks.task_model import TaskModel
from atento.tasks.text_outputs import texts_of_split

FEWEST = 20  # records to fit to, and answers above a threshold
_HIGHEST = 20.0  # temperature; 1 / _HIGHEST is the lowest
_HALVINGS = 60
_DIGITS = 5  # of a probability that do not depend on the texts beside it
_WANTED = (0.8, 0.9, 0.95, 0.99)  # precisions that are shown


@dataclass(frozen=True)
class Confidence:
    """What was fitted, and how well it fits."""

    config: ConfidenceConfig  # what is kept with the model
    before: Score  # the calibration error of the probabilities without the temperature
    after: Score  # that with it
    answers: NDArray[np.float64]  # (N,) probabilities of the labels that are predicted, with the temperature
    right: NDArray[np.bool_]  # (N,) whether they are right
    bounded: bool = False  # whether no temperature was found, and the probabilities are left as they are

    def doubts(self) -> list[str]:
        """A sentence for each reason why these records say little of the probabilities."""
        said, count = [], counted(len(self.right), "predicted label")
        if self.right.all():
            said.append(
                f"all of {count} are right, so that no probability is known at which one is wrong: `abstain` keeps "
                "every text, also one of another kind"
            )
        if not self.right.any():
            said.append(f"none of {count} is right, so that no probability is worth anything")
        if self.bounded:
            said.append(f"the temperature of {count} ends at its bound, so that the probabilities stay as they are")
        return said

    def line(self) -> str:
        """The temperature and the calibration errors in one line."""
        low, high = self.after.interval()
        return (
            f"confidence: temperature {self.config.temperature:.3f} of {counted(self.config.records, 'example')}, "
            f"calibration error {self.before.value:.4f} before, {self.after.value:.4f} [{low:.4f}, {high:.4f}] after"
        )

    def precision(self, wanted: float) -> tuple[float, float, Score] | None:
        """Threshold, share of answers that it keeps, and precision of these, as a score; None: none is so precise."""
        threshold = self.config.threshold(wanted)
        if threshold is None:
            return None
        kept = self.answers >= threshold
        rows = [[float(keep and right), float(keep)] for keep, right in zip(kept, self.right)]
        total = [sum(column) for column in zip(*rows)]
        score = Score("precision", _share(total), {"answers": total[1]}, "", rows, _share, digits=4)
        return threshold, float(kept.mean()), score

    def table(self) -> list[str]:
        """A line for each of some precisions: from which probability on it is kept, and for how many answers."""
        lines = []
        for wanted in _WANTED:
            found = self.precision(wanted)
            if found is None:
                lines.append(f"precision {wanted:g}: from no probability on")
                continue
            threshold, share, score = found
            low, high = score.interval()
            lines.append(
                f"precision {wanted:g}: from probability {threshold:.4f} on, {share:.1%} of answers, precision "
                f"{score.value:.4f} [{low:.4f}, {high:.4f}]"
            )
        return lines

    def to_dict(self) -> dict[str, object]:
        """Plain data."""
        wanted = {}
        for precision in _WANTED:
            if (found := self.precision(precision)) is not None:
                threshold, share, score = found
                kept = {"threshold": threshold, "answers": share, "precision": score.value}
                wanted[f"{precision:g}"] = kept | {"interval": list(score.interval())}
        errors = {"before": self.before.value, "after": self.after.value, "interval": list(self.after.interval())}
        facts = {"temperature": self.config.temperature, "records": self.config.records}
        return facts | {"calibration_error": errors, "precision": wanted}


def _share(total: Sequence[float]) -> float:
    return total[0] / total[1] if total[1] else 0.0


def fit_confidence(model: TaskModel, split: Split, temperature: float | None = None) -> Confidence:
    """Fit the temperature and the thresholds of a classifier to labelled records that it was not trained on.

    The temperature T makes softmax(scores / T), or sigmoid(scores / T) of each label where a text may have several,
    most probable for the right labels (Guo et al. 2017); the predicted labels stay the same. A threshold is the lowest
    probability from which on at least 20 predicted labels are right in some share.

    Args:
        model: the model, loaded or in training; a temperature that it has is not used.
        split: records with labels.
        temperature: one to take instead of fitting it.

    Raises CapabilityError: the model has no head that gives labels. DataError: too few records, or an unknown label.
    """
    if len(split) < FEWEST:
        raise DataError(f"a temperature is fitted to at least {FEWEST} records: got {len(split)}")
    names, found = label_scores(model, texts_of_split(split))
    scores, several = found.numpy(), gives_label_sets(model.network)  # (N,C)
    rights = [set(labels) if several else {labels} for labels in split["label"]]
    gold = np.array([[name in right for name in names] for right in rights])  # (N,C)
    unknown = [row for row, right in enumerate(rights) if not right <= set(names)]
    if unknown:
        (label, *_) = rights[unknown[0]].difference(names)
        labels = listed(label, sorted(names), what="the model's labels")
        raise DataError(f"{split.where(unknown[0])}: unknown label {label!r}{labels}")
    bounded = False
    if temperature is None:
        temperature = fitted_temperature(scores, gold, several)
        bounded = abs(math.log(temperature)) > 0.999 * math.log(_HIGHEST)
        temperature = 1.0 if bounded else temperature
    raw, cooled = (probabilities_of(found / divisor, several).numpy() for divisor in (1.0, temperature))
    # (N,C) what the model answers; a temperature does not change it
    chosen = scores >= 0 if several else scores.argmax(axis=1)[:, None] == np.arange(len(names))
    answers, right = cooled[chosen], gold[chosen]  # one behind the other: all answers
    thresholds, precisions = _steps(answers, right)
    config = ConfidenceConfig(temperature, len(split), thresholds, precisions)
    return Confidence(config, _error(raw[chosen], right), _error(answers, right), answers, right, bounded)


def fitted_temperature(scores: NDArray[np.float64], gold: NDArray[np.bool_], several: bool) -> float:
    """The temperature, 1/20 to 20, of the smallest negative log-likelihood of the right labels.

    Right labels have the probability (N + 1) / (N + C), others 1 / (N + C), as if each class had been seen once more
    (Platt 1999; C is 2 where a text may have several labels), so that labels without a mistake are no certainty. The
    likelihood is concave in 1 / T, so the place where its derivative is 0 is found by halving an interval.

    Args:
        scores: (N,C) those of the labels.
        gold: (N,C) the right ones.
        several: whether a text may have several labels.
    """

    classes = 2 if several else gold.shape[1]
    soft = (len(gold) * gold + 1) / (len(gold) + classes)

    def slope(inverse: float) -> float:
        """The derivative of the negative log-likelihood by 1 / T."""
        scaled = inverse * scores
        if several:
            shares = 1 / (1 + np.exp(-np.clip(scaled, -500, 500)))
        else:
            shares = np.exp(scaled - scaled.max(axis=1, keepdims=True))
            shares /= shares.sum(axis=1, keepdims=True)
        return float(((shares - soft) * scores).sum())

    low, high = -np.log(_HIGHEST), np.log(_HIGHEST)  # of log(1 / T): a step up and one down are alike
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        # the derivative rises with 1 / T
        low, high = (low, middle) if slope(float(np.exp(middle))) > 0 else (middle, high)
    return float(np.exp(-(low + high) / 2))


def keep_confidence(path: Path, config: ConfidenceConfig) -> None:
    """Write what is known of the probabilities of a model beside it, or, of a checkpoint, into its run.

    Args:
        path: the folder that the model was read from.
        config: what is kept.

    Raises TrainingError: it cannot be written.
    """
    file, checkpoint = confidence_file(path)
    try:
        write_atomically(file, json.dumps(asdict(config) | {"checkpoint": checkpoint}, indent=2) + "\n")
    except TrainingError as error:
        raise TrainingError(f"temperature and thresholds were not saved: {error}") from error


def _steps(answers: NDArray[np.float64], right: NDArray[np.bool_]) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """The thresholds at which the precision is higher than at every lower one, and these precisions, both rising.

    A probability depends in its last digits on the batch, so those of equal fifth digits stay together, and a threshold
    lies between them and the ones below.
    """
    answers = np.round(answers, _DIGITS)
    order = np.argsort(-answers, kind="stable")
    precision = np.cumsum(right[order]) / np.arange(1, len(order) + 1)
    last = np.append(np.diff(answers[order]) != 0, True)[: len(order)]  # equal probabilities stay together
    thresholds: list[float] = []
    precisions: list[float] = []
    for place in range(len(order) - 1, FEWEST - 2, -1):
        if last[place] and (not precisions or precision[place] > precisions[-1]):
            thresholds.append(float(np.round(answers[order[place]] - 0.5 * 10**-_DIGITS, _DIGITS + 1)))
            precisions.append(float(precision[place]))
    return tuple(thresholds), tuple(precisions)


def _error(answers: NDArray[np.float64], right: NDArray[np.bool_]) -> Score:
    """The calibration error of probabilities (N,) of answers that are right or not."""
    if not len(answers):
        raise DataError("the model predicts no label for any record, so that nothing can be said of its precision")
    return calibration_error([("right", share) for share in answers.tolist()], [_WORDS[one] for one in right.tolist()])


_WORDS = {True: "right", False: "wrong"}
