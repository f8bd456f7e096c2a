"""A recipe: the one file that says task, data, tokenizer, network, training, decoding and metrics."""

from dataclasses import dataclass, field
from typing import Any, Literal

from atento.config.choices import check_choices
from atento.config.decoding import DecodingConfig
from atento.config.network import NetworkConfig
from atento.errors import RecipeError

Column = int | str


@dataclass(frozen=True)
class SourceConfig:
    """Where examples come from: two parallel files, one file with columns, or the embedded micro-world.

    Pairs. Parallel: `source` and `target` are paths. One file: `file` is the path, `source` and `target` are columns,
    by number (from 0, no header) or by name (the first line is a header). Micro-world: `world` names a split.
    Texts. `file` is the path; of a file with columns `text` is the one, any other file has a text a line.
    Micro-world: `text` is the language, `pt` (as if not given) or `en`.
    """

    file: str | None = None
    source: Column | None = None
    target: Column | None = None
    text: Column | None = None
    world: Literal["train", "valid", "combinations", "structures"] | None = None
    count: int | None = None  # world: pairs to write; files: the first so many records
    seed: int = 1  # world only


@dataclass(frozen=True)
class DataConfig:
    """Training, validation and test data; relative paths start at `folder` (default: the recipe's own)."""

    train: tuple[SourceConfig, ...] = ()
    valid: tuple[SourceConfig, ...] = ()
    test: tuple[SourceConfig, ...] = ()
    folder: str | None = None
    max_len: int = 256  # tokens; a longer training pair is left out and counted, so that one line cannot exhaust memory
    skip_bad: bool = False  # count and leave out broken records instead of refusing the file

    def __post_init__(self) -> None:
        if self.max_len < 1:
            raise RecipeError(f"`data.max_len` must be at least 1: got {self.max_len}")


@dataclass(frozen=True)
class TokenizerConfig:
    """A subword model to train, or the `path` of a trained one."""

    kind: Literal["unigram", "bpe", "wordpiece", "word", "character", "byte"] = "unigram"
    vocab_size: int = 8000
    shared: bool = True  # one vocabulary for both languages
    path: str | None = None
    lowercase: bool = False


@dataclass(frozen=True)
class TrainingConfig:
    """How long, how fast and how safely to train. Batches are counted in real target tokens an update."""

    steps: int = 2000
    epochs: float | None = None  # instead of steps
    batch_tokens: int = 4096
    accumulate: int = 1
    learning_rate: float = 1e-3
    warmup: int = 200
    schedule: Literal["inverse-sqrt", "cosine", "linear", "constant"] = "inverse-sqrt"
    weight_decay: float = 0.01
    betas: tuple[float, float] = (0.9, 0.98)
    clip: float = 1.0
    label_smoothing: float = 0.1
    precision: Literal["auto", "float32", "bfloat16"] = "auto"
    subword_dropout: float = 0.0  # BPE dropout or Unigram sampling while training
    validate_every: int = 500
    checkpoint_every: int = 500
    keep: int = 3
    average: int = 0  # the last so many checkpoints averaged at the end
    early_stop: int = 0  # validations without a better score; 0: never
    log_every: int = 50
    seed: int = 1

    def __post_init__(self) -> None:
        check_choices(self, "training.")
        for name in ("steps", "batch_tokens", "accumulate", "validate_every", "checkpoint_every", "keep", "log_every"):
            if getattr(self, name) < 1:
                raise RecipeError(f"`training.{name}` must be at least 1: got {getattr(self, name)}")
        for name in ("warmup", "average", "early_stop", "weight_decay", "clip", "learning_rate"):
            if not 0 <= getattr(self, name) < float("inf"):
                raise RecipeError(f"`training.{name}` must be finite and not negative: got {getattr(self, name)}")
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

    task: Literal[
        "translation",
        "summarization",
        "language-modeling",
        "masked-language-modeling",
        "bidirectional-language-modeling",
        "cbow",
    ]
    data: DataConfig
    name: str = "run"
    tokenizer: TokenizerConfig = TokenizerConfig()
    network: NetworkConfig = field(default_factory=NetworkConfig)
    init: str | None = None
    training: TrainingConfig = TrainingConfig()
    decoding: DecodingConfig = field(default_factory=DecodingConfig)
    metrics: tuple[str, ...] = ("bleu", "chrf")


def recipe_to_dict(recipe: Recipe) -> dict[str, Any]:
    """The resolved recipe as plain data, for the run folder."""
    from dataclasses import asdict

    return asdict(recipe)
