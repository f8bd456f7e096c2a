"""Classification: a label for each text, or each pair of texts, with its probability."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Any, overload

import torch

from atento.base.errors import CapabilityError, UsageError
from atento.config.tables.head_kinds import HeadConfig
from atento.data.objectives.labels import KIND, SETS, check_labels, network_head
from atento.data.records.splits import Split
from atento.networks.interface import Network
from atento.tasks.decoding_setup import refuse_options
from atento.tasks.task_model import TaskModel, for_head, head_of
from atento.tasks.text_outputs import text_outputs, texts_of_split

THRESHOLD = 0.5  # least probability of a predicted label, of models of several labels
_NEVER = 2.0  # a probability that no label has


@dataclass(frozen=True)
class Label:
    """A label and its probability."""

    name: str
    probability: float


def probabilities_of(scores: torch.Tensor, several: bool) -> torch.Tensor:
    """The probabilities of labels (N,C) by their scores; `several` labels of a text have probabilities of their own."""
    return torch.sigmoid(scores) if several else torch.softmax(scores, dim=-1)


def gives_label_sets(network: Network) -> bool:
    """Whether the labels of a text are those above a threshold, and not the most probable one."""
    return any(head.kind == SETS for head in network.config.heads)


def label_head(network: Network) -> HeadConfig:
    """The head that gives labels: the multi-label head if there is one, else the classification head.
    Raises CapabilityError: there is neither.
    """
    return network_head(network.config, SETS if gives_label_sets(network) else KIND)


OneText = str | tuple[str, str]
ManyTexts = Sequence[str] | Sequence[tuple[str, str]]


@overload
def classify(model: TaskModel, text: OneText, *, threshold: None = None, head: str | None = None) -> Label: ...  # type: ignore[overload-overlap]
@overload
def classify(model: TaskModel, text: ManyTexts, *, threshold: None = None, head: str | None = None) -> list[Label]: ...
@overload
def classify(model: TaskModel, text: OneText, *, threshold: float, head: str | None = None) -> list[Label]: ...  # type: ignore[overload-overlap]
@overload
def classify(model: TaskModel, text: ManyTexts, *, threshold: float, head: str | None = None) -> list[list[Label]]: ...
@overload
def classify(model: TaskModel, text: OneText, *, abstain: float, head: str | None = None) -> Label | None: ...  # type: ignore[overload-overlap]
@overload
def classify(model: TaskModel, text: ManyTexts, *, abstain: float, head: str | None = None) -> list[Label | None]: ...


def classify(
    model: TaskModel,
    text: OneText | ManyTexts,
    *,
    threshold: float | None = None,
    abstain: float | None = None,
    head: str | None = None,
) -> object:
    """The most probable label of a text or texts, or, for a model of pairs, of a tuple of two texts or a list of such
    tuples (docs/notes.md#g1).

    For type checkers the result without a threshold is a `Label`. With a model of several labels, give `threshold`: its
    result is a list of labels for type checkers too.

    Args:
        text: a text, a pair, or a list of these.
        threshold: return, for each text, the list of the labels whose probability is at least this, most probable
            first; it may be empty. A model of several labels returns such lists anyway, of 0.5 where this is None.
        abstain: a precision between 0 and 1: labels that are not as probable as those that were right in this share of
            the data that the model was calibrated on are left out. The result of a text without a label is None, or of
            a model of several labels an empty list.
        head: the name of a head, of a model that has several; None: the only one that gives labels.

    Raises:
        CapabilityError: the model has no head that gives labels; or nothing is known of its precision. UsageError:
            texts for a model of pairs, or pairs for a model of texts; a threshold or a precision out of range.
    """
    model = for_head(model, head, "classify")
    least = None if abstain is None else least_probability(model, abstain, threshold)
    if threshold is not None and not 0 <= threshold <= 1:
        raise UsageError(f"`threshold` must lie in 0 to 1: got {threshold}")
    single = isinstance(text, str | tuple)
    texts: Any = [text] if single else text
    results: list[Any] = classifications(model, texts)
    if least is not None:
        results = [sure_labels(model, labels, least) for labels in results]
    elif threshold is not None or gives_label_sets(model.network):
        results = [above(labels, threshold) for labels in results]
    if threshold is None and not gives_label_sets(model.network):
        results = [labels[0] if labels else None for labels in results]
    return results[0] if single else results


def sure_labels(model: TaskModel, labels: Sequence[Label], least: float) -> list[Label]:
    """The labels that a model answers with, if they are as probable as `least_probability` asks."""
    return above(labels, max(THRESHOLD, least)) if gives_label_sets(model.network) else above(labels[:1], least)


def above(labels: Sequence[Label], threshold: float | None = None) -> list[Label]:
    """The labels whose probability is at least the threshold, 0.5 where that is None."""
    least = THRESHOLD if threshold is None else threshold
    return [label for label in labels if label.probability >= least]


def least_probability(model: TaskModel, abstain: float, threshold: float | None = None) -> float:
    """The probability from which on a model answers with a precision of `abstain`; above 1 if it never does.
    Raises UsageError: `abstain` is not between 0 and 1, or a threshold is given too. CapabilityError: nothing is known
    of the precision of the model.
    """
    given: object = abstain
    if not (isinstance(given, Real) and 0 < float(given) < 1):
        raise UsageError(f"`abstain` is a precision between 0 and 1: got {abstain!r:.60}")
    if threshold is not None:
        raise UsageError(f"`abstain` chooses the threshold: got `threshold` {threshold} too; give one of the two")
    known = model.confidence
    if not known.records:
        raise CapabilityError(
            f"`abstain` needs to know how precise the model is, and nothing is kept of {model.requested}: `atento "
            "evaluate MODEL DATA --calibrate` fits it to labelled data"
        )
    least = known.threshold(abstain)
    return _NEVER if least is None else least


def label_scores(
    model: TaskModel, texts: Sequence[str] | Sequence[tuple[str, str]], network: Network | None = None
) -> tuple[list[str], torch.Tensor]:
    """The labels of a model, and their scores before they become probabilities, (N,C) in float64; `network` reads the
    texts, by default the model's reader. One warning counts those that are cut.
    """
    head = _checked_head(model)
    outputs = text_outputs(model, head, texts, network)
    return list(head.labels), torch.tensor(outputs, dtype=torch.float64).reshape(len(outputs), len(head.labels))


def label_probabilities(
    model: TaskModel, texts: Sequence[str] | Sequence[tuple[str, str]], network: Network | None = None
) -> tuple[list[str], torch.Tensor]:
    """The labels of a model, and their probabilities, (N,C): of several labels a text, each has one of its own."""
    names, scores = label_scores(model, texts, network)
    return names, probabilities_of(scores / model.confidence.temperature, gives_label_sets(model.network))


def classifications(
    model: TaskModel, texts: Sequence[str] | Sequence[tuple[str, str]], *, head: str | None = None
) -> list[list[Label]]:
    """As `classify`, with all labels of each text, the most probable first."""
    names, shares = label_probabilities(for_head(model, head, "classify"), texts)
    rows = [[Label(name, share) for name, share in zip(names, row)] for row in shares.tolist()]
    return [sorted(labels, key=lambda label: -label.probability) for labels in rows]


def call(model: TaskModel, split: Split, options: Mapping[str, object]) -> list[object]:
    """The most probable label of each record of a split; of a model of several labels, those above the threshold."""
    refuse_options(options, "labels: a model that classifies writes nothing")
    head = _checked_head(model)  # refuse labels that the model does not have
    check_labels(split, head.labels)
    results = classifications(model, texts_of_split(split))
    if gives_label_sets(model.network):
        return [[label.name for label in above(labels)] for labels in results]
    return [labels[0].name for labels in results]


def _checked_head(model: TaskModel) -> HeadConfig:
    """The head that gives labels. Raises CapabilityError: there is none; says how to train one."""
    return head_of(model, SETS if gives_label_sets(model.network) else KIND)


def gold(split: Split) -> list[object]:
    """The labels of a split."""
    return list(split["label"])
