"""Experiment trackers: the events of a run, sent to TensorBoard, Weights & Biases or MLflow while it trains."""

import math
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from queue import SimpleQueue
from threading import Thread
from typing import Any, Protocol

from atento.base.errors import MissingPartError, TrainingStopped, install_hint

WAIT = 30.0  # seconds that the end of a run waits for a tracker

Event = Mapping[str, Any]


@dataclass(frozen=True)
class TrackedRun:
    """What a tracker is told of a run."""

    folder: Path  # the run folder
    name: str  # name of the recipe
    run_id: str  # id of the run, by which a resumed run continues its curves
    step: int  # the step that it continues from; 0: it starts
    recipe: Mapping[str, object]  # the values of the recipe by dotted key


class Tracker(Protocol):
    """One tracker. Any exception ends the tracking, and never the training."""

    def log(self, event: Event) -> None:
        """Write an event of `metrics.jsonl`."""

    def close(self, status: str) -> None:
        """End with a status: "finished", "stopped" or "failed"."""


def scalars(event: Event) -> dict[str, float]:
    """Return the finite numbers of an event by name: train/loss, valid/bleu, test/bleu, train/update_ratios/...

    Other events than train, valid and end have none.
    """
    kind = {"train": "train", "valid": "valid", "end": "test"}.get(event["event"])
    if kind is None:
        return {}
    values = {name: value for name, value in event.items() if name not in ("event", "step", "note")}
    return {f"{kind}/{name.removeprefix('test_')}": value for name, value in _numbers(values) if math.isfinite(value)}


def _numbers(values: Mapping[str, object]) -> Iterator[tuple[str, float]]:
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from ((f"{name}/{inner}", number) for inner, number in _numbers(value))
        elif isinstance(value, int | float):
            yield name, float(value)


def sample_text(event: Event) -> str:
    """Return a sample as text of three paragraphs."""
    return "\n\n".join(f"{name}: {event[name]}" for name in ("input", "output", "reference"))


class TensorBoard:
    """Writes event files in the folder `tensorboard` of the run; a resumed run replaces the steps it trains again."""

    def __init__(self, run: TrackedRun) -> None:
        from torch.utils.tensorboard import SummaryWriter  # late: an extra

        purge = run.step + 1 if run.step else None
        self.writer = SummaryWriter(str(run.folder / "tensorboard"), purge_step=purge, flush_secs=10)
        if not run.step:
            lines = (f"    {key}: {value}" for key, value in run.recipe.items())
            self.writer.add_text("recipe", "\n".join(lines), 0)

    def log(self, event: Event) -> None:
        """Write the numbers as scalars and a sample as text."""
        for name, value in scalars(event).items():
            self.writer.add_scalar(name, value, event["step"])
        if event["event"] == "sample":
            self.writer.add_text(f"sample/{event['number']}", sample_text(event), event["step"])

    def close(self, status: str) -> None:
        """Write what is left; the status has no place in event files."""
        self.writer.close()


class WeightsAndBiases:
    """Writes a run of the project that the environment names, else `atento`; offline if there is no API key."""

    def __init__(self, run: TrackedRun) -> None:
        import wandb  # late: an extra

        self.run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", "atento"),
            name=run.name,
            id=run.run_id,
            resume="allow",
            dir=run.folder,
            config=dict(run.recipe),
            mode=None if "WANDB_MODE" in os.environ or wandb.api.api_key else "offline",
            settings=wandb.Settings(console="off"),
        )

    def log(self, event: Event) -> None:
        """Log the numbers and samples of an event at its step."""
        values: dict[str, object] = dict(scalars(event))
        if event["event"] == "sample":
            values[f"sample/{event['number']}"] = sample_text(event)
        if values:
            self.run.log(values, step=event["step"])

    def close(self, status: str) -> None:
        """Finish the run."""
        self.run.finish(exit_code=0 if status == "finished" else 1)


class MLflow:
    """Writes a run of the experiment and server that the environment names; the experiment is else `atento`."""

    def __init__(self, run: TrackedRun) -> None:
        from mlflow import MlflowClient  # late: an extra
        from mlflow.entities import Param

        self.client = MlflowClient()
        experiment = os.environ.get("MLFLOW_EXPERIMENT_NAME", "atento")
        existing = self.client.get_experiment_by_name(experiment)
        experiment_id = self.client.create_experiment(experiment) if existing is None else existing.experiment_id
        earlier = self.client.search_runs([experiment_id], f"tags.`atento.run_id` = '{run.run_id}'", max_results=1)
        if earlier:
            self.run_id = earlier[0].info.run_id
            self.client.update_run(self.run_id, status="RUNNING")
            return
        created = self.client.create_run(experiment_id, run_name=run.name, tags={"atento.run_id": run.run_id})
        self.run_id = created.info.run_id
        params = [Param(_mlflow_name(key), str(value)[:500]) for key, value in run.recipe.items()]
        for begin in range(0, len(params), 100):  # the most of a request
            self.client.log_batch(self.run_id, params=params[begin : begin + 100])

    def log(self, event: Event) -> None:
        """Log the numbers of an event as metrics, and a sample as a text file."""
        from mlflow.entities import Metric

        now = int(time.time() * 1000)  # milliseconds
        metrics = [Metric(_mlflow_name(name), value, now, event["step"]) for name, value in scalars(event).items()]
        if metrics:
            self.client.log_batch(self.run_id, metrics=metrics)
        if event["event"] == "sample":
            file = f"samples/step-{event['step']:08d}-{event['number']}.txt"
            self.client.log_text(self.run_id, sample_text(event), file)

    def close(self, status: str) -> None:
        """Set the status of the run."""
        ends = {"finished": "FINISHED", "stopped": "KILLED", "failed": "FAILED"}
        self.client.set_terminated(self.run_id, ends[status])


def _mlflow_name(name: str) -> str:
    """A name of letters, digits and the signs that MLflow takes: bleu[pt] -> bleu_pt_."""
    return re.sub(r"[^\w\-./ ]", "_", name, flags=re.ASCII)


_MADE: Mapping[str, Callable[[TrackedRun], Tracker]] = {
    "tensorboard": TensorBoard,
    "wandb": WeightsAndBiases,
    "mlflow": MLflow,
}


def check_trackers(names: Sequence[str]) -> None:
    """Check that the packages of the trackers are installed.
    Raises MissingPartError: one is not; the message has the command that installs it.
    """
    for name in names:
        if find_spec(name) is None:
            raise MissingPartError(f"`training.report_to` {name} needs the package {name}: {install_hint(name)}")


class _Worker:
    """Writes to one tracker in a thread, so that training does not wait for a slow disk or server."""

    def __init__(self, name: str, run: TrackedRun) -> None:
        self.name, self.run = name, run
        self.error: str | None = None
        self.status = "finished"
        self.events: SimpleQueue[Event | None] = SimpleQueue()
        self.thread = Thread(target=self._work, name=f"tracker {name}", daemon=True)
        self.thread.start()

    def _work(self) -> None:
        try:
            tracker = _MADE[self.name](self.run)
            while (event := self.events.get()) is not None:
                tracker.log(event)
            tracker.close(self.status)
        except BaseException as error:  # whatever a package raises, `SystemExit` too, training continues
            text = str(error).strip().partition("\n")[0] or type(error).__name__
            self.error = f"{self.name} failed, and is not written any more ({text:.200}); training continues"


class Trackers:
    """The trackers of a run; an error of one is reported once, and the run continues without it.

    Args:
        names: of `training.report_to`.
        run: the run that they track.
        report: called with a warning for each tracker that fails.
    """

    def __init__(self, names: Sequence[str], run: TrackedRun, report: Callable[[str], None]) -> None:
        self.report = report
        self.workers = [_Worker(name, run) for name in names]

    def log(self, event: Event) -> None:
        """Hand an event to each tracker; returns at once."""
        self._drop_failed()
        for worker in self.workers:
            worker.events.put(dict(event))

    def close(self, status: str) -> None:
        """End each tracker with a status (`Tracker.close`); waits for it up to 30 seconds."""
        for worker in self.workers:
            worker.status = status
            worker.events.put(None)
        deadline = time.monotonic() + WAIT
        for worker in self.workers:
            worker.thread.join(max(0.0, deadline - time.monotonic()))
            if worker.thread.is_alive():
                worker.error = f"{worker.name} did not end within {WAIT:.0f} seconds; its last events may be missing"
        self._drop_failed()

    def _drop_failed(self) -> None:
        for worker in [worker for worker in self.workers if worker.error is not None]:
            self.report(f"warning: {worker.error}")
            self.workers.remove(worker)

    def __enter__(self) -> "Trackers":
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        stopped = isinstance(error, TrainingStopped | KeyboardInterrupt)
        self.close("finished" if error is None else "stopped" if stopped else "failed")
