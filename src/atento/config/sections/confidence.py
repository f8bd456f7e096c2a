"""What a classifier knows of its own probabilities: a temperature, and the precision above each of them."""

from dataclasses import dataclass
from typing import Annotated

from atento.base.errors import RecipeError
from atento.config.literals import ABOVE_0, Section


@dataclass(frozen=True)
class ConfidenceConfig(Section, path="confidence."):
    """Fitted to labelled data that the model was not trained on; kept with it."""

    temperature: Annotated[float, ABOVE_0] = 1.0
    """Number by which scores are divided before they become probabilities. [above 0]"""
    records: int = 0
    """Number of records it was fitted to."""
    thresholds: tuple[float, ...] = ()
    """Probabilities from which on the model answers, rising."""
    precisions: tuple[float, ...] = ()
    """Share of right answers among those from each threshold on, rising."""

    def _check(self) -> None:
        if len(self.thresholds) != len(self.precisions):
            rule = "`confidence.thresholds` and `confidence.precisions` must be as many"
            raise RecipeError(f"{rule}: got {len(self.thresholds)} and {len(self.precisions)}")

    def threshold(self, precision: float) -> float | None:
        """The lowest probability from which on answers were right in this share; None: there is none."""
        pairs = zip(self.thresholds, self.precisions)
        return next((threshold for threshold, reached in pairs if reached >= precision), None)
