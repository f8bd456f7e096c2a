"""The scores of a suite: of each task with its interval, over seeds, and the average."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from atento.base.errors import counted
from atento.metrics.score import Score, resampled
from atento_cli.suites.row import Row, Suite

_SAMPLES = 1000


@dataclass(frozen=True)
class Result:
    """One score of a task, in percent: the mean over seeds."""

    part: str  # what was scored, such as "MNLI-m"
    measure: str  # which score
    value: float  # the mean over seeds
    interval: tuple[float, float]  # the 95 % bootstrap interval of that mean, from examples that are resampled
    seeds: Mapping[int, float]  # seed -> value
    examples: int  # number of records


@dataclass(frozen=True)
class TaskResult:
    """The scores of a task."""

    row: Row  # the task
    on: str  # what was scored: "test", "dev" or "held out"
    results: tuple[Result, ...]  # its scores
    seconds: Mapping[int, float | None]  # training time of each seed; None where it is not known
    runs: Mapping[int, Path]  # seed -> run folder

    def of_seed(self, seed: int) -> float:
        """The score of one seed: the mean over parts, each the mean of its measures."""
        return fmean(result.seeds[seed] for result in self.results)

    @property
    def value(self) -> float:
        """The score of the task: the mean over seeds."""
        return fmean(map(self.of_seed, self.runs))


@dataclass(frozen=True)
class SuiteResult:
    """The result of `atento.glue`."""

    suite: Suite  # the table
    folder: Path  # where the runs are
    seeds: tuple[int, ...]  # those of training
    tasks: tuple[TaskResult, ...]  # the tasks that were scored, in the order of the suite
    missing: Mapping[str, str]  # task -> the file that the data folder lacks
    submission: tuple[Path, ...]  # the files with predictions for test files without labels

    @property
    def average(self) -> float:
        """The mean over tasks; tasks of one set, such as those of PLUE, count together once."""
        return fmean(map(self._average, self.seeds))

    @property
    def average_without(self) -> float | None:
        """The average without the task that the suite names (WNLI); None: it has none, or nothing is left."""
        without = self.suite.without
        if without is None or all(task.row.name == without for task in self.tasks):
            return None
        return fmean(self._average(seed, without) for seed in self.seeds)

    @property
    def values(self) -> dict[str, float]:
        """The averages and the score of each task by the names of `--fail-under`."""
        values = {"average": self.average}
        if self.average_without is not None:
            values[f"average-without-{self.suite.without}".lower()] = self.average_without
        return values | {task.row.name.lower(): task.value for task in self.tasks}

    def _average(self, seed: int, without: str | None = None) -> float:
        sets: dict[str, list[float]] = {}
        for task in self.tasks:
            if task.row.name != without:
                sets.setdefault(task.row.set or task.row.name, []).append(task.of_seed(seed))
        return fmean(map(fmean, sets.values()))

    def to_dict(self) -> dict[str, Any]:
        """Return the result as plain data, as printed by `--json`; scores in percent."""
        tasks = {}
        for task in self.tasks:
            scores = [
                {
                    "part": result.part,
                    "metric": result.measure,
                    "value": result.value,
                    "interval": list(result.interval),
                    "seeds": {str(seed): value for seed, value in result.seeds.items()},
                    "examples": result.examples,
                }
                for result in task.results
            ]
            tasks[task.row.name] = {
                "value": task.value,
                "scored_on": task.on,
                "scores": scores,
                "seconds": {str(seed): seconds for seed, seconds in task.seconds.items()},
                "runs": {str(seed): str(folder) for seed, folder in task.runs.items()},
            }
        averages = {name: value for name, value in self.values.items() if name.startswith("average")}
        return {
            "table": self.suite.name,
            "seeds": list(self.seeds),
            "tasks": tasks,
            "missing": dict(self.missing),
            **{name.replace("-", "_"): value for name, value in averages.items()},
            "average_of": len(self.tasks),
            "submission": [str(path) for path in self.submission],
        }

    def __str__(self) -> str:
        """A table with one line for each score, then the averages."""
        several = len(self.seeds) > 1
        lines = [("task", "scored on", "examples", "metric", "score", "95 % interval", "± seeds" if several else "")]
        for task in self.tasks:
            for result in task.results:
                name = result.part if len(task.results) > 1 else task.row.name
                low, high = result.interval
                spread = f"{stdev(result.seeds.values()):.1f}" if several else ""
                cells = (f"{result.examples:,}", result.measure, f"{result.value:.1f}", f"[{low:.1f}, {high:.1f}]")
                lines.append((name, task.on, *cells, spread))
        widths = [max(map(len, column)) for column in zip(*lines)]
        right = (False, False, True, False, True, False, True)  # numbers end under one another
        text = [
            "  ".join(
                cell.rjust(width) if to_right else cell.ljust(width)
                for cell, width, to_right in zip(line, widths, right)
            ).rstrip()
            for line in lines
        ]
        text += [f"{name}: missing, there is no {file}" for name, file in self.missing.items()]
        if not self.tasks:
            return "\n".join(text)
        spread = f" ± {stdev(map(self._average, self.seeds)):.1f} over {len(self.seeds)} seeds" if several else ""
        text.append(f"average of {counted(len(self.tasks), 'task')}: {self.average:.1f}{spread}")
        if self.average_without is not None and any(task.row.name == self.suite.without for task in self.tasks):
            text.append(f"average without {self.suite.without}: {self.average_without:.1f}")
        return "\n".join(text)


def result_of(part: str, label: str, scale: float, scores: Mapping[int, Score]) -> Result:
    """The mean of one score over seeds, in percent, with its interval: every seed on the same resampled examples."""
    import numpy as np

    every: Sequence[Score] = list(scores.values())
    means = np.concatenate([np.mean(block, axis=0) for block in resampled(every, _SAMPLES, 1)])
    low, high = (scale * float(bound) for bound in np.quantile(means, [0.025, 0.975]))
    values = {seed: scale * score.value for seed, score in scores.items()}
    return Result(part, label, fmean(values.values()), (low, high), values, len(every[0].segments))
