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
    """One score of a task."""

    label: str  # its name in tables
    # the row of `METRICS` that it belongs to; the task of a row is the one whose outputs that metric scores
    metric: str
    score: Callable[..., Score]  # the function of (outputs, right outputs)
    scale: float = 100.0  # factor that makes it a percentage


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
    """A part of a task that is scored by itself, such as MNLI matched."""

    name: str  # the name of its submission file
    valid: str = "dev"  # the name of its labelled file, without ending; "": it has none
    test: str = "test"  # the name of its test file, without ending; "": it has none
    files: tuple[str, ...] = ()  # patterns of its files; (): those of the row


@dataclass(frozen=True)
class Row:
    """One task of a suite."""

    name: str  # as published
    about: str  # what is learned, for the list of tasks
    # patterns of its files below the data folder, where `{split}` stands for the name of a split; the first one that is
    # there is read. Upper and lower case do not matter, and any file may end in .gz
    files: tuple[str, ...]
    columns: Mapping[str, Column]  # field of a record -> its column in the labelled files
    measures: tuple[Measure, ...]  # its scores; the first is computed in validation
    labels: tuple[str, ...] = ()  # the labels that its files have; (): any
    range: tuple[float, float] | None = None  # the lowest and the highest score that its files have; None: any
    # the columns of its texts in test files without labels, where they differ
    test_columns: Mapping[str, Column] = field(default_factory=dict)
    # the names of its training file, without ending; the first one that is there is read
    train: tuple[str, ...] = ("train",)
    index: str = "index"  # the column of the number of each record in test files without labels
    labelled_test: bool = False  # whether its test file is published with labels; then that file is scored
    parts: tuple[Part, ...] = ()  # what is scored by itself; (): the row
    set: str = ""  # rows of the same set count together once in the average; "": the row is a set
    format: str | None = None  # of its files, where their ending does not say it
    recipe: Mapping[str, Any] = field(default_factory=dict)  # keys of a recipe that differ from those of the other rows

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
    """A table of tasks."""

    name: str  # as `--table` has it
    rows: tuple[Row, ...]  # its tasks
    without: str | None = None  # a task that is left out of a second average; None: there is one average
