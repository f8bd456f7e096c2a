"""The section `data.mixing` of a recipe: how several sources of training data share the updates."""

from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

from atento.base.errors import RecipeError
from atento.config.literals import Count, Positive, Section

_USUAL_TEMPERATURE = 2.0


@dataclass(frozen=True)
class MixingPoint:
    """Weights of the sources at a point of training."""

    at: float
    """Share of the updates after which the weights hold. [0 to 1]"""
    weights: tuple[float, ...]
    """Weights, in the order of `data.train`. [each 0 or more, not all 0]"""

    def __post_init__(self) -> None:
        if not 0 <= self.at <= 1:
            raise RecipeError(f"`data.mixing.points`: `at` must lie in [0, 1]: got {self.at}")
        _check_weights("`weights` of `data.mixing.points`", self.weights)


@dataclass(frozen=True)
class MixingConfig(Section, path="data.mixing."):
    """Shares of the sources of `data.train` in the target tokens of an update; n is the target tokens of a source."""

    kind: Literal["proportional", "temperature", "equal", "weights"] = "proportional"
    """Share of each source by its size n: `proportional`; `temperature`, n^(1/T) (T5); `equal`; or as `weights` or
    `points` say.
    """
    temperature: Positive | None = None
    """T of the kind temperature: 1 is proportional; the higher, the more equal. [above 0; null: 2]"""
    cap: Count | None = None
    """Largest n, in target tokens, for proportional and temperature. [at least 1; null: no limit]"""
    weights: tuple[float, ...] = ()
    """Weights of the kind weights, in the order of `data.train`. [each 0 or more, not all 0]"""
    points: tuple[MixingPoint, ...] = ()
    """Weights that change during training, in rising order of `at`, linear between points."""

    def __post_init__(self) -> None:
        for name, kinds in (
            ("temperature", ("temperature",)),
            ("cap", ("proportional", "temperature")),
            ("weights", ("weights",)),
            ("points", ("weights",)),
        ):
            if getattr(self, name) not in (None, ()) and self.kind not in kinds:
                raise RecipeError(f"`data.mixing.{name}` is for the kind {' or '.join(kinds)}: got {self.kind}")
        super().__post_init__()

    def _check(self) -> None:
        if self.kind == "weights" and bool(self.weights) == bool(self.points):
            both = "both" if self.weights else "neither"
            raise RecipeError(f"`data.mixing` of the kind weights needs either `weights` or `points`: got {both}")
        if self.weights:
            _check_weights("`data.mixing.weights`", self.weights)
        positions = [point.at for point in self.points]
        if any(after <= before for before, after in pairwise(positions)):
            raise RecipeError(f"`data.mixing.points` must be in rising order of `at`: got {positions}")

    @property
    def concatenates(self) -> bool:
        """Whether the sources are read as one, joined end to end."""
        return self.kind == "proportional" and self.cap is None

    def rates(self, sizes: tuple[float, ...]) -> tuple[tuple[float, tuple[float, ...]], ...]:
        """Return points (share of training, weights of the sources), one where the weights do not change.

        Args:
            sizes: target tokens of each source.
        """
        if self.points:
            return tuple((point.at, point.weights) for point in self.points)
        if self.kind == "weights":
            return ((0.0, self.weights),)
        if self.kind == "equal":
            return ((0.0, tuple(1.0 for _ in sizes)),)
        temperature = 1.0
        if self.kind == "temperature":
            temperature = _USUAL_TEMPERATURE if self.temperature is None else self.temperature
        capped = [min(size, float("inf") if self.cap is None else self.cap) for size in sizes]
        # by the largest: no power overflows
        return ((0.0, tuple((size / max(capped)) ** (1 / temperature) for size in capped)),)


def _check_weights(key: str, weights: tuple[float, ...]) -> None:
    if not weights or not all(0 <= weight < float("inf") for weight in weights) or sum(weights) == 0:
        raise RecipeError(f"{key} must be finite, not negative and not all 0: got {list(weights)}")
