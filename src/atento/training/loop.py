"""The training loop: steps, events, validations, checkpoints, and stopping; everything else is handed to it."""

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

from atento.config.recipe import TrainingConfig
from atento.config.renamed import VERSION
from atento.data.batches import Batches
from atento.errors import TokenizerError, TrainingStopped, UsageError
from atento.metrics.table import signed
from atento.storage.checkpoint import load_checkpoint, save_checkpoint
from atento.storage.retention import retain
from atento.training.journal import Journal
from atento.training.losses import Sums
from atento.training.progress import Reporter
from atento.training.schedule import learning_rate
from atento.training.signals import StopRequest
from atento.training.step import Updater

Validate = Callable[[], dict[str, float]]


@dataclass
class Progress:
    """Where a run stands, as a checkpoint's `state.json` keeps it; the data's cursor is the step itself."""

    step: int = 0
    score: float | None = None  # of the last validation, higher is better, and the step it was made at
    score_step: int = -1
    best: float | None = None
    best_step: int = 0
    stale: int = 0  # validations since the best
    finished: bool = False
    seconds: float = 0.0  # that training took, pauses left out
    interval: dict[str, Sums] = field(default_factory=dict)  # since the last train event, by head

    def to_dict(self) -> dict[str, Any]:
        """As plain data; floats survive JSON exactly."""
        return asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "Progress":
        """The inverse of `to_dict`."""
        known = {name: data[name] for name in cls.__dataclass_fields__ if name in data}
        return cls(**known | {"interval": {head: Sums(**sums) for head, sums in data["interval"].items()}})


@dataclass
class Run:
    """What the loop works with: a prepared run in its folder."""

    folder: Path
    config: TrainingConfig
    steps: int
    updater: Updater
    batches: Batches
    validate: Validate | None
    score_name: str  # which validation score decides what is best
    model_config: Mapping[str, Any]  # config.json
    model_files: Mapping[str, bytes]  # the tokenizer's, and card and licence of the model that training starts from
    identity: Mapping[str, Any]  # what must be the same for a run to go on, and what makes it bit-exact
    journal: Journal
    reporter: Reporter
    progress: Progress = field(default_factory=Progress)
    since: float = field(default_factory=time.monotonic)  # when `progress.seconds` was last added to

    @property
    def checkpoints(self) -> Path:
        """Where checkpoints stand."""
        return self.folder / "checkpoints"


def fit(run: Run) -> Progress:
    """Train to the end, or to the first signal.

    Raises:
        TrainingStopped: by a signal, with a checkpoint saved. TrainingError: the numbers are not finite.
        CheckpointError: a checkpoint could not be written; the last good one stands.
    """
    config, progress = run.config, run.progress
    progress.finished = False
    run.since = time.monotonic()
    started, tokens = time.monotonic(), 0
    with StopRequest() as stop:
        missed = _due(run) and progress.score_step != progress.step  # a signal came before it could be made
        if progress.step and (missed or progress.step == run.steps):
            if missed:
                validated(run, run.validate)
            progress.finished = progress.finished or progress.step == run.steps
            save(run)
        while progress.step < run.steps and not progress.finished:
            step = progress.step + 1
            rate = learning_rate(config, step, run.steps)
            parts = run.batches.parts(step - 1, config.micro_batches)
            sums, _ = run.updater.update(parts, step, rate, step / run.steps)
            progress.step = step
            for head, found in sums.items():
                progress.interval.setdefault(head, Sums()).add(found)
                tokens += found.targets
            run.reporter.step(step)
            if step % config.log_every == 0 or step == run.steps:
                log(run, rate, tokens / (time.monotonic() - started))
                started, tokens = time.monotonic(), 0
            if _due(run) and stop.by is None:
                pause = time.monotonic()
                validated(run, run.validate)
                started += time.monotonic() - pause
            stopping = stop.by  # read once a step, so that what the message says is what was done
            missed = _due(run) and progress.score_step != step
            progress.finished = progress.finished or (step == run.steps and not missed)
            is_best = progress.score_step == step == progress.best_step  # or the best model would be lost
            if step % config.checkpoint_every == 0 or is_best or progress.finished or stopping is not None:
                pause = time.monotonic()
                save(run)
                started += time.monotonic() - pause
            if stopping is not None:
                raise TrainingStopped(
                    f"stopped by {stopping.name} after step {step}, checkpoint saved; the same command goes on"
                )
    return progress


def _due(run: Run) -> bool:
    step = run.progress.step
    return run.validate is not None and (step % run.config.validate_every == 0 or step == run.steps)


def log(run: Run, rate: float, tokens_per_second: float) -> None:
    """A train event: mean nats a real target since the last one; of several heads their sum, and each by its name."""
    interval = run.progress.interval
    means = {
        head: (sums.loss / max(1, sums.targets), sums.nll / max(1, sums.targets)) for head, sums in interval.items()
    }
    event = {
        "event": "train",
        "step": run.progress.step,
        "loss": sum(loss for loss, _ in means.values()),
        "nll": sum(nll for _, nll in means.values()),
        "learning_rate": rate,
        "tokens_per_second": tokens_per_second,
    }
    if len(means) > 1:
        event |= {f"nll_{head}": nll for head, (_, nll) in means.items()}
    run.journal.append(event)
    run.reporter.event(event)
    run.progress.interval = {}


def validated(run: Run, validate: Validate | None) -> None:
    """Validate, and write a valid event; decides what is best, and whether to stop early."""
    if validate is None:
        return
    progress, scores = run.progress, validate()
    event = {"event": "valid", "step": progress.step, **scores}
    run.journal.append(event)
    run.reporter.event(event)
    score = signed(run.score_name, scores[run.score_name])
    progress.score, progress.score_step = score if math.isfinite(score) else None, progress.step
    if progress.score is None:
        return
    if progress.best is None or progress.score > progress.best:
        progress.best, progress.best_step, progress.stale = progress.score, progress.step, 0
        return
    progress.stale += 1
    if run.config.early_stop and progress.stale >= run.config.early_stop:
        run.reporter.line(
            f"step {progress.step}: no better {run.score_name} in {progress.stale} validations; stopping early"
        )
        progress.finished = True


def save(run: Run) -> Path:
    """A checkpoint of everything the next step depends on, then the old ones beyond `keep` go."""
    progress, config = run.progress, run.config
    now = time.monotonic()
    progress.seconds, run.since = progress.seconds + now - run.since, now
    state = {
        **progress.to_dict(),
        "score": progress.score if progress.score_step == progress.step else None,
        "last_score": progress.score,
        "epoch": progress.step / run.batches.updates_per_epoch,
        "scheduled": progress.finished or progress.step % config.checkpoint_every == 0,  # or the best, or a signal
        "torch": torch.__version__,
        **run.identity,
    }
    run_id = str(run.identity["run_id"])
    run.journal.flush()  # the journal must not end before the checkpoint does
    path = save_checkpoint(
        run.checkpoints,
        progress.step,
        config=run.model_config,
        weights=run.updater.network.state_dict(),
        optimizer=run.updater.optimizer_tensors(),
        state=state,
        extra=run.model_files,
        run_id=run_id,
    )
    complete_save(run)
    return path


def complete_save(run: Run) -> None:
    """What follows a checkpoint: its event, and the old checkpoints beyond `keep` go.

    Called again when a run goes on from a checkpoint, it makes up for what a kill cut off.

    Raises:
        CheckpointError: the system does not let us read.
    """
    config, step = run.config, run.progress.step
    event = {"event": "checkpoint", "step": step}
    if event not in run.journal.events():
        run.journal.append(event)
    every = config.checkpoint_every
    averaged = {(step // every - back) * every for back in range(config.average)}  # no stop pushes these out
    retain(run.checkpoints, max(config.keep, config.average), averaged, run_id=str(run.identity["run_id"]))


def restore(run: Run, path: Path) -> None:
    """Go back to a checkpoint: weights, optimiser and progress; the journal is cut behind it by whoever goes on.

    Raises:
        CheckpointError: it is damaged. TokenizerError: it was trained with another tokenizer than the run has now.
        UsageError: it was written by a version whose tensors had other names.
    """
    checkpoint = load_checkpoint(path)
    if int(checkpoint.config.get("version", 1)) != VERSION:
        raise UsageError(
            f"{path} was written by an earlier version of Atento, so training cannot continue from it: `init: "
            f"{path.parent.parent}` starts a run from its weights, --force begins anew"
        )
    if checkpoint.state.get("tokenizer") != run.identity["tokenizer"]:
        raise TokenizerError(
            f"{path} was trained with another tokenizer than {run.folder / 'tokenizer'} is now: put its files back, or "
            "begin anew with --force"
        )
    run.updater.network.load_state_dict(checkpoint.weights)
    run.updater.load_optimizer_tensors(checkpoint.optimizer)
    run.updater.refresh()
    run.progress = Progress.from_dict(checkpoint.state | {"score": checkpoint.state.get("last_score")})
