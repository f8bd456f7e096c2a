"""The result of a search: its trials with values and scores, the best one, and what each key explains."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from html import escape
from pathlib import Path
from typing import Any, Literal, NamedTuple

from atento.config.reading.dumping import scalar_text
from atento.metrics.metric_table import signed
from atento.training.progress import duration

State = Literal["waiting", "paused", "dropped", "finished", "failed"]


class RungScore(NamedTuple):
    """The score of a trial at the end of a rung: the share of its steps, its last step, and the score."""

    share: str
    step: int
    score: float


@dataclass
class Trial:
    """A trial of a search.

    Attributes:
        step, steps: its last step, and the number of its steps.
    """

    number: int  # from 1
    values: dict[str, Any]  # the values of the searched keys
    # waiting: not begun, or under way; paused: it trained a rung; dropped: others were better at its last rung;
    # finished: it trained all its steps, or stopped early; failed: `error` says why
    state: State = "waiting"
    metric: str | None = None  # name of the score
    score: float | None = None  # its best validation score
    step: int = 0
    steps: int | None = None
    seconds: float | None = None  # time in training
    rungs: list[RungScore] = field(default_factory=list)  # its score at the end of each rung
    test: Mapping[str, float] | None = None  # its test scores by name, if it has finished
    error: str | None = None  # why it failed, as one sentence
    ties: Sequence[float] = ()  # what decides between equal scores, each so that higher is better

    @property
    def name(self) -> str:
        """The name of its run folder."""
        return f"trial-{self.number:04d}"

    def to_dict(self) -> dict[str, object]:
        """Return the trial as plain data, as `results.jsonl` has it."""
        return {"trial": self.name, **asdict(self), "rungs": [rung._asdict() for rung in self.rungs]}

    @property
    def quality(self) -> list[float]:
        """The score and what decides between equal ones, each so that higher is better; empty: it has no score."""
        return [] if self.score is None else [signed(self.metric or "", self.score), *self.ties]

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "Trial":
        """Build a trial from the result of `to_dict`."""
        known = {name: data[name] for name in cls.__dataclass_fields__ if name in data}
        return cls(**known | {"rungs": [RungScore(**rung) for rung in data["rungs"]]})


@dataclass(frozen=True)
class SearchResult:
    """The result of `atento.search`."""

    folder: Path  # the folder of the search
    strategy: str  # random, grid or halving
    metric: str | None  # name of the score; None: no trial has one
    trials: Sequence[Trial]  # the trials in their order
    # key -> share of the variance of the scores that its values explain alone (epsilon squared); None: the trials do
    # not tell. After halving these are the scores of the first rung, which all trials trained
    importance: Mapping[str, float | None]

    @property
    def ranked(self) -> list[Trial]:
        """The trials, best first: finished ones, then dropped ones by their last rung, then those without a score."""
        return sorted(
            self.trials,
            key=lambda trial: (
                trial.state != "finished",
                -trial.step if trial.state == "dropped" else 0,
                [-value for value in trial.quality] or [math.inf],
                trial.number,
            ),
        )

    @property
    def best(self) -> Trial | None:
        """The finished trial with the best score; the first of equal ones; None: none has finished."""
        first = self.ranked[0] if self.trials else None
        return first if first is not None and first.state == "finished" else None

    @property
    def recipe(self) -> Path | None:
        """The recipe of the best trial, `best.yaml`; None: no trial has finished."""
        return None if self.best is None else self.folder / "best.yaml"

    def to_dict(self) -> dict[str, object]:
        """Return the result as plain data, as printed by `--json`."""
        best, recipe = self.best, self.recipe
        return {
            "folder": str(self.folder),
            "strategy": self.strategy,
            "metric": self.metric,
            "best": None if best is None else best.to_dict(),
            "recipe": None if recipe is None else str(recipe),
            "importance": dict(self.importance),
            "trials": [trial.to_dict() for trial in self.trials],
        }

    def rows(self) -> list[list[str]]:
        """Return the table: the heading, then a row for each trial, best first."""
        keys = list(self.trials[0].values) if self.trials else []
        last = [key.rpartition(".")[2] for key in keys]
        names = {key: name if last.count(name) == 1 else key for key, name in zip(keys, last)}
        heading = ["trial", self.metric or "score", "step", "time", "state", *(names[key] for key in keys)]
        return [
            heading,
            *(
                [
                    trial.name,
                    ""
                    if trial.score is None
                    else f"{trial.score:.4g}"
                    if abs(trial.score) < 10
                    else f"{trial.score:.2f}",
                    f"{trial.step:,}",
                    "" if trial.seconds is None else duration(trial.seconds),
                    trial.state,
                    *(scalar_text(trial.values[key]) for key in keys),
                ]
                for trial in self.ranked
            ),
        ]

    def __str__(self) -> str:
        """The table as text, then the importance of each key."""
        rows = self.rows()
        widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
        lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip() for row in rows]
        lines += ["", "share of the variance of the scores that each key explains alone:"]
        width = max((len(key) for key in self.importance), default=0)
        lines += [f"  {key:<{width}}  {share_text(share)}" for key, share in self.importance.items()]
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        rows = self.rows()
        heading = "".join(f'<th scope="col">{escape(cell)}</th>' for cell in rows[0])
        body = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in rows[1:])
        return f"<table><thead><tr>{heading}</tr></thead><tbody>{body}</tbody></table>"


def share_text(share: float | None) -> str:
    """Return a share of importance as text."""
    return "too few trials to tell" if share is None else f"{share:.0%}"


def importance_of(trials: Sequence[Trial], ranges: Mapping[str, bool]) -> dict[str, float | None]:
    """Return the importance of each key (`ranges` says which are ranges), by the scores at the first rung."""
    scored = [trial for trial in trials if trial.rungs]
    scores = [trial.rungs[0].score for trial in scored]
    return {
        key: importance([trial.values[key] for trial in scored], scores, is_range=is_range)
        for key, is_range in ranges.items()
    }


_MAX_BINS = 4  # of the values of a range


def importance(values: Sequence[object], scores: Sequence[float], *, is_range: bool) -> float | None:
    """Return the share of the variance of the scores that the values of one key explain (epsilon squared, Kelley 1935).

    The scores are grouped by value. With g groups of n scores, SSB the sum of squares between the groups and SSW that
    within them, the share is (SSB - (g - 1) SSW / (n - g)) / (SSB + SSW). The second term is what random groups would
    explain; a negative share is given as 0.

    Args:
        values: the value of the key in each trial.
        scores: the score of each trial.
        is_range: whether the values are numbers of a range; more than 4 different ones are sorted into at most 4
            groups of like size, of two scores or more.

    Returns:
        A share from 0 to 1; None: there is one group only, no two scores share a group, or all scores are equal.
    """
    groups = _groups(values, is_range)
    n, labels = len(scores), sorted(set(groups))
    if len(labels) < 2 or n <= len(labels):  # of groups of one score each nothing is within
        return None
    mean = sum(scores) / n
    between = within = 0.0
    for label in labels:
        members = [score for score, group in zip(scores, groups) if group == label]
        center = sum(members) / len(members)
        between += len(members) * (center - mean) ** 2
        within += sum((score - center) ** 2 for score in members)
    total = between + within
    if not total > 0:
        return None
    return max(0.0, (between - (len(labels) - 1) * within / (n - len(labels))) / total)


def _groups(values: Sequence[Any], is_range: bool) -> list[str]:
    """Return the group of each value."""
    texts = [scalar_text(value) for value in values]
    different = sorted(set(values)) if is_range else []
    if len(different) <= _MAX_BINS:
        return texts
    bins = max(1, min(_MAX_BINS, len(values) // 2))
    ranked = sorted(values)
    # equal values share the group of their first rank
    return [str(ranked.index(value) * bins // len(ranked)) for value in values]
