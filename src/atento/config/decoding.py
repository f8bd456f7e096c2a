"""How outputs are searched for or drawn: a recipe's decoding, and the options of the command line and of Python."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypedDict

from atento.config.literals import check_choices
from atento.errors import RecipeError

MOST_BEAM = 1024  # time and memory grow with it; `atento.decoding.Beam` takes any
UTILITIES = ("bleu", "chrf", "rouge", "rouge1", "rouge2", "f1")  # of `mbr`, as `atento.metrics.utilities` has them
CONTINUATION_TOKENS = 128  # most tokens written after a prompt where nothing else is asked for: a paragraph
FILTERS = ("temperature", "top_k", "top_p", "min_p", "typical_p")  # each of them asks for sampling


@dataclass(frozen=True)
class DecodingConfig:
    """How outputs are searched for or drawn, in validation and by default in use.

    Beam search (a beam of 1 is greedy search), unless `sample`, or a filter of it, asks for draws, or `mbr` names a
    utility.
    """

    beam: int = 4
    """How many hypotheses beam search keeps; 1 is greedy search. [1 to 1,024] 4 or 5 gains over 1 in translation; time
    grows with it.
    """
    length_penalty: float = 1.0
    """A hypothesis is ranked by log-probability / length ** this. [-50 to 50] Above 1 favours long outputs, 0 short
    ones, below 0 the shortest. It ranks outputs and never lengthens a search.
    """
    n_best: int = 1
    """How many outputs are given for each text: different texts in a search or with `mbr`, draws as they come with
    `sample`. [at least 1; at most `beam` in a search, `candidates` with `mbr`]
    """
    stopping: Literal["fixed", "shrinking"] = "fixed"
    """When beam search ends: `fixed` keeps the beam's width until as many hypotheses have ended, `shrinking` takes a
    place off the beam for each.
    """
    sample: bool = False
    """Draw each token from the distribution instead of searching. Any of the five filters below implies it."""
    temperature: float = 1.0
    """Divides the logits before drawing: below 1 sharper, above 1 flatter, 0 greedy. [0 or more]"""
    top_k: int = 0
    """Draw among the k most probable tokens alone (Fan et al. 2018). [0 or more; 0: all]"""
    top_p: float = 1.0
    """Draw among the fewest tokens that have this probability together (nucleus sampling, Holtzman et al. 2020). [above
    0, up to 1; 1: all] 0.9 to 0.95 for open-ended text.
    """
    min_p: float = 0.0
    """Draw among the tokens that have at least this share of the best token's probability. [0 to 1; 0: all]"""
    typical_p: float = 1.0
    """Draw among the tokens whose surprise is nearest the expected one, up to this probability (locally typical
    sampling, Meister et al. 2023). [above 0, up to 1; 1: all]
    """
    mbr: str | None = None
    """Minimum-Bayes-risk decoding: write `candidates` outputs and choose the one that this utility likes best on
    average: bleu, chrf, rouge, rouge1, rouge2, f1, or embeddings:MODEL when a model is used. [null: off]
    """
    candidates: int = 32
    """How many outputs `mbr` chooses among. [at least 1] Time grows with it."""
    candidates_from: Literal["sample", "beam", "both"] = "sample"
    """Where the candidates of `mbr` come from: drawn, a beam as wide as `candidates`, or half and half."""
    repetition_penalty: float = 1.0
    """Above 1, logits of tokens that were written before are lowered by this factor (Keskar et al. 2019). [above 0; 1:
    off] 1.1 to 1.3 against loops.
    """
    no_repeat_ngrams: int = 0
    """No n-gram of this many tokens is written twice. [0 or more; 0: off] 3 is usual in summarisation."""
    min_new_tokens: int = 0
    """Fewest tokens before an output may end. [0 or more]"""
    max_new_tokens: int | None = None
    """Most tokens of an output. [at least 1; null: 2 × source + 16 where a source is read, 128 where a language
    model goes on]
    """
    stop: tuple[str, ...] = ()
    """Texts that end an output when they are written; they are left out of it."""
    seed: int = 1
    """Seed of whatever is drawn; each text draws for itself."""
    batch_tokens: int = 4096
    """Source tokens times outputs that are worked on at once. [at least 1] Lower it when memory runs out."""

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
            raise RecipeError(
                f"`decoding.n_best` must not exceed `beam`: got {self.n_best} and {self.beam}; "
                "a wider beam gives as many, and so does `sample`"
            )

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


class DecodingOptions(TypedDict, total=False):
    """The options of `Model.translate` and its like, for type checkers and completion: the fields of `DecodingConfig`.

    Three differ. `n_best` is a parameter of its own, because it changes what a call returns. `mbr` and `stop` take more
    in Python: a function of two lists of texts that returns the matrix of their utilities, and one string or any
    sequence of them. `greedy` is the flag `--greedy`: a beam of 1, whatever the recipe says.
    """

    greedy: bool
    beam: int
    length_penalty: float
    stopping: Literal["fixed", "shrinking"]
    sample: bool
    temperature: float
    top_k: int
    top_p: float
    min_p: float
    typical_p: float
    mbr: str | Callable[[list[str], list[str]], Any] | None
    candidates: int
    candidates_from: Literal["sample", "beam", "both"]
    repetition_penalty: float
    no_repeat_ngrams: int
    min_new_tokens: int
    max_new_tokens: int | None
    stop: str | Sequence[str]
    seed: int
    batch_tokens: int
