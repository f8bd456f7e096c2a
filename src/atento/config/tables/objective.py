"""The training objectives: one row for each, and the options of the key `objective` of a recipe."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from math import inf
from typing import Annotated, Literal

from atento.base.errors import RecipeError, nearest
from atento.config.literals import BELOW_1, FROM_0_TO_1, Natural, OneOf, Positive, Rule, Section
from atento.config.tables.head_kinds import HeadName


@dataclass(frozen=True)
class ObjectiveSpec:
    """One objective."""

    fields: tuple[tuple[str, ...], ...]  # sets of fields; a record needs the fields of one set
    architectures: tuple[str, ...]  # the architectures that it can train
    why: str  # what these architectures have in common, for messages
    options: Mapping[str, float]  # the options of `ObjectiveConfig` that it reads, each with its default
    heads: tuple[HeadName, ...] = ()  # the kinds of heads that an encoder needs for it
    sentinels: int = 0  # how many sentinel tokens it needs in the tokenizer
    weighs_classes: bool = False  # whether it reads `class_weights`
    contrasts: bool = False  # whether it reads `symmetric` and `mask_duplicates`
    reads_scores: bool = False  # whether it reads `score_range`
    of_vectors: bool = False  # whether it compares the vectors of texts, and reads `matryoshka`
    masks: bool = False  # whether it reads `unit`
    # whether a decoder reads the tokens that it learns to predict, as scheduled sampling needs
    teacher_forced: bool = False
    packs: bool = False  # whether it reads `data.pack`
    # whether it reads the ids of a text and nothing else, so that these may come from a token store
    reads_ids: bool = False
    # whether its heads give probabilities of tokens, labels or places, as R-Drop needs
    gives_probabilities: bool = False
    # what a teacher says of its examples: what heads give or vectors, or tokens; empty: it has no teacher
    taught: Literal["", "outputs", "tokens"] = ""


_TEXT, _PAIR = (("text",),), (("source", "target"),)
SENTINELS = 100  # of T5: one for each hidden span
_NOISE = ("infilling", "deletion", "permutation", "rotation")  # options of denoising: shares
_OPTIONS = ("rate", "mean_span", "sampled", "scale", "margin", "detection")
_FILLS: HeadName = "masked-language-model"
_SEQ2SEQ = ("encoder-decoder", "recurrent-seq2seq")
TEXT_READERS = ("encoder", "decoder", "encoder-decoder", "recurrent-seq2seq", "recurrent-lm", "elmo")

# Objectives of decoders; of encoders that hide tokens, of heads that read whole texts, and of the vectors of texts.
_writes = partial(ObjectiveSpec, teacher_forced=True, gives_probabilities=True)
_continues = partial(_writes, _TEXT, options={}, heads=(_FILLS,), reads_ids=True)
_restores = partial(_writes, _TEXT, ("encoder-decoder",), "read a source and write")
_hides = partial(ObjectiveSpec, _TEXT, ("encoder",), "read both ways")
_reads = partial(ObjectiveSpec, architectures=TEXT_READERS, why="read a text", options={})
_compares = partial(ObjectiveSpec, architectures=("encoder",), why="read both ways", of_vectors=True, taught="outputs")
_LABELS = _reads(
    (("text", "label"), ("text", "pair", "label")), weighs_classes=True, gives_probabilities=True, taught="outputs"
)

OBJECTIVES: dict[str, ObjectiveSpec] = {
    "sequence-to-sequence": _writes(_PAIR, _SEQ2SEQ, "read a source and write", {}, taught="tokens"),
    "causal": _continues(
        ("decoder", "recurrent-lm", "encoder"), "guess each token from those before it", packs=True, taught="tokens"
    ),
    "prefix": _continues(("decoder", "encoder"), "continue a text whose prefix they read bidirectionally"),
    "masked": _hides({"rate": 0.15}, (_FILLS,), masks=True, reads_ids=True, gives_probabilities=True, taught="tokens"),
    "next-sentence": _hides({"rate": 0.15}, (_FILLS, "next-sentence"), masks=True, gives_probabilities=True),
    "span-boundary": _hides({"rate": 0.15}, (_FILLS, "span-boundary"), reads_ids=True, gives_probabilities=True),
    "replaced-token": _hides(
        {"rate": 0.15, "detection": 50.0}, ("generator", "replaced-token"), masks=True, reads_ids=True
    ),
    "span-corruption": _restores({"rate": 0.15, "mean_span": 3.0}, sentinels=SENTINELS, reads_ids=True),
    "denoising": _restores({"infilling": 0.3, "mean_span": 3.0, "deletion": 0.0, "permutation": 1.0, "rotation": 0.0}),
    "bidirectional": ObjectiveSpec(_TEXT, ("elmo",), "guess each word from either side", {"sampled": 0}),
    "window": ObjectiveSpec(_TEXT, ("cbow",), "guess words from their neighbours", {}),
    "labels": _LABELS,
    "tags": _reads((("tokens", "tags"),), gives_probabilities=True, taught="outputs"),
    "spans": _reads((("question", "context", "answers"),), gives_probabilities=True),
    "label-sets": _LABELS,
    "numbers": _reads((("text", "score"), ("text", "pair", "score")), taught="outputs"),
    "multiple-negatives": _compares(
        (("text", "pair"), ("text", "pair", "negative")), options={"scale": 20.0}, contrasts=True
    ),
    "cosine": _compares((("text", "pair", "score"),), options={}, reads_scores=True),
    "cosent": _compares((("text", "pair", "score"),), options={"scale": 20.0}),
    "triplet": _compares((("text", "pair", "negative"),), options={"margin": 5.0}),
    "simcse": _compares(_TEXT, options={"scale": 20.0}, contrasts=True, taught=""),
    "tsdae": ObjectiveSpec(_TEXT, ("encoder",), "read both ways", {"deletion": 0.6}, ("reconstruction",)),
}

_RANKED = (("query", "document", "grade"), ("query", "positive", "negative"))
OBJECTIVES |= {
    name: ObjectiveSpec(_RANKED, TEXT_READERS, "read a text", {}, reads_scores=name == "pointwise")
    for name in ("pointwise", "ranknet", "listnet", "lambda-loss")
}


@dataclass(frozen=True)
class ObjectiveConfig(Section, choices="objective."):
    """One objective with its options; a list of several is a mixture."""

    kind: Annotated[str, OneOf(OBJECTIVES)]
    """What the network predicts. causal: the next token; prefix: a text after its beginning; masked, next-sentence,
    span-boundary, replaced-token: masked or replaced tokens; span-corruption: hidden spans; denoising, tsdae: a text
    from a noisy copy, or from its vector; bidirectional, window: words from neighbours.
    """
    share: Positive = 1.0
    """Its share in a mixture, relative to the others. [above 0]"""
    weight: Positive = 1.0
    """Factor of its loss. [above 0]"""
    rate: Annotated[float, Rule("lie in (0, 1)", lambda rate: 0 < rate < 1)] | None = None
    """Share of masked tokens; large networks learn more from 0.3 to 0.4. [above 0, below 1; null: as in the paper,
    0.15]
    """
    unit: Literal["tokens", "words", "spans"] = "tokens"
    """What is masked as a whole: `tokens`, `words`, or `spans` of words of geometric length, 3.8 on average, at most 10
    (SpanBERT).
    """
    class_weights: Literal["equal", "balanced"] = "equal"
    """Factor of the loss of each label: `equal`, or `balanced`: examples / (labels × examples of the label); of several
    labels a text, examples / (2 × examples with it), and likewise without.
    """
    mean_span: Annotated[float, Rule("be at least 1", lambda mean: 1 <= mean < inf)] | None = None
    """Mean length of a masked span in tokens. [at least 1; null: as in the paper, 3]"""
    detection: Positive | None = None
    """For replaced-token: factor of the loss of the detector. [above 0; null: 50]"""
    infilling: Annotated[float, BELOW_1] | None = None
    """For denoising: share of tokens in spans that one mask replaces. [0 to below 1; null: 0.3]"""
    deletion: Annotated[float, BELOW_1] | None = None
    """Share of tokens that denoising deletes, or of words that tsdae does. [0 to below 1; null: 0, of tsdae 0.6]"""
    permutation: Annotated[float, FROM_0_TO_1] | None = None
    """For denoising: share of texts whose sentences are permuted. [0 to 1; null: 1]"""
    rotation: Annotated[float, FROM_0_TO_1] | None = None
    """For denoising: share of texts that begin at a random token. [0 to 1; null: 0]"""
    sampled: Natural | None = None
    """For bidirectional: words drawn for the softmax, 4,000 or more for vocabularies above 50,000 by falling frequency.
    The training loss is then too small. [0 or more; null: 0, all words]
    """
    scale: Positive | None = None
    """Factor of the cosines of multiple-negatives, simcse and cosent; the larger, the more hard pairs count. [above 0;
    null: 20]
    """
    symmetric: bool = False
    """For multiple-negatives: also find the first text of a pair by its second."""
    mask_duplicates: bool = True
    """For multiple-negatives and simcse: leave out negatives that equal the right text."""
    score_range: tuple[float, float] | None = None
    """For cosine and pointwise: lowest and highest score, which become 0 and 1. [null: cosines from -1 to 1, grades
    from 0 to 1] Use [0, 5] for STS-B, [1, 5] for ASSIN.
    """

    margin: Positive | None = None
    """For triplet: how much farther the negative should be; 0.1 to 1 for cosines and normalised vectors. [above 0;
    null: 5]
    """
    distance: Literal["euclidean", "cosine"] = "euclidean"
    """For triplet: `euclidean`, or `cosine` (1 - cosine)."""
    matryoshka: tuple[int, ...] = ()
    """Lengths that vectors can be cut to, with summed losses. [none: whole vectors alone] Include the whole length:
    [384, 128, 32].
    """

    def _check(self) -> None:
        if self.kind not in OBJECTIVES:
            raise RecipeError(f"`kind` of an objective cannot be {self.kind!r}{nearest(self.kind, list(OBJECTIVES))}")
        low, high = self.score_range or (0.0, 1.0)
        if not low < high:
            raise RecipeError(f"`score_range` must have its lowest score first: got {[low, high]}")
        if len(set(self.matryoshka)) < len(self.matryoshka) or any(size < 1 for size in self.matryoshka):
            raise RecipeError(f"`matryoshka` must name different lengths, each at least 1: got {list(self.matryoshka)}")
        spec = OBJECTIVES[self.kind]
        for name, read in (
            ("class_weights", spec.weighs_classes),
            ("symmetric", spec.contrasts),
            ("mask_duplicates", spec.contrasts),
            ("score_range", spec.reads_scores),
            ("unit", spec.masks),
            ("distance", "margin" in spec.options),
            ("matryoshka", spec.of_vectors),
            *((option, option in spec.options) for option in (*_OPTIONS, *_NOISE)),
        ):
            if not read and getattr(self, name) != getattr(ObjectiveConfig, name):
                raise RecipeError(f"`{name}` has no effect on the objective {self.kind}")
        if _NOISE[0] in spec.options and not any(self.option(name) for name in _NOISE):
            raise RecipeError(f"the objective {self.kind} needs noise: {', '.join(_NOISE)} are all 0")

    def option(self, name: str) -> float:
        """Return the value of an option, or its default if it is null."""
        value = getattr(self, name)
        return OBJECTIVES[self.kind].options[name] if value is None else float(value)

    @property
    def target_share(self) -> float:
        """Mean share of the tokens of a text that are targets."""
        return self.option("rate") if "rate" in OBJECTIVES[self.kind].options else 1.0
