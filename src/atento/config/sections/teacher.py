"""The section `teacher` of a recipe: trained models whose outputs a smaller one learns (distillation)."""

from dataclasses import dataclass

from atento.config.literals import check_numbers
from atento.errors import RecipeError


@dataclass(frozen=True)
class TeacherConfig:
    """Trained models whose outputs are learned beside the gold labels (Hinton et al. 2015)."""

    model: tuple[str, ...]
    """A run folder, a model folder, the name of a shipped model or a hub name; or a list of these, whose probabilities,
    numbers or vectors are averaged. They need the labels of the training data, for vectors the length of the network's,
    for tokens its tokenizer. [at least one]
    """
    weight: float = 0.5
    """Share of the teacher in the loss; gold labels have the rest. [above 0 to 1] With 1, gold labels teach nothing."""
    temperature: float = 2.0
    """Scores of teacher and network are divided by it before they become probabilities, and the loss is multiplied by
    its square. [above 0] Above 1, the labels that the teacher finds improbable count more.
    """
    n_best: int = 1
    """For tasks with sources and targets: that many of the best outputs of each teacher are the targets of a source, in
    place of the gold one, and `weight` and `temperature` have no effect (Kim & Rush 2016). [at least 0] 0: the
    probabilities of the tokens of the gold target are learned, as tasks without sources do.
    """
    cache: str | None = None
    """A folder, relative to the recipe, for the outputs of teachers, which several runs may share. An output is found
    by hashes of text and weights. [null: the folder `teacher` of the run]
    """

    def __post_init__(self) -> None:
        if not self.model or "" in self.model:
            raise RecipeError(f"`teacher.model` must name a model: got {list(self.model)}")
        if not 0 < self.weight <= 1:
            raise RecipeError(f"`teacher.weight` must lie above 0 and be at most 1: got {self.weight}")
        check_numbers(self, "teacher.", temperature="be finite and above 0")
        if self.n_best < 0:
            raise RecipeError(f"`teacher.n_best` must be at least 0: got {self.n_best}")
        if self.cache == "":
            raise RecipeError("`teacher.cache` must name a folder: got ''")
