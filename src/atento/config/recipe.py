"""A recipe: the one file that says task, data, tokenizer, network, training, decoding and metrics."""

from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from atento.config.decoding import DecodingConfig
from atento.config.literals import OneOf, check_choices
from atento.config.network import NetworkConfig
from atento.config.objective import ObjectiveConfig
from atento.config.tasks import TASKS
from atento.errors import RecipeError

Column = int | str
COLUMNS = ("source", "target", "text", "pair", "label")  # the fields of records that a source may have columns for
LARGEST_RATE = 10  # of learning; nothing is learned from about 0.1 on
MAX_VOCABULARY = 1_000_000  # as `atento.text.training` has it, which knows no recipes


@dataclass(frozen=True)
class SourceConfig:
    """Where examples come from: two parallel files, one file with columns, or the embedded micro-world.

    Pairs. Parallel files: `source` and `target` are paths. One file: `file` is the path, `source` and `target` are
    columns. Texts. `file` is the path; of a table, `text` is the column. Micro-world: `world` names a split.
    """

    file: str | None = None
    """Path of one file: a table (.tsv, .csv, .jsonl, .json) or, for tasks that read texts, any text file with one text
    a line; .gz is read too.
    """
    source: Column | None = None
    """Path of the source side of two parallel files, or the source column of `file`: a number counts from 0 and means
    that there is no header line, a name is looked up in the header.
    """
    target: Column | None = None
    """Path of the target side of two parallel files, or the target column of `file`; both columns are given by number
    or both by name.
    """
    text: Column | None = None
    """Column of `file` that holds the texts, for tasks that read texts. With `world`: the language, pt or en."""
    pair: Column | None = None
    """Column of `file` that holds the second text of each record, for tasks that compare two texts."""
    label: Column | None = None
    """Column of `file` that holds the label of each record, for classification."""
    world: Literal["train", "valid", "combinations", "structures"] | None = None
    """A split of the embedded micro-world instead of a file. `combinations` and `structures` hold sentences of a kind
    that `train` never shows.
    """
    memory: str | None = None
    """Name of records that are given in Python instead of a file: `atento.train(recipe, data={name: records})`. A run
    that was trained on such data says so here; to go on with it, give the same records again.
    """
    count: int | None = None
    """Read only the first so many records of a file, or write so many sentences of the micro-world. [at least 1; null:
    the whole file] Set it for a quick trial on a part of the data.
    """
    seed: int = 1
    """Which sentences of the micro-world are drawn. It has no effect on files."""
    paragraphs: bool = False
    """Join the hard-wrapped lines of a text file into paragraphs, as books need it; otherwise each line is a text."""

    def __post_init__(self) -> None:
        if self.count is not None and self.count < 1:
            raise RecipeError(f"`count` must be at least 1: got {self.count}")


@dataclass(frozen=True)
class DataConfig:
    """Training, validation and test data; relative paths start at `folder` (default: the recipe's own)."""

    train: tuple[SourceConfig, ...] = ()
    """What is learned from: one source or a list of them."""
    valid: tuple[SourceConfig, ...] = ()
    """What is scored every `training.validate_every` updates; the best checkpoint is chosen by it. Keep it apart from
    `train`: lines that stand in both are counted in a warning.
    """
    test: tuple[SourceConfig, ...] = ()
    """What is scored once, at the end, with the checkpoint that is used."""
    held_out: int = 0
    """Training records that are taken out for validation, at most a tenth of them, instead of `valid`. [at least 0]"""
    folder: str | None = None
    """Folder that relative paths start at. [null: the folder of the recipe file]"""
    max_len: int = 256
    """Longest training example, in tokens; longer ones are left out and counted, so that one line cannot exhaust
    memory. [at least 1] Raise it for documents; memory grows with it.
    """
    truncate: Literal["none", "source", "both"] = "none"
    """Which sides of a training pair longer than `max_len` are cut at their end, counted in a warning; a pair that is
    still too long is left out. source is for summarization, where the end of a document matters least.
    """
    pack: Literal["none", "isolated", "stream"] = "none"
    """How language modelling fills its rows of `max_len` tokens. none: a row a text. isolated: rows full of texts, each
    of which attends to itself alone. stream: rows full of running text, which attends to all before it in the row; for
    books.
    """
    skip_bad: bool = False
    """Leave broken records out and count them in a warning, instead of refusing the file."""

    def __post_init__(self) -> None:
        if self.max_len < 1:
            raise RecipeError(f"`data.max_len` must be at least 1: got {self.max_len}")
        if self.held_out < 0:
            raise RecipeError(f"`data.held_out` must be at least 0: got {self.held_out}")
        if self.held_out and self.valid:
            raise RecipeError(
                f"`data.held_out` takes validation records out of data.train: got {self.held_out} beside data.valid; "
                "give one of the two (~data.valid takes the recipe's away)"
            )


@dataclass(frozen=True)
class TokenizerConfig:
    """A subword model to train, or the `path` of a trained one."""

    kind: Literal["unigram", "bpe", "wordpiece", "word", "character", "byte"] = "unigram"
    """How text is cut into tokens. bpe and unigram cut into subwords and lose nothing; wordpiece is BERT's; word keeps
    whole words (word vectors, ELMo); character and byte need no training.
    """
    vocab_size: int = 8000
    """How many pieces the tokenizer learns. [1 to 1,000,000] Some 2,000 for tens of thousands of short sentences, 8,000
    to 32,000 for more: too many and each is seen too rarely. Where neither it nor a network is written, it fits the
    amount of data.
    """
    shared: bool = True
    """One vocabulary for source and target. Set it to false for languages of different scripts."""
    path: str | None = None
    """Folder of a trained tokenizer to use instead of training one: a run's, a model's, or one that `atento tokenizer
    train` made.
    """
    lowercase: bool = False
    """Learn and read lower-case text alone. What is written is then lower-case too. Accents are kept."""

    def __post_init__(self) -> None:
        if not 1 <= self.vocab_size <= MAX_VOCABULARY:
            raise RecipeError(f"`tokenizer.vocab_size` must lie in 1 to {MAX_VOCABULARY:,}: got {self.vocab_size}")


@dataclass(frozen=True)
class TrainingConfig:
    """How long, how fast and how safely to train. Batches are counted in real target tokens an update."""

    steps: int = 2000
    """How many times the weights are updated. [at least 1] Raise it while the validation score still rises. Where
    neither it nor `epochs` is written, it fits the amount of data.
    """
    epochs: float | None = None
    """How often to go through the training data, instead of `steps`. [above 0; null: `steps` holds]"""
    batch_tokens: int = 4096
    """Real target tokens that one update learns from. [at least 1] Larger batches make steadier updates and take
    proportionally longer; lower it when memory runs out.
    """
    micro_batches: int = 1
    """Cuts each part of an update (about 2,048 real tokens) into so many again, to save memory; the result is the same.
    [at least 1] Raise it when memory runs out.
    """
    learning_rate: float = 1e-3
    """The highest learning rate, reached after the warm-up. [0 to 10] 1e-3 to 2e-3 suits small networks, 3e-4 and
    less large ones, 2e-5 to 5e-5 fine-tuning; lower it when the loss rises or becomes NaN.
    """
    warmup: int = 200
    """Updates in which the learning rate rises from 0 to `learning_rate`. [0 or more] Raise it when the loss jumps at
    the start.
    """
    schedule: Literal["inverse-sqrt", "cosine", "linear", "constant"] = "inverse-sqrt"
    """How the learning rate falls after the warm-up: with 1/√step, along half a cosine to 0, in a straight line to 0,
    or not at all. cosine and linear depend on `steps`: choose inverse-sqrt or constant for a run that may be
    extended.
    """
    weight_decay: float = 0.01
    """Share of each matrix, times the learning rate, that an update takes away; biases and norms are left alone (AdamW,
    Loshchilov & Hutter 2019). [0 or more] Raise it to 0.1 against overfitting.
    """
    betas: tuple[float, float] = (0.9, 0.98)
    """How slowly Adam's running means of the gradient and of its square change (Kingma & Ba 2015). [each 0 to below 1]
    """
    clip: float = 1.0
    """Longest gradient of an update, in the Euclidean norm; a longer one is scaled down. [0 or more; 0: never] Lower it
    when single batches make the loss jump.
    """
    label_smoothing: float = 0.1
    """Probability that the target gives to all the other tokens together (Szegedy et al. 2016). [0 to below 1] 0.1
    helps translation; perplexity is best without.
    """
    precision: Literal["auto", "float32", "bfloat16"] = "auto"
    """Type of the products in training. auto takes bfloat16 where the processor multiplies it natively, else float32;
    weights and optimiser are float32 in any case.
    """
    subword_dropout: float = 0.0
    """Share of merges left out while encoding training texts, so that words are cut in varying ways (BPE dropout,
    Provilkov et al. 2020; Unigram sampling, Kudo 2018). [0 to below 1] 0.1 helps with little data.
    """
    validate_every: int = 500
    """Updates between validations. [at least 1]"""
    checkpoint_every: int = 500
    """Updates between checkpoints: at most so many are computed again after a power cut. [at least 1]"""
    keep: int = 3
    """How many of the latest checkpoints are kept, beside the best. [at least 1] Each takes three times the size of the
    weights.
    """
    average: int = 0
    """How many of the last checkpoints are averaged at the end; as many are kept, and the average is used where it
    scores better. [0 or more; 0: none] 4 or 5 often gain some tenths of BLEU.
    """
    early_stop: int = 0
    """Stop after so many validations without a better score. [0 or more; 0: never]"""
    log_every: int = 50
    """Updates between lines of the log. [at least 1]"""
    seed: int = 1
    """Decides the first weights, the order of the data and what dropout drops: the same seed gives the same model on
    the same kind of machine.
    """

    def __post_init__(self) -> None:
        check_choices(self, "training.")
        for name in (
            "steps",
            "batch_tokens",
            "micro_batches",
            "validate_every",
            "checkpoint_every",
            "keep",
            "log_every",
        ):
            if getattr(self, name) < 1:
                raise RecipeError(f"`training.{name}` must be at least 1: got {getattr(self, name)}")
        for name in ("warmup", "average", "early_stop", "weight_decay", "clip", "learning_rate"):
            if not 0 <= getattr(self, name) < float("inf"):
                raise RecipeError(f"`training.{name}` must be finite and not negative: got {getattr(self, name)}")
        if self.learning_rate > LARGEST_RATE:
            raise RecipeError(
                f"`training.learning_rate` must be at most {LARGEST_RATE}: got {self.learning_rate} "
                "(Adam moves every weight by about that much an update; 1e-5 to 1e-2 is usual)"
            )
        if self.weight_decay * self.learning_rate >= 1:
            raise RecipeError(
                "`training.weight_decay` times `training.learning_rate` must be below 1, for every update multiplies "
                f"the weights by 1 minus it: got {self.weight_decay} and {self.learning_rate} (0 to 0.3 is usual)"
            )
        for name in ("label_smoothing", "subword_dropout"):
            if not 0 <= getattr(self, name) < 1:
                raise RecipeError(f"`training.{name}` must lie in [0, 1): got {getattr(self, name)}")
        if not all(0 <= beta < 1 for beta in self.betas):
            raise RecipeError(f"`training.betas` must lie in [0, 1): got {list(self.betas)}")
        if self.epochs is not None and not 0 < self.epochs < float("inf"):
            raise RecipeError(f"`training.epochs` must be above 0: got {self.epochs}")


@dataclass(frozen=True)
class Recipe:
    """Everything a run needs; only `task` and `data` have no default."""

    task: Annotated[str, OneOf(TASKS)]
    """What is learned. It decides which data, networks and metrics fit."""
    data: DataConfig
    """Training, validation and test data."""
    name: str = "run"
    """Name of the run, and of its folder under `runs/`; if not given, the recipe's file name."""
    tokenizer: TokenizerConfig = TokenizerConfig()
    """The tokenizer to train, or the path of a trained one."""
    network: NetworkConfig = field(default_factory=NetworkConfig)
    """The network: a preset, what differs from it, or every part by itself."""
    objective: tuple[ObjectiveConfig, ...] = ()
    """What is learned, if not the task's usual objective: one objective, or a list with shares, which is a mixture."""
    init: str | None = None
    """A trained model to start from: a run folder, a model folder or a hub name. It brings its network and tokenizer.
    """
    training: TrainingConfig = TrainingConfig()
    """How long, how fast and how safely to train."""
    decoding: DecodingConfig = field(default_factory=DecodingConfig)
    """How outputs are searched for in validation, and by default when the model is used."""
    metrics: tuple[str, ...] = ("bleu", "chrf")
    """Scores of validation and test; the first chooses the best checkpoint. Without one, the validation loss does."""


def recipe_to_dict(recipe: Recipe) -> dict[str, Any]:
    """The resolved recipe as plain data, for the run folder."""
    from dataclasses import asdict

    return asdict(recipe)
