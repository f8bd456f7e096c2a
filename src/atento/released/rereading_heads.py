"""The heads of released encoder-decoders, on a decoder that reads the text again: classes, a number, answers."""

from collections.abc import Collection, Mapping
from typing import Any

from atento.config.sections.network import NetworkConfig
from atento.config.tables.heads import HEAD_KINDS, HeadConfig
from atento.errors import ModelError
from atento.released.heads import HeadNames, labels_of, write_heads
from atento.released.rows import Row, linear

_TEXTS, _ANSWERS = "classification_head", "qa_outputs"


def read_rereading_heads(data: Mapping[str, Any], names: Collection[str]) -> tuple[HeadConfig, ...]:
    """The head that a file holds, by its configuration and the names of its tensors."""
    if f"{_ANSWERS}.weight" in names:
        return (HeadConfig("answer", dropout=0.0, side="both"),)
    if f"{_TEXTS}.dense.weight" not in names:
        return ()
    kind, labels = labels_of(data, of_tokens=False)
    rate = data.get("classifier_dropout", 0.0)
    return (HeadConfig(kind, labels, pooling="last", hidden=True, dropout=rate, side="both"),)


def write_rereading_heads(classes: str, config: NetworkConfig) -> dict[str, Any]:
    """The class and, of a head for classes or a number, the labels; `classes` is the start of the family's names.

    Raises:
        ModelError: no class of the family has these heads.
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
