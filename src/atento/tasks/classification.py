"""Classification: a label for each text, or each pair of texts, with its probability."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Unpack, overload

import torch

from atento.config.tables.head_kinds import HeadConfig
from atento.data.objectives.label_sets import KIND as SETS
from atento.data.objectives.label_sets import check_label_sets
from atento.data.objectives.labels import KIND, label_numbers, text_head
from atento.data.records.splits import Split
from atento.errors import UsageError
from atento.networks.interface import Network
from atento.tasks.call_options import refuse_options
from atento.tasks.required_head import head_of
from atento.tasks.task_model import TaskModel, tokenizer_of
from atento.tasks.text_outputs import TextOptions, text_outputs, texts_of_model
from atento.text.tokenizer import Tokenizer

THRESHOLD = 0.5  # least probability of a predicted label, of models of several labels


@dataclass(frozen=True)
class Label:
    """A label and its probability."""

    name: str
    probability: float


def classify_texts(
    network: Network,
    tokenizer: Tokenizer,
    texts: Sequence[str],
    pairs: Sequence[str] | None = None,
    **options: Unpack[TextOptions],
) -> list[list[Label]]:
    """All labels of each text, or of each text with the one of `pairs` beside it, the most probable first.

    A head of one label a text gives probabilities that sum to 1; of several labels, each has a probability of its own.

    Args:
        network: one with a classification or multi-label head, in evaluation mode.
        options: how texts are read; there is one warning that counts those that are cut.

    Raises:
        CapabilityError: the network has no such head.
    """
    head = label_head(network)
    outputs = text_outputs(network, tokenizer, head, texts, pairs, **options)
    logits = torch.tensor(outputs, dtype=torch.float64).reshape(len(outputs), len(head.labels))
    shares = torch.sigmoid(logits) if head.kind == SETS else torch.softmax(logits, dim=-1)
    rows = [[Label(name, share) for name, share in zip(head.labels, row)] for row in shares.tolist()]
    return [sorted(labels, key=lambda label: -label.probability) for labels in rows]


def gives_label_sets(network: Network) -> bool:
    """Whether the labels of a text are those above a threshold, and not the most probable one."""
    return any(head.kind == SETS for head in network.config.heads)


def label_head(network: Network) -> HeadConfig:
    """The head that gives labels: the multi-label head if there is one, else the classification head.

    Raises:
        CapabilityError: there is neither.
    """
    return text_head(network.config, SETS if gives_label_sets(network) else KIND)


@overload
def classify(  # type: ignore[overload-overlap]
    model: TaskModel, text: str | tuple[str, str], *, threshold: None = None
) -> Label: ...
@overload
def classify(
    model: TaskModel, text: Sequence[str] | Sequence[tuple[str, str]], *, threshold: None = None
) -> list[Label]: ...
@overload
def classify(  # type: ignore[overload-overlap]
    model: TaskModel, text: str | tuple[str, str], *, threshold: float
) -> list[Label]: ...
@overload
def classify(
    model: TaskModel, text: Sequence[str] | Sequence[tuple[str, str]], *, threshold: float
) -> list[list[Label]]: ...


def classify(
    model: TaskModel,
    text: str | tuple[str, str] | Sequence[str] | Sequence[tuple[str, str]],
    *,
    threshold: float | None = None,
) -> object:
    """The most probable label of a text or texts, or, for a model of pairs, of a tuple of two texts or a list of such
    tuples (docs/notes.md#g1).

    For type checkers the result without a threshold is a `Label`. With a model of several labels, give `threshold`: its
    result is a list of labels for type checkers too.

    Args:
        model: the model.
        text: a text, a pair, or a list of these.
        threshold: return, for each text, the list of the labels whose probability is at least this, most probable
            first; it may be empty. A model of several labels returns such lists anyway, of 0.5 where this is None.

    Raises:
        CapabilityError: the model has no head that gives labels. UsageError: texts for a model of pairs, or pairs for a
            model of texts; a threshold outside 0 to 1.
    """
    if threshold is not None and not 0 <= threshold <= 1:
        raise UsageError(f"`threshold` must lie in 0 to 1: got {threshold}")
    single = isinstance(text, str | tuple)
    texts: Any = [text] if single else text
    results: list[Any] = classifications(model, texts)
    if threshold is None and not gives_label_sets(model.network):
        results = [labels[0] for labels in results]
    else:
        results = [above(labels, threshold) for labels in results]
    return results[0] if single else results


def above(labels: Sequence[Label], threshold: float | None = None) -> list[Label]:
    """The labels whose probability is at least the threshold, 0.5 where that is None."""
    least = THRESHOLD if threshold is None else threshold
    return [label for label in labels if label.probability >= least]


def classifications(model: TaskModel, texts: Sequence[str] | Sequence[tuple[str, str]]) -> list[list[Label]]:
    """As `classify`, with all labels of each text, the most probable first."""
    _checked_head(model)
    first, second = texts_of_model(model, texts)
    return classify_texts(
        model.reader(),
        tokenizer_of(model),
        first,
        second,
        template=model.config.get("template"),
        longest=model.trained_length,
        long_texts=model.long_texts,
    )


def call(model: TaskModel, split: Split, options: Mapping[str, object]) -> list[object]:
    """The most probable label of each record of a split; of a model of several labels, those above the threshold."""
    refuse_options(options, "labels: a model that classifies writes nothing")
    head = _checked_head(model)  # refuse labels that the model does not have
    check_label_sets(split, head.labels) if head.kind == SETS else label_numbers(split, head.labels)
    texts = split["text"]
    results = classifications(model, list(zip(texts, split["pair"])) if "pair" in split.columns else texts)
    return _names(model.network, results)


def _checked_head(model: TaskModel) -> HeadConfig:
    """The head that gives labels. Raises CapabilityError: there is none; says how to train one."""
    return head_of(model, SETS if gives_label_sets(model.network) else KIND)


def _names(network: Network, results: Sequence[Sequence[Label]]) -> list[object]:
    """The names of the predicted labels: one of each text, or of a model of several labels a list."""
    if gives_label_sets(network):
        return [[label.name for label in above(labels)] for labels in results]
    return [labels[0].name for labels in results]


def gold(split: Split) -> list[object]:
    """The labels of a split."""
    return list(split["label"])
