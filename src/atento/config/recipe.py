"""The configuration of a recipe: task or tasks, data, tokenizer, network, training, decoding and metrics."""

import codecs
from dataclasses import asdict, dataclass, field
from typing import Annotated, Literal

from atento.base.errors import RecipeError
from atento.config.literals import AT_LEAST_0, Count, OneOf, Positive, Rule, Section
from atento.config.sections.decoding import DecodingConfig
from atento.config.sections.embedding import EmbeddingConfig
from atento.config.sections.initial import InitConfig, TeacherConfig
from atento.config.sections.mixing import MixingConfig
from atento.config.sections.network import NetworkConfig
from atento.config.sections.training import TrainingConfig
from atento.config.tables.head_kinds import Windows
from atento.config.tables.objective import ObjectiveConfig
from atento.config.tables.tasks import TASKS
from atento.metrics.metric_table import MEAN, options_by_name

Column = int | str
MAX_VOCABULARY = 1_000_000  # as `atento.text.tokenizer_training` has it, which knows no recipes
# The fields of records that a source may have columns for.
COLUMNS = (
    *("source", "target", "text", "pair", "query", "document", "grade", "positive", "negative", "label", "score"),
    *("tokens", "tags", "question", "context", "answers"),
)
# What a source says of how its file is read, which holds for other files of the same kind too.
READING = ("separator", "delimiter", "decimal", "encoding", "header", "paragraphs", "documents", "format")
Format = Literal[
    "tsv", "csv", "xlsx", "jsonl", "json", "conll", "conllu", "assin", "tmx", "xliff", "po", "folders", "text"
]


@dataclass(frozen=True)
class SourceConfig(Section):
    """One data source: two parallel files, one file with columns, a text file, or the embedded micro-world.

    Parallel files: `source` and `target` are paths. One file of pairs: `file` is the path, `source` and `target` are
    its columns. Texts: `file` is the path; in a table, `text` is the column. Micro-world: `world` names a split
    and, for tasks with labels, `labels` a labelling.
    """

    file: str | None = None
    """A file; for texts also a folder or a pattern (corpus/*.txt); for texts with labels, a folder with one for each
    label.
    """
    format: Format | None = None
    """Format of `file`, such as conll for words and tags in a .tsv file. [null: what its ending says]"""
    delimiter: str | None = None
    """Character between the columns of a table. [null: comma in .csv, tab in .tsv, or the one that the rows show]"""
    decimal: Literal[".", ","] | None = None
    """Decimal sign of numbers in a table, `.` or `,`. [null: that of the file's first numbers]"""
    encoding: str | None = None
    """Encoding of text files, such as windows-1252 or utf-16. [null: UTF-8, or what a byte order mark or the bytes
    show]
    """
    header: bool | None = None
    """Whether line 1 names the columns that are given by number. [null: if it has usual names, or no number where all
    other lines have one]
    """
    sheet: str | None = None
    """Sheet of an .xlsx file. [null: the only one that is not empty]"""
    dataset: str | None = None
    """For the library `datasets`: a local folder, a .parquet file, or a hub name."""
    split: str | None = None
    """Split of `dataset`, such as train. [null: the only one]"""
    source: Column | None = None
    """Column of the sources, or path of the source side of two parallel files. Numbers count from 0, without a header.
    """
    target: Column | None = None
    """Column of the targets, or path of the target side."""
    text: Column | None = None
    """Column of the texts; with `world` their language, pt or en. [null with `world`: pt]"""
    pair: Column | None = None
    """Column of the second texts, for tasks that compare two."""
    negative: Column | None = None
    """Column of texts that do not belong to the first text, for embedding and ranking."""
    query: Column | None = None
    """Column of the queries, for ranking; a line for each document."""
    document: Column | None = None
    """Column of a document of each query."""
    grade: Column | None = None
    """Column of how well the document answers: 0 not at all, higher is better."""
    positive: Column | None = None
    """Column of documents that answer the query, beside `negative`, in place of `document` and `grade`."""
    label: Column | None = None
    """Column of the labels. Several are a list in JSON, or one cell, divided by `separator`."""
    score: Column | None = None
    """Column of the numbers, for regression and scored pairs."""
    tokens: Column | None = None
    """Column of the words, for tagging: a list in JSON, a cell with spaces, in .conll a number, -1 the last. [null: the
    first one in .conll]
    """
    tags: Column | None = None
    """Column of the tags, as many as words; in JSON where `tokens` is a text, also entities as lists of start, end and
    label. [null: the last one in .conll]
    """
    question: Column | None = None
    """Column of the questions."""
    context: Column | None = None
    """Column of the texts that answer."""
    answers: Column | None = None
    """Column of the answers as JSON: {"text": [...], "answer_start": [...]}, or a list of such objects; empty if there
    is none.
    """
    separator: str = "|"
    """Separator between several labels in a cell."""
    prefix: str = ""
    """Text before each source, or text, such as "translate English to Portuguese: "."""
    world: Literal["train", "valid", "combinations", "structures"] | None = None
    """A split of the micro-world instead of a file: `train`, `valid`, or new `combinations` of words or `structures`.
    """
    labels: (
        Literal["tense", "negation", "number", "question", "similarity", "entailment", "pos", "entities", "answers"]
        | None
    ) = None
    """Gold labels of the micro-world: of texts (`tense`, `negation`, `number` of the subject, `question` or statement),
    pairs (`entailment`, `similarity` from 0 to 5), words (`pos`; `entities` in IOB2), or `answers` to questions.
    """
    memory: str | None = None
    """Name of records passed in Python, also to resume: `atento.train(recipe, data={name: records})`."""
    count: Count | None = None
    """First records of a file to read, or sentences to generate. [at least 1; null: the whole file]"""
    seed: int = 1
    """Seed of the sentences of the micro-world."""
    paragraphs: bool = False
    """Join hard-wrapped lines into paragraphs, as for books."""
    documents: Literal["lines", "blank-lines", "file"] = "lines"
    """One text of a text file: each of its `lines`, the lines between `blank-lines`, or the whole `file`."""

    def _check(self) -> None:
        if not self.separator:
            raise RecipeError("`separator` must not be empty: got ''")
        if self.delimiter is not None and (len(self.delimiter) != 1 or self.delimiter in '"\r\n\0'):
            rule = "`delimiter` must be one character between columns, no quote and no line end"
            raise RecipeError(f"{rule}: got {self.delimiter!r}")
        try:
            text = self.encoding is None or codecs.lookup(self.encoding)._is_text_encoding
        except (LookupError, ValueError):
            text = False
        if not text:
            rule = "`encoding` must be the name of an encoding, such as windows-1252 or utf-16"
            raise RecipeError(f"{rule}: got {self.encoding!r}")


@dataclass(frozen=True)
class DataConfig(Section, path="data."):
    """Training, validation and test data; relative paths start at `folder` (default: the recipe's own)."""

    train: tuple[SourceConfig, ...] = ()
    """Training data: one source or several."""
    valid: tuple[SourceConfig, ...] = ()
    """Validation data, whose score chooses the best checkpoint."""
    test: tuple[SourceConfig, ...] = ()
    """Test data, scored once at the end, with the best checkpoint."""
    mixing: MixingConfig = field(default_factory=MixingConfig)
    """How several sources of `train` share the updates. [proportional: they are read as one]"""
    held_out: Annotated[int, AT_LEAST_0] = 0
    """Training records held out for validation in place of `valid`, at most a tenth. [at least 0]"""
    folds: int = 0
    """Parts of the training data for cross-validation; `atento train --folds` sets it. [0, or at least 2]"""
    fold: int = 0
    """The part that a run tests on; `--folds` sets it. [1 to `folds`]"""
    folder: str | None = None
    """Folder that relative data paths start at. [null: that of the recipe]"""
    max_len: Count = 256
    """Maximum tokens of a training example; the task decides about longer ones. [at least 1] Memory grows with it."""
    source_language: str | None = None
    """Language of the sources of a multilingual translator or teacher, as its tokenizer names it (por_Latn, pt_XX, pt);
    not for Marian. [null: the initial model's]
    """
    target_language: str | None = None
    """Language of the targets: every output begins with it or, for Marian, every source. [null: the initial model's]"""
    truncate: Literal["none", "source", "both", "head-tail"] = "none"
    """What is cut to `max_len` tokens, with a warning: `none`; the `source` of a pair, for summarization; `both` sides;
    or the middle of a text with labels, a number or a vector, with a quarter of the tokens before it (`head-tail`).
    Pairs still too long are left out.
    """
    windows: Windows | None = None
    """Read longer texts with labels, numbers or vectors in windows of `max_len` tokens, whose vectors become one: their
    `mean`, their `max`, a learned weighted mean (`attention`), or the mean of the first and the last alone
    (`first-last`). [null: cut]
    """
    pack: Literal["none", "isolated", "stream"] = "none"
    """Texts in a row of `max_len` tokens in language modelling: `none`, one; `isolated`, several that do not see each
    other; `stream`, several, each token attending to all before it (for books).
    """
    stride: Annotated[int, AT_LEAST_0] = 128
    """Tokens that neighbouring windows share, at most half of a window. [at least 0; at least 1 with `windows`] Raise
    it for long answers.
    """
    max_answer: Count = 30
    """Maximum length of answers in tokens. [at least 1] Raise it for tokens of characters or bytes."""
    store: Literal["auto", "memory", "disk"] = "auto"
    """Where token ids of training texts are: on `disk`, memory-mapped; in `memory`, encoded at each start; `auto`: disk
    for files from 256 MiB on or a store that exists, if the objective can read it.
    """
    store_folder: str | None = None
    """Folder of the store, relative to the recipe. [null: stores/NAME in the current directory]"""
    skip_bad: bool = False
    """Leave out broken records with a warning."""

    def _check(self) -> None:
        if self.windows is not None and self.stride < 1:
            raise RecipeError(
                f"`data.stride` is the tokens that neighbouring windows share: `data.windows` {self.windows} needs at "
                f"least 1, got {self.stride}"
            )
        if self.windows is not None and self.truncate != "none":
            both = f"`data.truncate` {self.truncate} cuts what `data.windows` {self.windows} reads whole"
            raise RecipeError(f"{both}: give one of the two")
        if self.folds == 1 or not min(1, self.folds) <= self.fold <= max(0, self.folds):  # 0 of 0: no folds
            rule = "`data.fold` must lie in 1 to `data.folds`, which is at least 2"
            raise RecipeError(f"{rule}: got {self.fold} of {self.folds}")
        if self.folds and self.test:
            raise RecipeError("`data.folds` takes test records out of data.train: give no data.test beside it")
        if self.held_out and self.valid:
            raise RecipeError(
                f"`data.held_out` takes validation records out of data.train: got {self.held_out} beside data.valid; "
                "give one of the two (~data.valid takes the recipe's away)"
            )


TokenizerKind = Literal["unigram", "bpe", "wordpiece", "word", "character", "byte"]


@dataclass(frozen=True)
class TokenizerConfig(Section, path="tokenizer."):
    """A tokenizer to train, or the `path` of a trained one."""

    kind: TokenizerKind = "unigram"
    """Lossless subwords (`bpe`, `unigram`), those of BERT (`wordpiece`), whole words (`word`, for word vectors and
    ELMo), or untrained `character` or `byte`.
    """
    vocab_size: Annotated[int, Rule("lie in 1 to 1,000,000", lambda size: 1 <= size <= MAX_VOCABULARY)] = 8000
    """Tokens: about 2,000 for tens of thousands of short sentences, 8,000 to 32,000 for more. [1 to 1,000,000] By the
    amount of data if neither it nor a network is set.
    """
    shared: bool = True
    """One vocabulary for source and target. false: one each, for languages that share neither script nor words."""
    path: str | None = None
    """Folder of a trained tokenizer, run or model."""
    lowercase: bool = False
    """Convert text, and so outputs, to lower case."""
    markers: tuple[str, ...] = ()
    """Special tokens that texts may spell, such as "[NUM]". A trained tokenizer must have them; a new one gets them, as
    "<num>".
    """


@dataclass(frozen=True)
class TaskConfig(Section):
    """One of several tasks, each with a head of its own, that share one encoder (MT-DNN, Liu et al. 2019)."""

    name: str
    """Name of the task and its head. [letters, digits, - and _, a letter first]"""
    task: Annotated[str, OneOf(TASKS)]
    """`classification`, `multi-label-classification`, `regression` or `tagging`."""
    data: DataConfig = field(default_factory=DataConfig)
    """Its data; keys that it lacks are those of the recipe's `data`. Records with a blank label are left out here
    alone.
    """
    share: Positive = 1.0
    """Its share of the updates, relative to the others. [above 0]"""
    weight: Positive = 1.0
    """Factor of its loss. [above 0]"""
    batch_tokens: Count = 32
    """Texts of one of its updates, or words of tagging. [at least 1; left out: that of `training`, else 32, or 512]"""
    metrics: tuple[str | dict[str, dict[str, str]], ...] = ()
    """Metrics of its validation and test. [empty: none; left out: those of the task]"""

    def _check(self) -> None:
        if not self.name.replace("-", "_").isidentifier():
            raise RecipeError(f"`name` of a task must have letters, digits, - and _, a letter first: got {self.name!r}")


@dataclass(frozen=True)
class Recipe:
    """Everything a run needs; only `task` and `data` have no default."""

    task: Annotated[str, OneOf(TASKS)]
    """The task to train."""
    data: DataConfig
    """Training, validation and test data."""
    tasks: tuple[TaskConfig, ...] = ()
    """Several tasks over one encoder, in place of `task`. [empty, or at least 2 with different names]"""
    name: str = "run"
    """Name of the run's folder in `runs/`; by default the recipe file's."""
    tokenizer: TokenizerConfig = TokenizerConfig()
    """The tokenizer to train, or the path of a trained one."""
    network: NetworkConfig = field(default_factory=NetworkConfig)
    """A preset, a preset with changes, or every part by itself."""
    objective: tuple[ObjectiveConfig, ...] = ()
    """The training objective, if not that of the task; a list with shares is a mixture."""
    init: InitConfig | None = None
    """A trained model to fine-tune. [null: start from random weights]"""
    teacher: TeacherConfig | None = None
    """Trained models whose outputs are learned beside the gold labels (distillation). [null: gold labels alone]"""
    embedding: EmbeddingConfig | None = None
    """How a text becomes a vector, for the task embedding. [null: as in the initial model, else the mean of its tokens]
    """
    training: TrainingConfig = TrainingConfig()
    """Length of training, batches, optimizer, validation and checkpoints."""
    decoding: DecodingConfig = field(default_factory=DecodingConfig)
    """How outputs are generated in validation, and by default in use."""
    metrics: tuple[str | dict[str, dict[str, str]], ...] = ("bleu", "chrf")
    """Metrics, by name or with options: `{bleu: {tokenize: zh}}`. The first chooses the best checkpoint, then the next,
    at last the loss.
    """

    @property
    def deciding(self) -> tuple[str, ...]:
        """The validation scores that decide which checkpoint is best, the first one first."""
        if len(self.tasks) < 2:
            return (*options_by_name(self.metrics), "nll")
        valid = [own for own in self.tasks if own.metrics and (own.data.valid or own.data.held_out)]
        firsts = [f"{next(iter(options_by_name(own.metrics)))}[{own.name}]" for own in valid]
        return (*([MEAN] if firsts else ()), *firsts, "nll")

    @property
    def head(self) -> str:
        """Of a recipe for one of several tasks, the name of its head; empty: it has `task`, or several."""
        return self.tasks[0].name if len(self.tasks) == 1 else ""


def recipe_to_dict(recipe: Recipe) -> dict[str, object]:
    """Return the resolved recipe as plain data."""
    return asdict(recipe)
