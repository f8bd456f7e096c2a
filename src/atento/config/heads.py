"""What is read off a network: a head's kind, name, classes, and which vectors it reads."""

from dataclasses import dataclass
from typing import Literal

from atento.config.literals import check_choices
from atento.errors import RecipeError

HeadKind = Literal["vocabulary", "class", "number", "tag", "span", "boundary"]
Pooling = Literal["pooler", "first", "last", "mean"]
HEAD_KINDS: dict[str, HeadKind] = {  # of a head's configuration -> what its loss compares
    "masked-language-model": "vocabulary",
    "next-sentence": "class",
    "classification": "class",
    "regression": "number",
    "tagging": "tag",
    "answer": "span",
    "span-boundary": "boundary",
}


@dataclass(frozen=True)
class HeadConfig:
    """What is read off a network, beside its hidden vectors and the tokens that it writes."""

    kind: Literal[
        "masked-language-model", "next-sentence", "classification", "regression", "tagging", "answer", "span-boundary"
    ]
    """What the head gives: logits over the vocabulary at every position (masked-language-model); a class or a number of
    the whole text (classification, regression, next-sentence); a class or start and end scores at every position
    (tagging, answer); a hidden token from those beside its span (span-boundary). masked-language-model and
    span-boundary are for encoders.
    """
    labels: tuple[str, ...] = ()
    """Names of the classes. [at least 2 for classification and tagging]"""
    pooling: Pooling | None = None
    """What a head of the whole text reads: the pooler's vector, the first or the last real token's, or the mean over
    real tokens. [null: the pooler where there is one; else the first token of an encoder, the last of a network that
    reads from left to right, the mean of others]
    """
    hidden: bool = False
    """Put a dense layer with tanh before the head."""
    dropout: float = 0.1
    """Share of the head's inputs set to 0 in training. [0 to below 1]"""
    activation: Literal["relu", "gelu", "gelu-tanh", "silu"] | None = None
    """Activation of a masked-language-model head; RoBERTa's is always gelu. [null: as the network's `activation`]"""
    name: str = ""
    """Name of the head; two heads of one kind need two names. [empty: its kind; vocabulary for masked-language-model]
    """
    side: Literal["encoder", "decoder"] = "encoder"
    """Which half of a network that reads a source and writes the head stands on."""

    def __post_init__(self) -> None:
        check_choices(self, "heads.")
        if self.activation is not None and self.kind != "masked-language-model":
            raise RecipeError(f"`activation` belongs to a masked-language-model head: got a {self.kind} head")
        if self.kind in ("classification", "tagging") and len(self.labels) < 2:
            raise RecipeError(f"`labels` must name at least two for a {self.kind} head: got {list(self.labels)}")
        if len(set(self.labels)) < len(self.labels):
            raise RecipeError(f"`labels` must differ: got {list(self.labels)}")
        if not 0.0 <= self.dropout < 1.0:
            raise RecipeError(f"`dropout` must lie in [0, 1): got {self.dropout}")
        if not self.name:
            object.__setattr__(self, "name", "vocabulary" if self.kind == "masked-language-model" else self.kind)
        if "." in self.name:  # it is part of the names of tensors
            raise RecipeError(f"`name` of a head must hold no dot: got {self.name!r}")

    @property
    def outputs(self) -> int:
        """How many numbers it gives."""
        return {"next-sentence": 2, "answer": 2, "regression": 1}.get(self.kind, len(self.labels))
