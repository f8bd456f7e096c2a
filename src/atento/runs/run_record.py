"""Read a run folder: recipe, curves, the checkpoint in use, scores, time. Does not load torch."""

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from atento.base.errors import CheckpointError, UsageError, counted, similar_file
from atento.base.limits import read_plain_text
from atento.config.reading.loading import load_recipe
from atento.config.recipe import Recipe
from atento.metrics.metric_table import quality, signed
from atento.storage.checkpoint_list import STATE, list_checkpoints, select_checkpoint
from atento.storage.manifest import read_json, read_manifest
from atento.training.metrics_log import read_journal

_NO_SCORES = ("event", "step", "seconds", "note")


class Scored(NamedTuple):
    """A value of the run's metric, the step that it belongs to, and what decides between equal values."""

    step: int
    value: float
    ties: tuple[float, ...] = ()


class InUse(NamedTuple):
    """The checkpoint that `load` takes of the run: best, last or averaged; `score` is None if it was not validated.

    `ties` decide between equal scores, each so that higher is better.
    """

    word: str
    path: Path
    step: int
    score: float | None
    ties: tuple[float, ...] = ()


@dataclass(frozen=True)
class RunRecord:
    """A run, read from its folder.

    Attributes:
        checkpoints, damaged: names of folders, oldest first.
    """

    folder: Path
    recipe: Recipe  # as resolved when the run last started
    events: list[dict[str, Any]]  # those of `metrics.jsonl`, oldest first
    network: Mapping[str, Any]  # that of the checkpoint in use, as its `config.json` has it; empty while there is none
    in_use: InUse | None  # None while there is no checkpoint that verifies
    checkpoints: list[str]
    damaged: list[str]
    facts: Mapping[str, Any]  # of the last start: versions, command, machine; parameters, steps, examples
    # how long training took up to the last checkpoint, pauses left out; None in runs of older versions
    seconds: float | None

    @property
    def metric(self) -> str:
        """The validation score that decides which checkpoint is best: the recipe's first metric, else nll."""
        return self.recipe.deciding[0]

    @property
    def step(self) -> int:
        """The last step in the folder."""
        return max((int(event["step"]) for event in self.events), default=0)

    @property
    def steps(self) -> int | None:
        """As `planned_steps` says."""
        return planned_steps(self.recipe, self.facts)

    @property
    def finished(self) -> bool:
        """Whether the run has ended, with averaging and testing."""
        return any(event["event"] == "end" for event in self.events)

    def curve(self, name: str, kind: str) -> list[tuple[int, float]]:
        """Return (step, value) of each event of a kind (train, valid) that has this value."""
        return [
            (int(event["step"]), float(event[name]))
            for event in self.events
            if event["event"] == kind and isinstance(event.get(name), int | float)
        ]

    @property
    def best(self) -> Scored | None:
        """The best validation; the earliest of those that are equal in all that decides."""
        valid = [e for e in self.events if e["event"] == "valid" and isinstance(e.get(self.metric), int | float)]
        event = max(valid, key=lambda event: (quality(event, self.recipe.deciding), -event["step"]), default=None)
        ties = () if event is None else quality(event, self.recipe.deciding)[1:]
        return None if event is None else Scored(int(event["step"]), float(event[self.metric]), ties)

    @property
    def scores(self) -> dict[str, float]:
        """The validation scores of the checkpoint in use, by name; an averaged one has only the metric."""
        used = self.in_use
        if used is None:
            return {}
        if used.word == "averaged":
            return {} if used.score is None else {self.metric: used.score}
        events = [event for event in self.events if event["event"] == "valid" and event["step"] == used.step]
        return {name: value for event in events[-1:] for name, value in event.items() if name not in _NO_SCORES}

    @property
    def test(self) -> dict[str, float]:
        """The scores on the test data, by name; empty before the run has ended, or without test data."""
        end: dict[str, Any] = next((event for event in reversed(self.events) if event["event"] == "end"), {})
        return {name.removeprefix("test_"): value for name, value in end.items() if name.startswith("test_")}

    def to_dict(self) -> dict[str, Any]:
        """Return the record as plain data, as printed by `--json`."""
        used, best = self.in_use, self.best
        return {
            "run": str(self.folder),
            "name": self.recipe.name,
            "task": self.recipe.task,
            "step": self.step,
            "steps": self.steps,
            "finished": self.finished,
            "seconds": self.seconds,
            "vocabulary": self.network.get("vocab_size"),
            "parameters": self.facts.get("parameters"),
            "metric": self.metric,
            "best": None if best is None else {"step": best.step, "value": best.value},
            "in_use": None
            if used is None
            else {"word": used.word, "checkpoint": used.path.name, "step": used.step, "score": used.score},
            "scores": self.scores,
            "test": self.test,
            "checkpoints": self.checkpoints,
            "damaged": self.damaged,
        }


def is_run(folder: Path) -> bool:
    """Return whether a folder is a run folder."""
    return (folder / "run.json").is_file()


def read_run(folder: Path) -> RunRecord:
    """Read a run folder. The checkpoint in use is verified; nothing is renamed.
    Raises UsageError: it is no run. RecipeError, DataError: its recipe or journal is damaged; names the file and line.
    CheckpointError: the system does not let us read.
    """
    if not is_run(folder):
        runs = sorted(path.parent.name for path in folder.glob("*/run.json"))
        inner = f"; it has {counted(len(runs), 'run')}, such as {folder / runs[0]}" if runs else ""
        raise UsageError(f"{folder} is not a run{inner or similar_file(folder, is_run)}")
    # the recipe as it was: variables of this process do not change it
    recipe = load_recipe(folder / "recipe.yaml", environment={}).recipe
    journal = folder / "metrics.jsonl"
    events = read_journal(journal) if journal.exists() else []
    metric = recipe.deciding[0]
    selected = select_checkpoint(folder)
    used, network = None, {}
    if selected is not None:
        manifest = read_manifest(selected.path)
        state = read_json(selected.path, manifest, STATE)
        score = state.get("score")
        network = read_json(selected.path, manifest, "config.json").get("network", {})
        score = None if score is None else signed(metric, float(score))
        used = InUse(selected.kind, selected.path, manifest.step, score, tuple(state.get("ties", ())))
    every = list_checkpoints(folder / "checkpoints")
    names = sorted(path.name for path in (folder / "checkpoints").glob("step-*.bad*"))
    seconds = None
    if every:  # of the newest
        with suppress(CheckpointError):
            seconds = read_json(every[0].path, read_manifest(every[0].path), STATE).get("seconds")
    return RunRecord(
        folder=folder,
        recipe=recipe,
        events=events,
        network=network,
        in_use=used,
        checkpoints=[item.path.name for item in reversed(every)],  # oldest first
        damaged=names,
        facts=read_object(folder / "env.json"),
        seconds=float(seconds) if isinstance(seconds, int | float) else None,
    )


def planned_steps(recipe: Recipe, facts: Mapping[str, Any]) -> int | None:
    """The planned number of steps; None if `training.epochs` is set and the number is not among the facts."""
    steps = facts.get("steps")
    if isinstance(steps, int):
        return steps
    return recipe.training.steps if recipe.training.epochs is None else None


def read_object(path: Path) -> dict[str, Any]:
    """Read the object in a JSON file; empty if the file is missing or damaged."""
    try:
        content = json.loads(read_plain_text(path))
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}
