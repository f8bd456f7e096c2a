"""The configuration of a recipe: task or tasks, data, tokenizer, network, training, decoding and metrics."""

from dataclasses import asdict, dataclass, field
from typing import Annotated, Literal

from atento.config.literals import OneOf, check_choices, check_encoding, check_numbers
from atento.config.sections.decoding import DecodingConfig
from atento.config.sections.embedding import EmbeddingConfig
from atento.config.sections.initial import InitConfig
from atento.config.sections.mixing import MixingConfig
from atento.config.sections.network import NetworkConfig
from atento.config.sections.teacher import TeacherConfig
from atento.config.sections.training import TrainingConfig
from atento.config.tables.head_kinds import Windows
from atento.config.tables.objective import ObjectiveConfig
from atento.config.tables.tasks import TASKS
from atento.errors import RecipeError
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
class SourceConfig:
    """One data source: two parallel files, one file with columns, a text file, or the embedded micro-world.

    Parallel files: `source` and `target` are paths. One file of pairs: `file` is the path, `source` and `target` are
    its columns. Texts: `file` is the path; in a table, `text` is the column. Micro-world: `world` names a split
    and, for tasks with labels, `labels` a labelling.
    """

    file: str | None = None
    """Path of one file: a table (.tsv, .csv, .xlsx, .jsonl, .json), words and tags (.conll, .conllu), SQuAD's
    questions (.json), ASSIN's pairs (.xml), translators' files (.tmx, .xlf, .po) or, for tasks that read texts, a text
    file with one text per line; .gz and .zst are read too. For texts, a folder or a pattern (corpus/*.txt) reads many
    files; for texts with labels, a folder has one for each label.
    """
    format: Format | None = None
    """Format of `file`. [null: what its ending says] Set it where the ending says another format or none, such as conll
    for columns of words and tags in a .tsv file. folders: a folder with one folder of text files for each label, such
    as pos and neg.
    """
    delimiter: str | None = None
    """Character between the columns of a .csv or .tsv file, such as ";". [one character; null: a comma in .csv, a tab
    in .tsv, or the only sign that divides all rows and makes the named columns appear]
    """
    decimal: Literal[".", ","] | None = None
    """Decimal sign of the numbers in a table. [null: that of the file's first numbers]"""
    encoding: str | None = None
    """Encoding of text files, such as windows-1252 or utf-16. [null: UTF-8, or what the bytes of the file show: a byte
    order mark, or Windows-1252 in a language of western Europe]
    """
    header: bool | None = None
    """Whether line 1 of a table whose columns are numbers names them, so that it is no record. [null: if it has usual
    names, or no number where all other lines have one]
    """
    sheet: str | None = None
    """Sheet of an .xlsx file. [null: the only one that is not empty]"""
    dataset: str | None = None
    """Data set to read with the library `datasets` instead of a file: a local folder, a .parquet file, or a name on
    the hub. Columns have the names of the fields unless `text`, `label` ... name others; labels are names of classes,
    not numbers.
    """
    split: str | None = None
    """Split of `dataset`, such as train. [null: the only one]"""
    source: Column | None = None
    """Path of the source side of two parallel files, or the source column of `file`. A column number counts from 0
    and means that there is no header line; a column name is looked up in the header.
    """
    target: Column | None = None
    """Path of the target side of two parallel files, or the target column of `file`. Give both columns by number or
    both by name.
    """
    text: Column | None = None
    """Column of `file` that holds the texts. With `world`: the language, pt or en. [null with `world`: pt]"""
    pair: Column | None = None
    """Column of `file` that holds the second text of each record, for tasks that compare two texts."""
    negative: Column | None = None
    """Column of `file` that holds a text that does not belong to the first text, though it looks so, for embedding and
    ranking.
    """
    query: Column | None = None
    """Column of `file` that holds the queries, for ranking; a query has several lines, one for each document."""
    document: Column | None = None
    """Column of `file` that holds a document of each query."""
    grade: Column | None = None
    """Column of `file` that holds how well the document answers the query: 0 not at all, higher is better."""
    positive: Column | None = None
    """Column of `file` that holds a document that answers the query, beside `negative`, one that does not; in place of
    `document` and `grade`.
    """
    label: Column | None = None
    """Column of `file` that holds the label of each record, for classification. Several labels of one text are a list
    in JSON; in a table they are in one cell with `separator` between them.
    """
    score: Column | None = None
    """Column of `file` that holds the number of each record, for regression and for embedding by scored pairs; a finite
    number with a decimal point.
    """
    tokens: Column | None = None
    """Column of `file` that holds the words, for tagging. In JSON the words of a sentence are a list of strings; in a
    table they are one cell with spaces between them. In .conll a row is a word, columns are numbers, and -1 is the last
    one. [null: the first one in .conll]
    """
    tags: Column | None = None
    """Column of `file` that holds the tags, as many as words and written like them. In JSON, where `tokens` is a text,
    also its entities, each a list of start, end and label. [null: the last one in .conll]
    """
    question: Column | None = None
    """Column of `file` that holds the questions, for question answering."""
    context: Column | None = None
    """Column of `file` that holds the text that answers each question."""
    answers: Column | None = None
    """Column of `file` that holds the answers of each question as JSON: {"text": [...], "answer_start": [...]} with the
    number of characters of the context before each answer, or a list of such objects; empty lists for a question
    without an answer.
    """
    separator: str = "|"
    """Separator between several labels in a cell of a table."""
    prefix: str = ""
    """Text before each source, or before each text of a task that has no source, such as "translate English to
    Portuguese: ". Use it to train one text-to-text model on several tasks: one source of data for each.
    """
    world: Literal["train", "valid", "combinations", "structures"] | None = None
    """Use a split of the embedded micro-world instead of a file. `combinations` has combinations of words, and
    `structures` has sentence structures, that `train` does not contain.
    """
    labels: (
        Literal["tense", "negation", "number", "question", "similarity", "entailment", "pos", "entities", "answers"]
        | None
    ) = None
    """Gold labels of the micro-world, for tasks whose records have labels; `text` is the language, pt or en. tense,
    negation, number (of the subject) and question (or statement) label texts, entailment and similarity (0 to 5) pairs
    of texts, pos (parts of speech) and entities (names in IOB2) words; answers are spans of a text that answer a
    question.
    """
    memory: str | None = None
    """Name of records that are passed in Python instead of a file: `atento.train(recipe, data={name: records})`. To
    resume such a run, pass the same records again.
    """
    count: int | None = None
    """Number of records to read from the start of a file, or of sentences to generate from the micro-world. [at least
    1; null: the whole file] Set it for a quick trial on a part of the data.
    """
    seed: int = 1
    """Seed of the sentences of the micro-world. It has no effect on files."""
    paragraphs: bool = False
    """Join the hard-wrapped lines of a text file into paragraphs; set it for books. Otherwise each line is a text."""
    documents: Literal["lines", "blank-lines", "file"] = "lines"
    """What one text of a text file is. lines: a line. blank-lines: the lines up to a blank line. file: the whole file.
    Use blank-lines or file where an objective should see several sentences of a document together.
    """

    def __post_init__(self) -> None:
        check_numbers(self, count="be at least 1")
        check_choices(self)
        if not self.separator:
            raise RecipeError("`separator` must not be empty: got ''")
        if self.delimiter is not None and (len(self.delimiter) != 1 or self.delimiter in '"\r\n\0'):
            raise RecipeError(
                f"`delimiter` must be one character between columns, no quote and no line end: got {self.delimiter!r}"
            )
        if self.encoding is not None:
            check_encoding(self.encoding)


@dataclass(frozen=True)
class DataConfig:
    """Training, validation and test data; relative paths start at `folder` (default: the recipe's own)."""

    train: tuple[SourceConfig, ...] = ()
    """Training data: one source or a list of them."""
    valid: tuple[SourceConfig, ...] = ()
    """Validation data, scored every `training.validate_every` updates; the score decides which checkpoint is best.
    A warning counts the records that are also in `train`.
    """
    test: tuple[SourceConfig, ...] = ()
    """Test data, scored once at the end, with the best checkpoint."""
    mixing: MixingConfig = field(default_factory=MixingConfig)
    """How several sources of `train` share the updates. [proportional: they are read as one]"""
    held_out: int = 0
    """Number of training records to hold out for validation, at most a tenth of them; instead of `valid`. [at least 0]
    """
    folds: int = 0
    """Number of parts of the training data for cross-validation; `atento train --folds` sets it. [0, or at least 2]"""
    fold: int = 0
    """Number of the part that a run is tested on and does not train on; `atento train --folds` sets it. [1 to `folds`]
    """
    folder: str | None = None
    """Folder that relative data paths start at. [null: the folder of the recipe file]"""
    max_len: int = 256
    """Maximum length of a training example in tokens. Longer pairs are left out and counted in a warning; longer texts
    are split, those with a label cut; contexts of questions are read in windows of this length. [at least 1] Raise it
    for documents; memory grows with it.
    """
    source_language: str | None = None
    """For translation by a multilingual model, or by a teacher that is one: the language of the sources, as its
    tokenizer names it (por_Latn in NLLB, pt_XX in mBART, pt in M2M-100). Marian is told the target language only.
    [null: the initial model's]
    """
    target_language: str | None = None
    """The language of the targets, which every output of the model begins with, or, for Marian, every source. [null:
    the initial model's]
    """
    truncate: Literal["none", "source", "both", "head-tail"] = "none"
    """Which sides of a training pair are cut to `max_len` tokens; a warning counts them. A pair that is still too long
    is left out. Use source for summarization, where the end of a document matters least. head-tail is for texts that
    get labels, numbers or vectors: a long one keeps its first quarter of `max_len` tokens, and its last three.
    """
    windows: Windows | None = None
    """For texts that get labels, numbers or vectors: a text of more than `max_len` tokens is read in windows of that
    length, and their vectors become one: their mean, their maximum, their mean by learned weights (attention), or the
    mean of the first and the last window, which alone are read (first-last). [null: long texts are cut] Use it for
    documents.
    """
    pack: Literal["none", "isolated", "stream"] = "none"
    """How language modelling fills its rows of `max_len` tokens. none: one text per row. isolated: several texts per
    row, and each attends only to itself. stream: several texts per row, and each token attends to all tokens before it
    in the row; for books.
    """
    stride: int = 128
    """Number of tokens that neighbouring windows share, as `stride` of a tokenizer of Transformers: of a long context
    of questions, or of a long text with `windows`. More than half of a window counts as half. [at least 0; at least 1
    with `windows`] Raise it for long answers, which must stand whole in a window.
    """
    max_answer: int = 30
    """For question answering: maximum length in tokens of the answers that a model gives. [at least 1] Raise it for
    long answers, and for tokens of single characters or bytes.
    """
    store: Literal["auto", "memory", "disk"] = "auto"
    """Where the token ids of training texts are kept. disk: in a memory-mapped store that is made once and needs little
    memory. memory: nowhere; the text is read and encoded at each start. auto: disk for objectives that can read it, if
    the store exists or the files have 256 MiB or more; else memory.
    """
    store_folder: str | None = None
    """Folder of the store of token ids; relative to the recipe. [null: stores/NAME in the current directory]"""
    skip_bad: bool = False
    """Leave out broken records and count them in a warning, instead of stopping with an error."""

    def __post_init__(self) -> None:
        check_numbers(self, "data.", max_len="be at least 1")
        if self.stride < 0:
            raise RecipeError(f"`data.stride` must be at least 0: got {self.stride}")
        if self.windows is not None and self.stride < 1:
            raise RecipeError(
                f"`data.stride` is the tokens that neighbouring windows share: `data.windows` {self.windows} needs at "
                f"least 1, got {self.stride}"
            )
        if self.windows is not None and self.truncate != "none":
            raise RecipeError(
                f"`data.truncate` {self.truncate} cuts what `data.windows` {self.windows} reads whole: give one of the "
                "two"
            )
        check_numbers(self, "data.", max_answer="be at least 1")
        if self.held_out < 0:
            raise RecipeError(f"`data.held_out` must be at least 0: got {self.held_out}")
        if self.folds == 1 or not min(1, self.folds) <= self.fold <= max(0, self.folds):  # 0 of 0: no folds
            raise RecipeError(
                f"`data.fold` must lie in 1 to `data.folds`, which is at least 2: got {self.fold} of {self.folds}"
            )
        if self.folds and self.test:
            raise RecipeError("`data.folds` takes test records out of data.train: give no data.test beside it")
        if self.held_out and self.valid:
            raise RecipeError(
                f"`data.held_out` takes validation records out of data.train: got {self.held_out} beside data.valid; "
                "give one of the two (~data.valid takes the recipe's away)"
            )


TokenizerKind = Literal["unigram", "bpe", "wordpiece", "word", "character", "byte"]


@dataclass(frozen=True)
class TokenizerConfig:
    """A tokenizer to train, or the `path` of a trained one."""

    kind: TokenizerKind = "unigram"
    """How text is split into tokens. bpe and unigram are lossless subwords; wordpiece is the subwords of BERT; word
    keeps whole words (for word vectors and ELMo); character and byte need no training.
    """
    vocab_size: int = 8000
    """Number of tokens in the vocabulary. [1 to 1,000,000] Use about 2,000 for tens of thousands of short sentences,
    8,000 to 32,000 for more: in a vocabulary that is too large, tokens are too rare to learn. If the recipe sets
    neither it nor a network, it is chosen by the amount of data.
    """
    shared: bool = True
    """One vocabulary for source and target. false: one for each, of `vocab_size` tokens at most, and two tables of
    embeddings. Use it for languages that share neither script nor words.
    """
    path: str | None = None
    """Folder of a trained tokenizer to use instead of training one: a run, a model, or the output of `atento tokenizer
    train`.
    """
    lowercase: bool = False
    """Convert text to lower case. Outputs are then in lower case too. Accents are unchanged."""
    markers: tuple[str, ...] = ()
    """Special tokens that texts may spell, such as "[NUM]": in the data of the run, and wherever its model is used.
    The tokenizer of `path` or of `init.model` must have them; one that is trained gets them, and there they look like
    "<num>". Other special tokens in a text are read as ordinary characters.
    """

    def __post_init__(self) -> None:
        if not 1 <= self.vocab_size <= MAX_VOCABULARY:
            raise RecipeError(f"`tokenizer.vocab_size` must lie in 1 to {MAX_VOCABULARY:,}: got {self.vocab_size}")


@dataclass(frozen=True)
class TaskConfig:
    """One of several tasks, each with a head of its own, that share one encoder (MT-DNN, Liu et al. 2019)."""

    name: str
    """Name of the task and of its head, by which a call chooses it. [letters, digits, - and _, a letter first]"""
    task: Annotated[str, OneOf(TASKS)]
    """The task: classification, multi-label-classification, regression or tagging."""
    data: DataConfig = field(default_factory=DataConfig)
    """Its data. Keys that stand in the recipe's own `data` hold for each task that does not write them. A record whose
    label is blank is left out here, and counts for the other tasks that read its table.
    """
    share: float = 1.0
    """Its share of the updates, relative to the shares of the others. [above 0] An update has a batch of one task."""
    weight: float = 1.0
    """Factor of its loss. [above 0]"""
    batch_tokens: int = 32
    """Texts of one of its updates, or words of tagging. [at least 1; left out: that of `training`, else 32, or 512]"""
    metrics: tuple[str | dict[str, dict[str, str]], ...] = ()
    """Metrics of its validation and test. [empty: none; left out: those of the task]"""

    def __post_init__(self) -> None:
        if not self.name.replace("-", "_").isidentifier():
            raise RecipeError(f"`name` of a task must have letters, digits, - and _, a letter first: got {self.name!r}")
        check_numbers(self, share="be finite and above 0", weight="be finite and above 0", batch_tokens="be at least 1")


@dataclass(frozen=True)
class Recipe:
    """Everything a run needs; only `task` and `data` have no default."""

    task: Annotated[str, OneOf(TASKS)]
    """The task to train. It decides which data, networks and metrics can be used."""
    data: DataConfig
    """Training, validation and test data."""
    tasks: tuple[TaskConfig, ...] = ()
    """Several tasks over one encoder, in place of `task`. [empty, or at least 2 with different names] The mean of their
    first metrics decides which checkpoint is best.
    """
    name: str = "run"
    """Name of the run and of its folder under `runs/`; by default, the name of the recipe file."""
    tokenizer: TokenizerConfig = TokenizerConfig()
    """The tokenizer to train, or the path of a trained one."""
    network: NetworkConfig = field(default_factory=NetworkConfig)
    """The network: a preset, a preset with changes, or every part by itself."""
    objective: tuple[ObjectiveConfig, ...] = ()
    """The training objective, if not the default of the task: one objective, or a list with shares (a mixture)."""
    init: InitConfig | None = None
    """A trained model to fine-tune, and which of its weights are trained. [null: start from random weights]"""
    teacher: TeacherConfig | None = None
    """Trained models whose outputs are learned beside the gold labels (distillation). [null: gold labels alone]"""
    embedding: EmbeddingConfig | None = None
    """How the vectors of tokens become the vector of a text, for the task embedding. [null: as in the initial model,
    else their mean]
    """
    training: TrainingConfig = TrainingConfig()
    """Length of training, batches, optimizer, validation and checkpoints."""
    decoding: DecodingConfig = field(default_factory=DecodingConfig)
    """How outputs are generated in validation, and by default when the model is used."""
    metrics: tuple[str | dict[str, dict[str, str]], ...] = ("bleu", "chrf")
    """Metrics of validation and test, by name, or with options: `{bleu: {tokenize: zh}}`. The first one decides which
    checkpoint is best, of equal scores the next one, and at last the loss.
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
