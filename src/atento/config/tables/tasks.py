"""The tasks, one row each; task names appear as strings only here."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from atento.config.tables.head_kinds import HeadName
from atento.config.tables.objective import TEXT_READERS, ObjectiveConfig
from atento.config.tables.verbs import VERBS
from atento.metrics.output_kinds import Outputs

if TYPE_CHECKING:
    from atento.config.sections.network import NetworkConfig

Kind = Literal["text", "class", "number", "classes", "words", "tags", "spans"]
"""Of a field; `atento.data.records.values` has their values."""


@dataclass(frozen=True)
class Field:
    """A field of a task's records: the key of a recipe's source that names its column, and its kind.

    Attributes:
        name: the key.
        kind: what its values are.
        optional: whether records may lack it.
        only_training: whether records for validation and test may lack it though those of training have it.
    """

    name: str
    kind: Kind = "text"
    optional: bool = False
    only_training: bool = False


@dataclass(frozen=True)
class TaskSpec:
    """One task: its records, what can learn it and how, what scores it, how it is used.

    Attributes:
        fields: of its records.
        architectures: the networks that can learn it; `why`: the reason.
        objective: the usual one; a recipe's `objective` may name others.
        heads: kinds of heads that are added to the network, with the labels of the training data.
        outputs: what a model of it gives, which decides the metrics that apply (`atento.metrics.metric_table`).
        metrics: the usual ones; the first decides which checkpoint is best.
        evaluated: the metrics of `atento evaluate`, if they differ.
        plain_metrics: the usual ones where the tags of the data are plain, and name no entities.
        perplexity: whether a validation gives the perplexity.
        verb: the method of `atento.Model`, and the command, that use such a model (`atento.config.tables.verbs`).
        template: the special tokens around its texts, where the tokenizer has none of its own.
        special_tokens: how many of them a text has.
        targets: what its targets are called in messages.
        reads_words: whether it reads whole words, so that the tokenizer must be of that kind.
        scored_metrics: the usual ones where the records have a score.
        vectors: whether it trains the vectors of texts. They are pooled as the recipe's `embedding` says, and heads of
            the initial model that no objective trains are left out.
        several_tasks: whether its records are of several tasks, which differ in the length of their targets.
        unused: a key of a recipe, or a section of it -> why it has no effect.
        defaults: keys of a recipe whose defaults differ from the usual ones.
    """

    fields: tuple[Field, ...]
    architectures: tuple[str, ...]
    why: str
    objective: str
    heads: tuple[HeadName, ...] = ()
    outputs: Outputs | None = None
    metrics: tuple[str, ...] = ()
    evaluated: tuple[str, ...] = ()
    plain_metrics: tuple[str, ...] = ()
    scored_metrics: tuple[str, ...] = ()
    vectors: bool = False
    perplexity: bool = False
    verb: str | None = None
    template: str | None = None
    special_tokens: int = 1
    targets: str = "tokens"
    reads_words: bool = False
    several_tasks: bool = False
    unused: Mapping[str, str] = field(default_factory=dict)
    defaults: Mapping[str, Any] = field(default_factory=dict)

    @property
    def writes(self) -> bool:
        """Whether a model of it writes texts."""
        return self.verb is not None and VERBS[self.verb].writes

    @property
    def columns(self) -> tuple[str, ...]:
        """The names of its fields."""
        return tuple(field.name for field in self.fields)

    @property
    def without_effect(self) -> Mapping[str, str]:
        """`unused`, and the section of a recipe that only tasks of vectors read."""
        samples = {} if self.writes else {"training.samples": "this task writes no text"}
        return {**self.unused, **samples, **({} if self.vectors else {"embedding": "it is for the task embedding"})}

    @property
    def texts(self) -> tuple[str, ...]:
        """The names of the fields that hold text or words, from which a tokenizer learns."""
        return tuple(field.name for field in self.fields if field.kind in ("text", "words"))

    @property
    def records(self) -> str:
        """Return the plural noun of its records in messages: "pairs", "texts" or "examples"."""
        return {("source", "target"): "pairs", ("text",): "texts"}.get(self.columns, "examples")


_SOURCE_AND_TARGET = (Field("source"), Field("target"))
_TEXT = (Field("text"),)
_SEQ2SEQ = ("encoder-decoder", "recurrent-seq2seq")
_NO_TRUNCATION = {"data.truncate": "a long text continues in a further example"}
_SAME_SUBWORDS = {"training.subword_dropout": "this task reads the same subwords every time"}
_WRITES_NOTHING = {"decoding": "this task writes nothing"}
_NO_SMOOTHING = {"training.label_smoothing": "this task has none"}
_OF_TEXTS = _SAME_SUBWORDS | _WRITES_NOTHING | {"data.truncate": "a long text is cut at its end"}


def _encoded(batch_tokens: int, *metrics: str) -> dict[str, object]:
    """Defaults of a task of encoders, whose targets are no tokens: whole texts, pairs, windows or words."""
    training = {"label_smoothing": 0.0, "batch_tokens": batch_tokens}
    return {"training": training, "metrics": [*metrics], "network": {"architecture": "encoder"}}


_PLAIN: dict[str, object] = {"training": {"label_smoothing": 0.0}, "metrics": []}

TASKS: dict[str, TaskSpec] = {
    "translation": TaskSpec(
        _SOURCE_AND_TARGET,
        _SEQ2SEQ,
        "read a source and write",
        "sequence-to-sequence",
        outputs="texts",
        metrics=("bleu", "chrf"),
        evaluated=("bleu", "chrf", "exact-match"),
        verb="translate",
    ),
    "summarization": TaskSpec(
        _SOURCE_AND_TARGET,
        _SEQ2SEQ,
        "read a source and write",
        "sequence-to-sequence",
        outputs="texts",
        metrics=("rouge",),
        verb="summarize",
        defaults={"metrics": ["rouge"], "data": {"truncate": "source"}, "training": {"batch_tokens": 1024}},
    ),
    "language-modeling": TaskSpec(
        _TEXT,
        ("decoder", "recurrent-lm"),
        "guess each token from those before it",
        "causal",
        perplexity=True,
        verb="generate",
        template="bos",
        unused=_NO_TRUNCATION | _SAME_SUBWORDS,
        defaults=_PLAIN | {"network": {"architecture": "decoder"}, "decoding": {"beam": 1}},
    ),
    "prefix-language-modeling": TaskSpec(
        _TEXT,
        ("decoder", "encoder"),
        "continue a text whose prefix they read bidirectionally",
        "prefix",
        perplexity=True,
        verb="generate",
        template="bos",
        unused=_NO_TRUNCATION | _SAME_SUBWORDS,
        defaults=_PLAIN | {"network": {"architecture": "decoder"}, "decoding": {"beam": 1}},
    ),
    "text-to-text": TaskSpec(
        _SOURCE_AND_TARGET,
        _SEQ2SEQ,
        "read a source and write",
        "sequence-to-sequence",
        outputs="texts",
        metrics=("exact-match", "token-f1"),
        evaluated=("bleu", "chrf", "exact-match"),
        verb="generate",
        several_tasks=True,
        defaults={"metrics": ["exact-match", "token-f1"], "decoding": {"beam": 1}},
    ),
    "masked-language-modeling": TaskSpec(
        _TEXT,
        ("encoder",),
        "read both ways",
        "masked",
        perplexity=True,
        verb="fill",
        template="bos-eos",
        special_tokens=2,
        unused=_NO_TRUNCATION | _SAME_SUBWORDS | _WRITES_NOTHING,
        defaults=_PLAIN | {"network": {"architecture": "encoder", "heads": [{"kind": "masked-language-model"}]}},
    ),
    "span-corruption": TaskSpec(
        _TEXT,
        ("encoder-decoder",),
        "read a source and write",
        "span-corruption",
        perplexity=True,
        verb="fill",
        unused=_NO_TRUNCATION | _SAME_SUBWORDS,
        defaults=_PLAIN | {"network": {"architecture": "encoder-decoder"}},
    ),
    "classification": TaskSpec(
        (Field("text"), Field("pair", optional=True), Field("label", "class")),
        TEXT_READERS,
        "read a text",
        "labels",
        heads=("classification",),
        outputs="classes",
        metrics=("accuracy",),
        verb="classify",
        template="bos-eos",
        special_tokens=2,
        targets="texts",
        unused=_OF_TEXTS,
        defaults=_encoded(32, "accuracy"),
    ),
    "multi-label-classification": TaskSpec(
        (Field("text"), Field("pair", optional=True), Field("label", "classes")),
        TEXT_READERS,
        "read a text",
        "label-sets",
        heads=("multi-label",),
        outputs="class sets",
        metrics=("multilabel-f1", "subset-accuracy"),
        verb="classify",
        template="bos-eos",
        special_tokens=2,
        targets="texts",
        unused=_OF_TEXTS | _NO_SMOOTHING,
        defaults=_encoded(32, "multilabel-f1", "subset-accuracy"),
    ),
    "regression": TaskSpec(
        (Field("text"), Field("pair", optional=True), Field("score", "number")),
        TEXT_READERS,
        "read a text",
        "numbers",
        heads=("regression",),
        outputs="numbers",
        metrics=("pearson", "spearman"),
        verb="similarity",
        template="bos-eos",
        special_tokens=2,
        targets="texts",
        unused=_OF_TEXTS | _NO_SMOOTHING,
        defaults=_encoded(32, "pearson", "spearman"),
    ),
    "embedding": TaskSpec(
        (
            Field("text"),
            Field("pair"),
            Field("negative", optional=True, only_training=True),
            Field("score", "number", optional=True),
        ),
        ("encoder",),
        "read both ways",
        "multiple-negatives",
        outputs="vector pairs",
        metrics=("mrr", "recall@1"),
        scored_metrics=("cosine-spearman",),
        vectors=True,
        verb="embed",
        template="bos-eos",
        special_tokens=2,
        targets="pairs",
        unused=_OF_TEXTS | _NO_SMOOTHING,
        defaults=_encoded(64, "mrr", "recall@1"),
    ),
    "tagging": TaskSpec(
        (Field("tokens", "words"), Field("tags", "tags")),
        TEXT_READERS,
        "read a text",
        "tags",
        heads=("tagging",),
        outputs="tags",
        metrics=("entity-f1",),
        plain_metrics=("tag-accuracy",),
        verb="tag",
        template="bos-eos",
        special_tokens=2,
        targets="words",
        unused=_OF_TEXTS,
        defaults=_encoded(512, "entity-f1"),
    ),
    "question-answering": TaskSpec(
        (Field("question"), Field("context"), Field("answers", "spans")),
        TEXT_READERS,
        "read a text",
        "spans",
        heads=("answer",),
        outputs="answers",
        metrics=("squad",),
        verb="answer",
        template="bos-eos",
        special_tokens=4,
        targets="windows",
        unused=_SAME_SUBWORDS
        | _WRITES_NOTHING
        | _NO_SMOOTHING
        | {"data.truncate": "a long context is read in windows"},
        defaults=_encoded(16, "squad") | {"data": {"max_len": 384}},
    ),
    "bidirectional-language-modeling": TaskSpec(
        _TEXT,
        ("elmo",),
        "guess each word from either side",
        "bidirectional",
        perplexity=True,
        verb="embed",
        special_tokens=0,
        reads_words=True,
        unused=_NO_TRUNCATION | _SAME_SUBWORDS | _WRITES_NOTHING | _NO_SMOOTHING,
        defaults=_PLAIN | {"network": {"architecture": "elmo", "elmo": {}}, "tokenizer": {"kind": "word"}},
    ),
    "cbow": TaskSpec(
        _TEXT,
        ("cbow",),
        "guess words from their neighbours",
        "window",
        verb="embed",
        reads_words=True,
        unused=_NO_TRUNCATION
        | _SAME_SUBWORDS
        | _WRITES_NOTHING
        | _NO_SMOOTHING
        | {"data.max_len": "windows are of one size, however long the text"},
        defaults=_PLAIN | {"network": {"architecture": "cbow", "cbow": {}}, "tokenizer": {"kind": "word"}},
    ),
}
TEXT_TO_TEXT = "text-to-text"  # also the task of a released encoder-decoder
EMBEDDING = "embedding"  # also the task of a released encoder without heads

_OF_HEAD = {
    "masked-language-model": "masked-language-modeling",
    "next-sentence": "masked-language-modeling",
    "classification": "classification",
    "multi-label": "multi-label-classification",
    "regression": "regression",
    "tagging": "tagging",
    "answer": "question-answering",
}


def objectives_of(task: str, objectives: tuple[ObjectiveConfig, ...]) -> tuple[ObjectiveConfig, ...]:
    """Return the objectives of a recipe, or the default objective of the task if it has none."""
    return objectives or (ObjectiveConfig(TASKS[task].objective),)


def scored() -> tuple[str, ...]:
    """Return the tasks whose outputs are scored by metrics."""
    return tuple(name for name, spec in TASKS.items() if spec.outputs is not None)


def task_of(network: "NetworkConfig") -> str:
    """Return the task of a released model, by its network."""
    if network.architecture == "encoder":
        return next((_OF_HEAD[head.kind] for head in network.heads if head.kind in _OF_HEAD), EMBEDDING)
    if network.architecture == "decoder":
        return "language-modeling"
    return "translation" if network.family == "marian" else TEXT_TO_TEXT


def task_of_head(kind: str) -> str:
    """The task that a head of that kind is for."""
    return _OF_HEAD[kind]


def task_with_field(kind: str) -> str:
    """Return the first task whose records have a field of that kind."""
    return next(name for name, spec in TASKS.items() if any(field.kind == kind for field in spec.fields))


def task_with(verb: str) -> str:
    """Return the first task with this verb."""
    return next(name for name, spec in TASKS.items() if spec.verb == verb)


def verb_of(task: object) -> str | None:
    """Return the verb of a task; None for an unknown task."""
    return TASKS[task].verb if isinstance(task, str) and task in TASKS else None


# What other tools call these tasks; only for messages.
_OTHER_NAMES = {
    "tagging": "ner token-classification pos",
    "classification": "sequence-classification text-classification sentiment sentiment-analysis",
    "language-modeling": "text-generation causal-lm lm",
    "masked-language-modeling": "fill-mask masked-lm mlm",
    "text-to-text": "seq2seq text2text-generation",
    "translation": "mt nmt",
    "summarization": "summarisation",
    "question-answering": "qa squad extractive-qa",
    "regression": "sts",
    "embedding": "sentence-similarity feature-extraction",
    "cbow": "word2vec",
}
OTHER_NAMES = {name: task for task, names in _OTHER_NAMES.items() for name in names.split()}
