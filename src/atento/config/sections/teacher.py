"""The section `teacher` of a recipe: trained models whose outputs a smaller one learns (distillation)."""

from dataclasses import dataclass
from typing import Annotated

from atento.base.errors import RecipeError
from atento.config.literals import AT_LEAST_0, SHARE, Positive, Section


@dataclass(frozen=True)
class TeacherConfig(Section, path="teacher."):
    """Trained models whose outputs are learned beside the gold labels (Hinton et al. 2015)."""

    model: tuple[str, ...]
    """A run or model folder, a shipped model or a hub name; outputs of several are averaged. They need the labels, the
    vector length or the tokenizer of the network. [at least one]
    """
    weight: Annotated[float, SHARE] = 0.5
    """Share of the teacher in the loss. [above 0 to 1]"""
    temperature: Positive = 2.0
    """Divisor of the scores before the softmax; the loss is multiplied by its square. [above 0] Above 1, improbable
    labels count more.
    """
    n_best: Annotated[int, AT_LEAST_0] = 1
    """For tasks with sources: outputs of each teacher that replace the gold target. [at least 0] 0: learn the
    probabilities of the gold target's tokens.
    """
    cache: str | None = None
    """Folder for their outputs, relative to the recipe. [null: `teacher` in the run]"""

    def _check(self) -> None:
        if not self.model or "" in self.model:
            raise RecipeError(f"`teacher.model` must name a model: got {list(self.model)}")
        if self.cache == "":
            raise RecipeError("`teacher.cache` must name a folder: got ''")
