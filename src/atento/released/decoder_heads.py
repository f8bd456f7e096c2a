"""The heads of released decoders: classes or a number from the last token without a bias, tags, answers."""

import logging
from dataclasses import dataclass
from typing import Any

from atento.base.errors import ModelError
from atento.config.sections.network import NetworkConfig
from atento.config.tables.head_kinds import HEAD_KINDS, HeadConfig
from atento.released.encoder_heads import HeadNames, labels_of, write_heads
from atento.released.family import Settings, Tying
from atento.released.weight_rows import Row, linear

_log = logging.getLogger(__name__)
_MATRIX, _TEXTS, _ANSWERS = "lm_head.weight", "score", "qa_outputs"


@dataclass(frozen=True)
class DecoderHeads:
    """The classes of a family of decoders and the names of their heads."""

    classes: str  # the start of the names of its classes
    language_model: str  # its class without another head
    table: str  # the embedding, which the output matrix may repeat
    tags: str = ""  # the linear map of tags; empty: no class has one
    answers: bool = False  # whether a class has a head for answers

    def read(self, data: Settings, names: frozenset[str]) -> tuple[HeadConfig, ...]:
        """The heads that a file holds, by its configuration and the names of its tensors."""
        if f"{_ANSWERS}.weight" in names:
            return (HeadConfig("answer", dropout=0.0),)
        of_tokens = bool(self.tags) and f"{self.tags}.bias" in names
        if not of_tokens and f"{_TEXTS}.weight" not in names:
            return ()
        kind, labels = labels_of(data, of_tokens=of_tokens)
        if of_tokens:
            rates = (data.get("classifier_dropout"), data.get("hidden_dropout"), 0.1)
            return (HeadConfig(kind, labels, dropout=next(rate for rate in rates if rate is not None)),)
        return (HeadConfig(kind, labels, dropout=0.0, out_bias=False),)

    def tied(self, data: Settings, names: frozenset[str], tying: Tying) -> bool:
        """Whether the output matrix is the embedding, or the file has none, as files of other classes."""
        if tying.same(_MATRIX, self.table) or _MATRIX in names:
            return tying.same(_MATRIX, self.table)
        is_bare = f"{self.classes}Model" in (data.get("architectures") or ())
        if is_bare:
            _log.warning(
                "a %sModel has no output matrix: its vectors are right, and what it writes is not", self.classes
            )
        return is_bare or bool(self.read(data, names))

    def write(self, config: NetworkConfig) -> dict[str, Any]:
        """The class and the labels under their keys. Raises ModelError: no class of the family has these heads."""
        if not config.heads:
            return {"architectures": [self.language_model]}
        data, head = write_heads(HeadNames(self.classes, "", "", "", "", ""), config), config.heads[0]
        kind = HEAD_KINDS[head.kind]
        of_text = kind in ("class", "set", "number")
        if not (
            (kind == "tag" and self.tags) or (kind == "span" and self.answers) or kind in ("class", "set", "number")
        ):
            raise ModelError(f"no {self.classes} class of the Hugging Face layout holds a {head.kind} head")
        if of_text and head.out_bias:
            raise ModelError(
                f"{data['architectures'][0]} has no bias in its head, and the {head.kind} head of this network has one "
                "(`out_bias` of the head)"
            )
        return data | {"classifier_dropout": head.dropout} if kind == "tag" else data

    def rows(self, config: NetworkConfig) -> list[Row]:
        """The rows of the output matrix and of all heads."""
        rows = [] if config.output.tied else [Row("heads.vocabulary.output.weight", (_MATRIX,), head=True)]
        for head in config.heads:
            theirs = {"tag": self.tags, "span": _ANSWERS}.get(HEAD_KINDS[head.kind], _TEXTS)
            rows += linear(f"heads.{head.name}.out", theirs, bias=head.out_bias, head=True)
        return rows
