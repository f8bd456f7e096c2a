"""The sections that name trained models: `init`, the one to start from and what of it is trained; and `teacher`."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Literal

from atento.base.errors import RecipeError, nearest
from atento.config.literals import AT_LEAST_0, SHARE, BelowOne, Count, Positive, Section

ALL_LINEAR = "all-linear"
TARGETS = ("query", "key", "value", "input", "output", "inner", "outer")  # linear maps of a block, by our names
_EACH = ("query", "key", "value", "output", "inner", "outer")  # what `all-linear` stands for
_TRAIN = ("all", "head", "decoder", "bias", "lora")
_LAST = re.compile(r"last-([1-9][0-9]{0,3})")


@dataclass(frozen=True)
class LoraConfig(Section, path="init.lora."):
    """Low-rank adapters: W x + alpha/rank · B A x, with W frozen (LoRA, Hu et al. 2022)."""

    rank: Count = 8
    """Rank of the adapters. [at least 1] 4 to 16 is usual; raise it when the training loss stays high."""
    alpha: Positive = 16.0
    """The adapter's output is multiplied by `alpha` / `rank`; twice the rank is usual. [above 0]"""
    dropout: BelowOne = 0.0
    """Share of the adapters' inputs set to 0 in training. [0 to below 1] 0.05 to 0.1 helps with little data."""
    targets: tuple[str, ...] = ("query", "value")
    """Maps with adapters: query, key, value and output of attention, inner and outer of the feed-forward network;
    all-linear is all of these, input one for query, key and value together. [at least one]
    """

    def _check(self) -> None:
        if not self.targets:
            raise RecipeError("`init.lora.targets` must name at least one linear map: got []")
        for target in self.targets:
            if target not in (*TARGETS, ALL_LINEAR):
                raise RecipeError(
                    f"`init.lora.targets`: unknown linear map {target!r}{nearest(target, [*TARGETS, ALL_LINEAR])}"
                )
        if len(set(self.targets)) < len(self.targets):
            raise RecipeError(f"`init.lora.targets` must differ: got {list(self.targets)}")
        if ALL_LINEAR in self.targets and len(self.targets) > 1:
            rule = "all-linear names every map, so it stands alone"
            raise RecipeError(f"`init.lora.targets`: {rule}: got {self.targets}")
        if "input" in self.targets and {"query", "key", "value"} & set(self.targets):  # fused in one matrix
            rule = "input is query, key and value together, so it stands without them"
            raise RecipeError(f"`init.lora.targets`: {rule}: got {list(self.targets)}")

    @property
    def maps(self) -> tuple[str, ...]:
        """The linear maps that get adapters, each by its own name."""
        return _EACH if self.targets == (ALL_LINEAR,) else self.targets

    @property
    def scale(self) -> float:
        """What the adapter's output is multiplied by."""
        return self.alpha / self.rank


@dataclass(frozen=True)
class UnfreezeConfig(Section, path="init.unfreeze."):
    """Train the head first and the layers below it later; the same updates whether or not a run is resumed."""

    kind: Literal["gradual", "head-first"] = "gradual"
    """After the head one more layer at each stage (`gradual`, ULMFiT), or all that `train` names (`head-first`)."""
    epochs: Positive | None = None
    """Epochs of each stage. [above 0; null: 1, or as `steps` says]"""
    steps: Count | None = None
    """Updates of each stage. [at least 1; null: as `epochs` says]"""

    def _check(self) -> None:
        if self.steps is not None and self.epochs is not None:
            raise RecipeError(
                f"`init.unfreeze.steps` stands instead of `epochs`: got {self.steps} and {self.epochs}; give one"
            )

    def updates(self, updates_per_epoch: float) -> int:
        """The length of a stage in updates, at least 1."""
        if self.steps is not None:
            return self.steps
        return max(1, round((1.0 if self.epochs is None else self.epochs) * updates_per_epoch))


@dataclass(frozen=True)
class ClassifierConfig(Section, path="init.classifier."):
    """A linear classifier on the frozen vectors of texts, or of words for tagging, fitted by scikit-learn instead of
    training by steps.
    """

    kind: Literal["logistic", "svm"] = "logistic"
    """`logistic` regression, or a linear support vector machine (`svm`), whose probabilities cannot be trusted."""
    inverse_regularization: Positive = 1.0
    """The C of scikit-learn: higher values fit more closely. [above 0]"""
    pooling: Literal["mean", "first", "last"] = "mean"
    """The vector of a text: the `mean` of its tokens, its `first`, or its `last` (decoders)."""


@dataclass(frozen=True)
class InitConfig(Section, path="init."):
    """A trained model to fine-tune, and which of its weights are trained."""

    model: str
    """A run or model folder, a PEFT adapter, a shipped model (`micro-world-mlm`) or a hub name."""
    train: str = "all"
    """The weights to train: all, head, last-N (N layers and head), decoder (all but the encoder), bias (biases and
    head, BitFit, Ben Zaken et al. 2022) or lora (adapters and head). lora and last-2 save time and memory.
    """
    lora: LoraConfig | None = None
    """The adapters of `train` lora. [null: their defaults]"""
    layer_decay: Annotated[float, SHARE] = 1.0
    """Factor of the learning rate from each layer to the one below (ELECTRA, BEiT). [above 0 to 1] 0.8 to 0.95 helps a
    large model with little data.
    """
    unfreeze: UnfreezeConfig | None = None
    """Train the head first, layers below later. [null: everything from the first update]"""
    layers: Count | None = None
    """Use only the lowest layers; of an encoder-decoder, those of its decoder. [at least 1; null: all] Inner layers
    hold grammar better than meaning.
    """
    layer_mix: bool = False
    """As `network.layer_mix`; often better features with `train` head."""
    cache: str | None = None
    """Folder, relative to the recipe, for vectors: with `train` head, each text is read once for all runs, without
    dropout. [null: read texts every time]
    """
    classifier: ClassifierConfig | None = None
    """Fit the head by scikit-learn (extra `eval`); needs `train` head. [null: train by steps]"""

    new_languages: Mapping[str, str] = field(default_factory=dict)
    """Languages to add to a multilingual translator, each with a related one whose vector it begins with: {tyv_Cyrl:
    kir_Cyrl}. [null: none]
    """
    new_decoder: bool = False
    """The model is an encoder, which reads the sources of a task that writes; the decoder is new, as
    `network.n_decoder_layers` and `tokenizer` say.
    """
    tokenizer: Literal["model", "own"] = "model"
    """That of the `model`, or the recipe's `own`, for a language that an encoder cuts into many pieces: a new piece
    begins as the mean of the old ones. Train own on much text, masked-language-modeling first.
    """
    few_shot: bool = False
    """For classification with few labels (SetFit): a sentence encoder learns pairs of texts, then the head is fitted as
    by `classifier`. Of `training` seed and precision alone count.
    """

    def _check(self) -> None:
        for name in ("train", "layer_decay", "layers", "layer_mix", "lora", "unfreeze", "cache", "tokenizer"):
            if self.few_shot and getattr(self, name) != getattr(InitConfig, name):
                raise RecipeError(f"`init.few_shot` trains the network by pairs: leave `init.{name}` out")
        if self.tokenizer == "own" and (self.new_decoder or self.new_languages):
            other = "init.new_decoder" if self.new_decoder else "init.new_languages"
            rule = f"replaces the vocabulary that `{other}` adds to"
            raise RecipeError(f"`init.tokenizer: own` {rule}: write one of them")
        if not self.model:
            raise RecipeError("`init.model` must name a model: got ''")
        if self.train not in _TRAIN and not _LAST.fullmatch(self.train):
            known = "all, head, last-N with a number of layers such as last-2, decoder, bias or lora"
            raise RecipeError(f"`init.train` must be {known}: got {self.train!r}")
        if self.unfreeze is not None and self.train == "head":
            raise RecipeError("`init.unfreeze` trains layers below the head, and `init.train` is head: leave it out")
        if self.cache is not None and (self.train != "head" or not self.cache):
            rule = "names a folder for the vectors of a frozen network, so `train` must be head"
            raise RecipeError(f"`init.cache` {rule}: got {self.train!r} and {self.cache!r}")
        if self.classifier is not None and self.train != "head" and not self.few_shot:
            raise RecipeError(f"`init.classifier` reads a frozen network, so `train` must be head: got {self.train!r}")
        if self.classifier is not None and self.layer_mix:
            raise RecipeError("`init.layer_mix` is learned by steps, and `init.classifier` is fitted at once: give one")

    @property
    def last(self) -> int | None:
        """How many of the last layers are trained; None: `train` does not say a number."""
        match = _LAST.fullmatch(self.train)
        return int(match[1]) if match else None

    @property
    def adapters(self) -> LoraConfig | None:
        """The adapters to train; None: there are none."""
        return (self.lora or LoraConfig()) if self.train == "lora" else None


@dataclass(frozen=True)
class TeacherConfig(Section, path="teacher."):
    """Trained models whose outputs are learned beside the gold labels (Hinton et al. 2015)."""

    model: tuple[str, ...]
    """A run or model folder, a shipped model or a hub name; outputs of several are averaged. They need the labels, the
    vector length or the tokenizer of the network. [at least one]
    """
    weight: Annotated[float, SHARE] = 0.5
    """Share of the teacher in the loss. [above 0 to 1]"""
    temperature: Positive = 2.0
    """Divisor of the scores before the softmax; the loss is multiplied by its square. [above 0] Above 1, improbable
    labels count more.
    """
    n_best: Annotated[int, AT_LEAST_0] = 1
    """For tasks with sources: outputs of each teacher that replace the gold target. [at least 0] 0: learn the
    probabilities of the gold target's tokens.
    """
    cache: str | None = None
    """Folder for their outputs, relative to the recipe. [null: `teacher` in the run]"""

    def _check(self) -> None:
        if not self.model or "" in self.model:
            raise RecipeError(f"`teacher.model` must name a model: got {list(self.model)}")
        if self.cache == "":
            raise RecipeError("`teacher.cache` must name a folder: got ''")
