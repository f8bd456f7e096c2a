"""The section `training.scheduled_sampling` of a recipe: the model's own tokens among the inputs of a decoder."""

from dataclasses import dataclass
from typing import Literal

from atento.config.literals import check_choices
from atento.errors import RecipeError

_RULES = {"linear": "above 0", "exponential": "above 0 and below 1", "inverse-sigmoid": "at least 1"}  # of k


Schedule = Literal["linear", "exponential", "inverse-sigmoid"]


@dataclass(frozen=True)
class ScheduledSamplingConfig:
    """Inputs of the decoder that are the model's own tokens instead of the target's (Bengio et al. 2015).

    Recurrent decoders take them step by step. Transformers take them from a first pass over the target, and learn from
    a second pass (Mihaylova & Martins 2019).
    """

    share: float = 0.0
    """Largest share of the target's tokens that are replaced by the model's own in the input. [0 to 1; 0: teacher
    forcing] 0.1 to 0.5 is usual; a Transformer takes up to twice as long for its two passes.
    """
    schedule: Schedule = "linear"
    """How the probability of the target's token falls with the number i of updates done, down to 1 - `share`. linear:
    k - c·i. exponential: k^i. inverse-sigmoid: k / (k + exp(i / k)).
    """
    k: float | None = None
    """Constant k of the schedule. [linear: above 0; exponential: above 0, below 1; inverse-sigmoid: at least 1; null:
    linear 1, others such that `share`, at most 0.99, is reached in the last update] With linear, a k above 1 delays the
    start.
    """
    c: float | None = None
    """Constant c of the linear schedule, its slope an update. [above 0; null: such that `share` is reached in the last
    update]
    """
    tokens: Literal["argmax", "sample"] = "argmax"
    """The model's own token: the most probable one, or a sample of its distribution."""

    def __post_init__(self) -> None:
        section = "training.scheduled_sampling"
        check_choices(self, f"{section}.")
        if not 0 <= self.share <= 1:
            raise RecipeError(f"`{section}.share` must lie in [0, 1]: got {self.share}")
        lowest = 1.0 if self.schedule == "inverse-sigmoid" else 0.0  # below 1, k / (k + exp(i / k)) falls at once
        limit = 1.0 if self.schedule == "exponential" else float("inf")
        if self.k is not None and not (0 < self.k < limit and lowest <= self.k):
            raise RecipeError(
                f"`{section}.k` must be {_RULES[self.schedule]} for the schedule {self.schedule}: got {self.k}"
            )
        if self.c is not None and self.schedule != "linear":
            raise RecipeError(f"`{section}.c` is a constant of the linear schedule: got {self.c} for {self.schedule}")
        if self.c is not None and not 0 < self.c < float("inf"):
            raise RecipeError(f"`{section}.c` must be finite and above 0: got {self.c}")
