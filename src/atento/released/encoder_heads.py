"""The heads of released encoders: read from a file and its configuration, written, and their rows of the weight table.

The families differ in names and in the layer before the classes; `HeadNames` says how. The heads of encoder-decoders
are on a decoder that reads the text again: classes, a number, answers.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from atento.base.errors import ModelError
from atento.config.sections.network import NetworkConfig
from atento.config.sections.network_parts import OutputConfig
from atento.config.tables.head_kinds import HEAD_KINDS, OF_TEXT, Activation, HeadConfig, HeadKind
from atento.released.family import Repeat, Settings, Tying
from atento.released.weight_rows import Row, linear, norm

_CLASSES = {
    "masked-language-model": "ForMaskedLM",
    "next-sentence": "ForNextSentencePrediction",
    "replaced-token": "ForPreTraining",
    "classification": "ForSequenceClassification",
    "multi-label": "ForSequenceClassification",
    "regression": "ForSequenceClassification",
    "tagging": "ForTokenClassification",
    "answer": "ForQuestionAnswering",
}
_LABELLED = ("classification", "multi-label", "regression", "tagging")
_TEXTS, _ANSWERS = "classification_head", "qa_outputs"  # of decoders
_PROBLEMS = {"regression": "regression", "multi-label": "multi_label_classification"}


@dataclass(frozen=True)
class HeadNames:
    """The names of a family's heads."""

    classes: str  # the start of the names of its classes
    table: str  # the embedding, which the output matrix usually repeats
    # `dense`, `norm`, `matrix`: the layers of the head for masked tokens
    dense: str
    norm: str
    matrix: str
    bias: str  # the bias of that head
    activation: Activation | None = None  # the activation of that head; None: the network's
    hidden: str = ""  # the dense layer before the classes; empty: the pooler is before them
    hidden_activation: Activation | None = None  # the activation of that layer
    classifier: str = "classifier"  # the linear map to the classes behind the layer `hidden`
    next_sentence: str = ""  # the linear map of the head for pairs of sentences
    detector: tuple[str, str] = ("", "")  # the two layers of the head that tells replaced tokens (ELECTRA)

    def repeats(self, data: Mapping[str, object]) -> tuple[Repeat, ...]:
        """The tensors that usually repeat another one."""
        second_bias = self.matrix.removesuffix("weight") + "bias"
        matrix = Repeat(self.matrix, self.table)
        return (matrix,) if second_bias == self.bias else (matrix, Repeat(second_bias, self.bias, replaces=True))

    def output(self, heads: Iterable[HeadConfig], tying: Tying) -> OutputConfig:
        """The output matrix, which a file has in the head for masked tokens alone."""
        masked = any(head.kind == "masked-language-model" for head in heads)
        return OutputConfig(tied=not masked or tying.same(self.matrix, self.table))

    def new_head(self, kind: HeadKind, network: NetworkConfig) -> dict[str, object] | None:
        """The options of a new head of a text behind the layer `hidden`, which reads the first token."""
        if not self.hidden or kind not in OF_TEXT:
            return None
        return {"hidden": True, "activation": self.hidden_activation, "pooling": "first", "dropout": network.dropout}


@dataclass(frozen=True)
class HeadDropout:
    """The dropout of a family's heads: for classes or a number, for tags (None: the same), answers, two sentences."""

    classes: float
    tags: float | None = None
    answers: float = 0.0
    sentences: float = 0.0


def read_heads(
    family: HeadNames, data: Mapping[str, object], names: frozenset[str], activation: Activation, rates: HeadDropout
) -> tuple[HeadConfig, ...]:
    """The heads that a file holds.

    Args:
        family: the names of the heads.
        data: their configuration.
        names: of the file's tensors, without the family's prefix.
        activation: of the network, by our name.
        rates: the dropout of the heads.
    """
    heads = []
    if f"{family.dense}.weight" in names and family.matrix:
        own = None if family.activation in (None, activation) else family.activation
        heads.append(HeadConfig("masked-language-model", activation=own))
    if f"{family.next_sentence}.weight" in names:
        heads.append(HeadConfig("next-sentence", dropout=rates.sentences))
    if f"{family.detector[0]}.weight" in names:
        heads.append(HeadConfig("replaced-token", hidden=True, activation=activation, dropout=0.0))
    if "qa_outputs.weight" in names:
        heads.append(HeadConfig("answer", dropout=rates.answers))
    hidden = f"{family.hidden}.weight" in names
    if f"{family.classifier}.weight" in names or "classifier.weight" in names:
        heads.append(_labelled(family, data, hidden, names, rates))
    return tuple(heads)


def _labelled(family: HeadNames, data: Settings, hidden: bool, names: frozenset[str], rates: HeadDropout) -> HeadConfig:
    """The head for classes, tags or a number."""
    of_tokens = any("TokenClassification" in str(name) for name in data.get("architectures") or ())
    pooled = not family.hidden and any(name.startswith("pooler.") for name in names)  # else a pooler that none reads
    of_tokens = of_tokens or not (hidden or pooled)
    kind, labels = labels_of(data, of_tokens=of_tokens)
    if of_tokens:
        return HeadConfig("tagging", labels, dropout=rates.classes if rates.tags is None else rates.tags)
    return HeadConfig(
        kind,
        labels,
        pooling="first" if hidden else "pooler",
        hidden=hidden,
        activation=family.hidden_activation if hidden else None,
        dropout=rates.classes,
    )


def labels_of(data: Settings, *, of_tokens: bool) -> tuple[Any, tuple[str, ...]]:
    """The kind of a head for tokens or for whole texts, and its labels, by their configuration."""
    label_names = data.get("id2label") or {}
    count = len(label_names) or data.get("num_labels", 2)
    labels = tuple(str(label_names.get(str(n), label_names.get(n, f"LABEL_{n}"))) for n in range(count))
    if of_tokens:
        return "tagging", labels
    problem = data.get("problem_type")
    if problem == "regression" and count > 1:
        raise ModelError(f"`problem_type` regression with {count} labels is not built here: a head gives one number")
    several = problem == "multi_label_classification"
    return (
        ("regression", ()) if count == 1 and not several else ("multi-label" if several else "classification", labels)
    )


def write_heads(family: HeadNames, config: NetworkConfig) -> dict[str, Any]:
    """The class and the labels under their keys. Raises ModelError: no class of the family has these heads."""
    kinds = [head.kind for head in config.heads]
    if kinds == ["masked-language-model", "next-sentence"]:
        ending = "ForPreTraining"
    elif len(kinds) > 1 or any(kind not in _CLASSES for kind in kinds):
        raise ModelError(f"no {family.classes} class of the Hugging Face layout holds the heads {', '.join(kinds)}")
    else:
        ending = _CLASSES[kinds[0]] if kinds else "Model"
    data: dict[str, object] = {"architectures": [f"{family.classes}{ending}"]}
    # the number of a regression is written as one label
    labels = next((head.labels or ("LABEL_0",) for head in config.heads if head.kind in _LABELLED), ())
    if labels:
        data["id2label"] = {str(n): label for n, label in enumerate(labels)}
        data["label2id"] = {label: n for n, label in enumerate(labels)}
    if kinds and kinds[0] in _PROBLEMS:
        data["problem_type"] = _PROBLEMS[kinds[0]]
    return data


def head_dropout(config: NetworkConfig, kinds: tuple[str, ...] = _LABELLED) -> float | None:
    """The dropout of the head for classes, tags or a number, or of those kinds; None: there is no such head."""
    return next((head.dropout for head in config.heads if head.kind in kinds), None)


def head_rows(family: HeadNames, config: NetworkConfig) -> list[Row]:
    """The rows of all heads. Raises ModelError: the layout has no such head."""
    return [row for head in config.heads for row in _rows(family, head, config.output.tied)]


def _rows(family: HeadNames, head: HeadConfig, tied: bool) -> list[Row]:
    ours = f"heads.{head.name}"
    if head.kind == "masked-language-model":
        # if the output matrix is untied, `transformers` does not share a second bias either
        second_bias = family.matrix.removesuffix("weight") + "bias"
        copies = () if tied or second_bias == family.bias else (second_bias,)
        return [
            *linear(f"{ours}.transform.dense", family.dense, head=True),
            *norm(f"{ours}.transform.norm", family.norm, head=True),
            *([] if tied else [Row(f"{ours}.output.weight", (family.matrix,), head=True)]),
            Row(f"{ours}.output.bias", (family.bias,), head=True, copies=copies),
        ]
    if head.kind == "replaced-token":
        dense, out = family.detector
    elif head.hidden:
        dense, out = family.hidden, family.classifier
    else:
        dense, out = "", {"next-sentence": family.next_sentence, "answer": "qa_outputs"}.get(head.kind, "classifier")
    if not out or head.kind == "span-boundary":
        raise ModelError(f"no {family.classes} class of the Hugging Face layout holds a {head.kind} head")
    before = linear(f"{ours}.dense", dense, head=True) if head.hidden else []
    return [*before, *linear(f"{ours}.out", out, head=True)]


def read_rereading_heads(data: Settings, names: Collection[str]) -> tuple[HeadConfig, ...]:
    """The head that a file holds, by its configuration and the names of its tensors."""
    if f"{_ANSWERS}.weight" in names:
        return (HeadConfig("answer", dropout=0.0, side="both"),)
    if f"{_TEXTS}.dense.weight" not in names:
        return ()
    kind, labels = labels_of(data, of_tokens=False)
    rate = data.get("classifier_dropout", 0.0)
    return (HeadConfig(kind, labels, pooling="last", hidden=True, dropout=rate, side="both"),)


def write_rereading_heads(classes: str, config: NetworkConfig) -> dict[str, object]:
    """The class and, of a head for classes or a number, the labels; `classes` is the start of the family's names.
    Raises ModelError: no class of the family has these heads.
    """
    if any(head.side != "both" for head in config.heads):
        raise ModelError(
            f"the heads of {classes} in the Hugging Face layout are on the decoder, which reads the text again: this "
            "network has one elsewhere (`side` of the head)"
        )
    data = write_heads(HeadNames(classes, "", "", "", "", ""), config)
    return data if _of_answers(config.heads[0]) else data | {"classifier_dropout": config.heads[0].dropout}


def rereading_rows(config: NetworkConfig) -> list[Row]:
    """The rows of all heads."""
    rows = []
    for head in config.heads:
        ours = f"heads.{head.name}"
        if _of_answers(head):
            rows += linear(f"{ours}.out", _ANSWERS, head=True)
        else:
            rows += linear(f"{ours}.dense", f"{_TEXTS}.dense", head=True)
            rows += linear(f"{ours}.out", f"{_TEXTS}.out_proj", head=True)
    return rows


def _of_answers(head: HeadConfig) -> bool:
    return HEAD_KINDS[head.kind] == "span"
