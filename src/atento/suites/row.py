"""What a row of a suite is: the files, columns, labels and metrics of one published task."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from atento.config.tables.task_spec import TaskSpec
from atento.config.tables.tasks import TASKS
from atento.metrics.answers import squad, squad_exact
from atento.metrics.classes import accuracy, f1, matthews
from atento.metrics.correlation import pearson, spearman
from atento.metrics.metric_table import METRICS
from atento.metrics.score import Score
from atento.metrics.tag_scores import entity_f1

Column = int | str


@dataclass(frozen=True)
class Measure:
    """One score of a task.

    Attributes:
        label: its name in tables.
        metric: the row of `METRICS` that it belongs to; the task of a row is the one whose outputs that metric scores.
        score: the function of (outputs, right outputs).
        scale: factor that makes it a percentage.
    """

    label: str
    metric: str
    score: Callable[..., Score]
    scale: float = 100.0


ACCURACY = Measure("accuracy", "accuracy", accuracy)
POSITIVE_F1 = Measure("F1", "f1", partial(f1, average="binary", positive="1"))
MACRO_F1 = Measure("macro F1", "f1", f1)
MATTHEWS = Measure("Matthews", "matthews", matthews)
PEARSON = Measure("Pearson", "pearson", pearson)
SPEARMAN = Measure("Spearman", "spearman", spearman)
ENTITY_F1 = Measure("entity F1", "entity-f1", entity_f1)
_PORTUGUESE = {"language": "pt", "version": "1.1"}
ANSWER_F1 = Measure("F1", "squad", partial(squad, **_PORTUGUESE), scale=1.0)
EXACT_MATCH = Measure("exact match", "squad", partial(squad_exact, **_PORTUGUESE), scale=1.0)


@dataclass(frozen=True)
class Part:
    """A part of a task that is scored by itself, such as MNLI matched.

    Attributes:
        name: the name of its submission file.
        valid: the name of its labelled file, without ending; "": it has none.
        test: the name of its test file, without ending; "": it has none.
        files: patterns of its files; (): those of the row.
    """

    name: str
    valid: str = "dev"
    test: str = "test"
    files: tuple[str, ...] = ()


@dataclass(frozen=True)
class Row:
    """One task of a suite.

    Attributes:
        name: as published.
        about: what is learned, for the list of tasks.
        files: patterns of its files below the data folder, where `{split}` stands for the name of a split; the first
            one that is there is read. Upper and lower case do not matter, and any file may end in .gz.
        columns: field of a record -> its column in the labelled files.
        measures: its scores; the first is computed in validation.
        labels: the labels that its files have; (): any.
        range: the lowest and the highest score that its files have; None: any.
        test_columns: the columns of its texts in test files without labels, where they differ.
        train: the names of its training file, without ending; the first one that is there is read.
        index: the column of the number of each record in test files without labels.
        labelled_test: whether its test file is published with labels; then that file is scored.
        parts: what is scored by itself; (): the row.
        set: rows of the same set count together once in the average; "": the row is a set.
        format: of its files, where their ending does not say it.
        recipe: keys of a recipe that differ from those of the other rows.
    """

    name: str
    about: str
    files: tuple[str, ...]
    columns: Mapping[str, Column]
    measures: tuple[Measure, ...]
    labels: tuple[str, ...] = ()
    range: tuple[float, float] | None = None
    test_columns: Mapping[str, Column] = field(default_factory=dict)
    train: tuple[str, ...] = ("train",)
    index: str = "index"
    labelled_test: bool = False
    parts: tuple[Part, ...] = ()
    set: str = ""
    format: str | None = None
    recipe: Mapping[str, Any] = field(default_factory=dict)

    @property
    def scored(self) -> tuple[Part, ...]:
        """Its parts, or the row as the only part."""
        return self.parts or (Part(self.name),)

    @property
    def task(self) -> str:
        """The task of its recipe: the one whose outputs its measures score."""
        outputs = METRICS[self.measures[0].metric].outputs
        return next(name for name, spec in TASKS.items() if spec.outputs == outputs)

    @property
    def spec(self) -> TaskSpec:
        """The row of its task in the table of tasks."""
        return TASKS[self.task]


@dataclass(frozen=True)
class Suite:
    """A table of tasks.

    Attributes:
        name: as `--table` has it.
        rows: its tasks.
        without: a task that is left out of a second average; None: there is one average.
    """

    name: str
    rows: tuple[Row, ...]
    without: str | None = None
