"""Heads of a network: kind, name, classes and input vectors."""

from dataclasses import dataclass
from typing import Literal

from atento.base.errors import RecipeError
from atento.config.literals import BelowOne, Section

HeadKind = Literal[
    "vocabulary", "class", "set", "number", "tag", "crf", "span", "boundary", "detection", "generator", "reconstruction"
]
Activation = Literal["relu", "gelu", "gelu-tanh", "silu", "tanh"]
Pooling = Literal["pooler", "first", "last", "mean"]
Windows = Literal["mean", "max", "attention", "first-last"]  # how the windows of a long text become one
HEAD_KINDS: dict[str, HeadKind] = {  # kind of a head -> kind of its labels
    "masked-language-model": "vocabulary",
    "next-sentence": "class",
    "classification": "class",
    "multi-label": "set",
    "regression": "number",
    "tagging": "tag",
    "crf": "crf",
    "answer": "span",
    "span-boundary": "boundary",
    "replaced-token": "detection",
    "generator": "generator",
    "reconstruction": "reconstruction",
}
WITH_LAYERS = ("generator", "reconstruction")  # kinds of heads with layers of their own, which an encoder makes
OF_TRAINING = (*WITH_LAYERS, "span-boundary")  # kinds of heads that training alone reads
OF_TEXT: tuple[HeadKind, ...] = ("class", "set", "number")  # one output for a whole text


HeadName = Literal[
    "masked-language-model",
    "next-sentence",
    "classification",
    "multi-label",
    "regression",
    "tagging",
    "crf",
    "answer",
    "span-boundary",
    "replaced-token",
    "generator",
    "reconstruction",
]


@dataclass(frozen=True)
class HeadConfig(Section, choices="heads."):
    """A head of a network, besides its hidden vectors and its output."""

    kind: HeadName
    """At each position logits over the vocabulary (`masked-language-model`), a class (`tagging`), start and end scores
    (`answer`) or the score of a replaced token (`replaced-token`); a class of the text (`classification`,
    `next-sentence`), several (`multi-label`) or a number (`regression`); all tags of a sentence (`crf`); a token
    (`span-boundary`, `generator`) or a text (`reconstruction`).
    """
    labels: tuple[str, ...] = ()
    """Names of the classes. [at least 2 for classification, tagging and crf, 1 for multi-label; for tags in a recipe,
    empty: as in the training data]
    """
    pooling: Pooling | None = None
    """Input of a head for a text: the `pooler`, the `first` or `last` real token, or their `mean`. [null: the pooler if
    there is one; else first in encoders, last in decoders and recurrent language models, mean in others]
    """
    hidden: bool = False
    """Put a dense layer before the head."""
    hidden_bias: bool = True
    """Bias of that layer, also in a masked-language-model head (ModernBERT: no)."""
    hidden_norm: bool = False
    """Normalise the vectors behind that layer (ModernBERT)."""
    out_bias: bool = True
    """Bias of the last layer (decoders for texts: no)."""
    dropout: BelowOne = 0.1
    """Share of the head's inputs set to 0 in training. [0 to below 1]"""
    activation: Activation | None = None
    """Activation of the layer of `hidden`, or of a masked-language-model head. [null: tanh; in a masked-language-model
    head the network's]
    """
    name: str = ""
    """Name of the head. [empty: its kind; vocabulary for masked-language-model, tagging for crf]"""
    window_query: bool = False
    """A vector that weighs windows (`data.windows: attention`)."""
    size: float = 0.25
    """Share of the network's heads and widths that a generator has. [above 0, at most 1]"""
    center: float = 0.0
    """What regression gives for an output of 0: the mean of the training data; `spread` is their standard deviation."""
    spread: float = 1.0
    """Factor of the output of regression. [above 0]"""
    side: Literal["encoder", "decoder", "both"] = "encoder"
    """Of an encoder-decoder: the `encoder`, the `decoder` behind its start token, or `both`, the decoder behind the
    whole text (BART, T5; not for tags).
    """

    def _check(self) -> None:
        if self.activation is not None and not (self.hidden or self.kind in ("masked-language-model", "generator")):
            raise RecipeError(
                "`activation` belongs to a masked-language-model head, a generator or a head with `hidden`: got a "
                f"{self.kind} head"
            )
        if self.hidden_norm and not self.hidden:
            raise RecipeError(f"`hidden_norm` needs `hidden`: got a {self.kind} head without it")
        fewest = {"classification": 2, "tagging": 2, "crf": 2, "multi-label": 1}.get(self.kind, 0)
        if len(self.labels) < fewest and (self.labels or self.role != "tagging"):
            many = "two" if fewest == 2 else "one"
            raise RecipeError(f"`labels` must name at least {many} for a {self.kind} head: got {list(self.labels)}")
        if self.side == "both" and HEAD_KINDS[self.kind] not in ("class", "set", "number", "span"):
            raise RecipeError(f"`side` both is for classes, a number or an answer: got a {self.kind} head")
        if (self.center, self.spread) != (0.0, 1.0) and not (HEAD_KINDS[self.kind] == "number" and self.spread > 0):
            raise RecipeError(f"`center` and a `spread` above 0 belong to a regression head: got a {self.kind} head")
        if not 0 < self.size <= 1:
            raise RecipeError(f"`size` of a head must lie in (0, 1]: got {self.size}")
        if len(set(self.labels)) < len(self.labels):
            raise RecipeError(f"`labels` must differ: got {list(self.labels)}")
        if not self.name:
            object.__setattr__(self, "name", "vocabulary" if self.kind == "masked-language-model" else self.role)
        if "." in self.name:  # it is part of the names of tensors
            raise RecipeError(f"`name` of a head must hold no dot: got {self.name!r}")

    @property
    def role(self) -> HeadName:
        """The kind of head that it stands for: a CRF is one way to give tags."""
        return "tagging" if self.kind == "crf" else self.kind

    @property
    def outputs(self) -> int:
        """Number of outputs."""
        return {"next-sentence": 2, "answer": 2, "regression": 1, "replaced-token": 1}.get(self.kind, len(self.labels))


def new_head(kind: HeadName) -> HeadConfig:
    """Return a head of that kind as its paper has it, for an objective that needs it."""
    if kind == "replaced-token":  # a dense layer with GELU (Clark et al. 2020)
        return HeadConfig("replaced-token", hidden=True, activation="gelu", dropout=0.0)
    return HeadConfig(kind)
