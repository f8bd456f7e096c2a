"""How outputs are searched for or drawn: a recipe's decoding, and the options of the command line and of Python."""

from dataclasses import dataclass
from typing import Literal

from atento.config.choices import check_choices
from atento.errors import RecipeError

MOST_BEAM = 1024  # time and memory grow with it; `atento.decoding.Beam` takes any
UTILITIES = ("bleu", "chrf", "rouge", "rouge1", "rouge2", "f1")  # of `mbr`, as `atento.metrics.utilities` has them
FILTERS = ("temperature", "top_k", "top_p", "min_p", "typical_p")  # each of them asks for sampling


@dataclass(frozen=True)
class DecodingConfig:
    """In validation and by default in use: a beam (of 1: greedy), unless `sample`, or a filter of it, asks for draws.

    `mbr` names a utility (a metric, or "embeddings:MODEL") and chooses by it among `candidates` outputs that are drawn,
    searched for with a beam of that width, or half and half ("both"). `n_best` outputs are given: the best of a beam,
    the first of a sample, the least risky. `seed` is for what draws; each text draws for itself. `stop` strings end an
    output before them.
    """

    beam: int = 4
    length_penalty: float = 1.0
    n_best: int = 1
    stopping: Literal["fixed", "shrinking"] = "fixed"
    sample: bool = False
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    typical_p: float = 1.0
    mbr: str | None = None
    candidates: int = 32
    candidates_from: Literal["sample", "beam", "both"] = "sample"
    repetition_penalty: float = 1.0
    no_repeat_ngrams: int = 0
    min_new_tokens: int = 0
    max_new_tokens: int | None = None  # None: 2 x source + 16
    stop: tuple[str, ...] = ()
    seed: int = 1
    batch_tokens: int = 4096

    def __post_init__(self) -> None:
        check_choices(self, "decoding.")
        for name in ("beam", "n_best", "batch_tokens", "candidates"):
            if getattr(self, name) < 1:
                raise RecipeError(f"`decoding.{name}` must be at least 1: got {getattr(self, name)}")
        if self.beam > MOST_BEAM:
            raise RecipeError(f"`decoding.beam` must be at most {MOST_BEAM}: got {self.beam}")
        for name in ("top_k", "no_repeat_ngrams", "min_new_tokens"):
            if getattr(self, name) < 0:
                raise RecipeError(f"`decoding.{name}` must not be negative: got {getattr(self, name)}")
        if not -50 <= self.length_penalty <= 50:
            raise RecipeError(f"`decoding.length_penalty` must lie in [-50, 50]: got {self.length_penalty}")
        if not 0 <= self.temperature < float("inf"):
            raise RecipeError(f"`decoding.temperature` must be finite and not negative: got {self.temperature}")
        for name in ("top_p", "typical_p"):
            if not 0 < getattr(self, name) <= 1:
                raise RecipeError(f"`decoding.{name}` must lie in (0, 1]: got {getattr(self, name)}")
        if not 0 <= self.min_p <= 1:
            raise RecipeError(f"`decoding.min_p` must lie in [0, 1]: got {self.min_p}")
        if not 0 < self.repetition_penalty < float("inf"):
            raise RecipeError(f"`decoding.repetition_penalty` must be above 0: got {self.repetition_penalty}")
        if self.max_new_tokens is not None and self.max_new_tokens < 1:
            raise RecipeError(f"`decoding.max_new_tokens` must be at least 1: got {self.max_new_tokens}")
        if self.max_new_tokens is not None and self.min_new_tokens > self.max_new_tokens:
            raise RecipeError(
                "`decoding.min_new_tokens` must not exceed `max_new_tokens`: "
                f"got {self.min_new_tokens} and {self.max_new_tokens}"
            )
        if not all(self.stop):
            raise RecipeError("`decoding.stop` must hold strings that are not empty")
        if self.mbr is not None and self.n_best > self.candidates:
            raise RecipeError(
                f"`decoding.n_best` must not exceed `candidates`: got {self.n_best} and {self.candidates}"
            )
        if self.mbr is None and not self.samples and self.n_best > self.beam:
            raise RecipeError(f"`decoding.n_best` must not exceed `beam`: got {self.n_best} and {self.beam}")

    @property
    def samples(self) -> bool:
        """Whether outputs are drawn: said so, or a filter of the distribution is given."""
        return self.sample or any(
            getattr(self, name) != type(self).__dataclass_fields__[name].default for name in FILTERS
        )

    @property
    def rows(self) -> int:
        """How many outputs of one text are written at a time."""
        if self.mbr is not None:
            return self.candidates
        return self.n_best if self.samples else self.beam
