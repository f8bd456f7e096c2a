"""How a model finds answers in contexts: the `answering` of its `config.json`, which training writes."""

from dataclasses import dataclass

from atento.errors import RecipeError


@dataclass(frozen=True)
class AnsweringConfig:
    """How contexts are cut into windows, and what answers are."""

    stride: int = 128
    """Tokens that neighbouring windows share."""
    max_answer: int = 30
    """Maximum tokens of an answer."""
    unanswerable: bool = True
    """Whether a question may have no answer."""

    def __post_init__(self) -> None:
        if self.stride < 0:
            raise RecipeError(f"`answering.stride` must not be negative: got {self.stride}")
        if self.max_answer < 1:
            raise RecipeError(f"`answering.max_answer` must be at least 1: got {self.max_answer}")
