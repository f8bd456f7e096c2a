"""The tasks, one row each; task names appear as strings only here."""

from functools import cache, partial
from typing import TYPE_CHECKING

from atento.config.tables.objective import TEXT_READERS, ObjectiveConfig
from atento.config.tables.task_spec import Field, TaskSpec

if TYPE_CHECKING:
    from atento.config.sections.network import NetworkConfig

_TEXT, _optional = (Field("text"),), partial(Field, optional=True)
_BY_SIDE = (_optional("positive"), _optional("negative"))
_NO_TRUNCATION = {"data.truncate": "a long text continues in a further example"}
_SAME_SUBWORDS = {"training.subword_dropout": "this task reads the same subwords every time"}
_WRITES_NOTHING = {"decoding": "this task writes nothing"}
_NO_SMOOTHING = {"training.label_smoothing": "this task has none"}
_ONLY_READS = _SAME_SUBWORDS | _WRITES_NOTHING | _NO_SMOOTHING
_OF_TEXTS = _SAME_SUBWORDS | _WRITES_NOTHING | {"data.truncate": "a long text is cut at its end"}


def _encoded(batch_tokens: int, *metrics: str) -> dict[str, object]:
    """Defaults of a task of encoders, whose targets are no tokens: whole texts, pairs, windows or words."""
    training = {"label_smoothing": 0.0, "batch_tokens": batch_tokens}
    return {"training": training, "metrics": [*metrics], "network": {"architecture": "encoder"}}


_PLAIN: dict[str, object] = {"training": {"label_smoothing": 0.0}, "metrics": []}

_of_pairs = partial(
    TaskSpec,
    (Field("source"), Field("target")),
    ("encoder-decoder", "recurrent-seq2seq"),
    "read a source and write",
    "sequence-to-sequence",
    outputs="texts",
)
_continues = partial(
    TaskSpec,
    _TEXT,
    perplexity=True,
    verb="generate",
    template="bos",
    unused=_NO_TRUNCATION | _SAME_SUBWORDS,
    defaults=_PLAIN | {"network": {"architecture": "decoder"}, "decoding": {"beam": 1}},
)
_of_whole_texts = partial(TaskSpec, architectures=TEXT_READERS, why="read a text", template="bos-eos", special_tokens=2)

TASKS: dict[str, TaskSpec] = {
    "translation": _of_pairs(metrics=("bleu", "chrf"), evaluated=("bleu", "chrf", "exact-match"), verb="translate"),
    "summarization": _of_pairs(
        metrics=("rouge",),
        evaluated=("rouge1", "rouge2", "rouge"),
        verb="summarize",
        defaults={"metrics": ["rouge"], "data": {"truncate": "source"}, "training": {"batch_tokens": 1024}},
    ),
    "language-modeling": _continues(("decoder", "recurrent-lm"), "guess each token from those before it", "causal"),
    "prefix-language-modeling": _continues(
        ("decoder", "encoder"), "continue a text whose prefix they read bidirectionally", "prefix"
    ),
    "text-to-text": _of_pairs(
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
        targets="masked tokens",
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
    "classification": _of_whole_texts(
        (Field("text"), _optional("pair"), Field("label", "class")),
        objective="labels",
        heads=("classification",),
        outputs="classes",
        metrics=("accuracy",),
        verb="classify",
        targets="texts",
        unused=_OF_TEXTS,
        defaults=_encoded(32, "accuracy"),
    ),
    "multi-label-classification": _of_whole_texts(
        (Field("text"), _optional("pair"), Field("label", "classes")),
        objective="label-sets",
        heads=("multi-label",),
        outputs="class sets",
        metrics=("multilabel-f1", "subset-accuracy"),
        verb="classify",
        targets="texts",
        unused=_OF_TEXTS | _NO_SMOOTHING,
        defaults=_encoded(32, "multilabel-f1", "subset-accuracy"),
    ),
    "regression": _of_whole_texts(
        (Field("text"), _optional("pair"), Field("score", "number")),
        objective="numbers",
        heads=("regression",),
        outputs="numbers",
        metrics=("pearson", "spearman"),
        verb="similarity",
        targets="texts",
        unused=_OF_TEXTS | _NO_SMOOTHING,
        defaults=_encoded(32, "pearson", "spearman"),
    ),
    "embedding": TaskSpec(
        (Field("text"), Field("pair"), _optional("negative", only_training=True), _optional("score", "number")),
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
    "ranking": _of_whole_texts(
        (Field("query"), _optional("document"), _optional("grade", "number"), *_BY_SIDE),
        objective="lambda-loss",
        heads=("regression",),
        outputs="rankings",
        metrics=("ndcg@10", "map", "mrr"),
        grouped_by="query",
        verb="similarity",
        special_tokens=3,
        targets="documents",
        unused=_OF_TEXTS | _NO_SMOOTHING,
        defaults=_encoded(32, "ndcg@10", "map", "mrr"),
    ),
    "tagging": _of_whole_texts(
        (Field("tokens", "words"), Field("tags", "tags")),
        objective="tags",
        heads=("tagging",),
        outputs="tags",
        metrics=("entity-f1",),
        plain_metrics=("tag-accuracy",),
        verb="tag",
        targets="words",
        unused=_OF_TEXTS,
        defaults=_encoded(512, "entity-f1"),
    ),
    "question-answering": _of_whole_texts(
        (Field("question"), Field("context"), Field("answers", "spans")),
        objective="spans",
        heads=("answer",),
        outputs="answers",
        metrics=("squad",),
        verb="answer",
        special_tokens=4,
        targets="windows",
        unused=_ONLY_READS | {"data.truncate": "a long context is read in windows"},
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
        unused=_NO_TRUNCATION | _ONLY_READS,
        defaults=_PLAIN | {"network": {"architecture": "elmo", "elmo": {}}, "tokenizer": {"kind": "word"}},
    ),
    "cbow": TaskSpec(
        _TEXT,
        ("cbow",),
        "guess words from their neighbours",
        "window",
        verb="embed",
        reads_words=True,
        unused=_NO_TRUNCATION | _ONLY_READS | {"data.max_len": "windows are of one size, however long the text"},
        defaults=_PLAIN | {"network": {"architecture": "cbow", "cbow": {}}, "tokenizer": {"kind": "word"}},
    ),
}
TEXT_TO_TEXT = "text-to-text"  # also the task of a released encoder-decoder
SUMMARIES = "summarization"  # of pairs whose targets are short
# The fields by which a table shows its task, the surest first.
SHOWN_BY = {
    ("question", "context", "answers"): "question-answering",
    ("query", "document", "grade"): "ranking",
    ("query", "positive", "negative"): "ranking",
    ("tokens", "tags"): "tagging",
    ("text", "label"): "classification",
    ("text", "score"): "regression",
    ("source", "target"): "translation",
    ("text",): "language-modeling",
}
EMBEDDING = "embedding"  # also the task of a released encoder without heads

_OF_HEAD = {
    "masked-language-model": "masked-language-modeling",
    "next-sentence": "masked-language-modeling",
    "classification": "classification",
    "multi-label": "multi-label-classification",
    "regression": "regression",
    "tagging": "tagging",
    "crf": "tagging",
    "answer": "question-answering",
}


_with_defaults = cache(ObjectiveConfig)  # options are checked once, not at each validation


def objectives_of(task: str, objectives: tuple[ObjectiveConfig, ...]) -> tuple[ObjectiveConfig, ...]:
    """Return the objectives of a recipe, or the default objective of the task if it has none."""
    return objectives or (_with_defaults(TASKS[task].objective),)


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
    "ranking": "reranking cross-encoder rank",
    "embedding": "sentence-similarity feature-extraction",
    "cbow": "word2vec",
}
OTHER_NAMES = {name: task for task, names in _OTHER_NAMES.items() for name in names.split()}
