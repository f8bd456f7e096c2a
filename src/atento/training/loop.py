"""The training loop: updates, events, validations, checkpoints and stopping."""

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

from atento.config.renamed import VERSION
from atento.config.training import TrainingConfig
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
    """The state of the loop, saved in `state.json` of each checkpoint; `step` gives the position in the data.

    Attributes:
        step: updates done.
        score: score of the last validation, higher is better; None: no validation, or a score that is not finite.
        score_step: step of that validation.
        best: best score so far.
        best_step: step of the best score.
        stale: validations since the best score.
        finished: whether training has ended, by its steps or by early stopping.
        seconds: time spent in training, without the time between two commands.
        interval: summed losses since the last train event, by head.
    """

    step: int = 0
    score: float | None = None
    score_step: int = -1
    best: float | None = None
    best_step: int = 0
    stale: int = 0
    finished: bool = False
    seconds: float = 0.0
    interval: dict[str, Sums] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Return the state as plain data; JSON keeps the exact bits of floats."""
        return asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "Progress":
        """Build the state from the result of `to_dict`; other keys are ignored."""
        known = {name: data[name] for name in cls.__dataclass_fields__ if name in data}
        return cls(**known | {"interval": {head: Sums(**sums) for head, sums in data["interval"].items()}})


@dataclass
class Run:
    """A prepared run: everything that the training loop needs.

    Attributes:
        folder: the run folder.
        config: the section `training` of the recipe.
        steps: updates in total.
        updater: takes the optimizer steps.
        batches: the training data.
        validate: returns the validation scores by name; None: there is no validation data.
        score_name: the validation score that decides which checkpoint is best.
        model_config: content of `config.json`.
        model_files: files saved with each checkpoint, by name: the tokenizer's, and card and licence of the initial
            model.
        identity: what must be equal to resume the run, and what its bits depend on.
        journal: writes `metrics.jsonl`.
        reporter: writes to the terminal and the log.
        pause_at: the step after which `fit` returns with a checkpoint although the run has not finished; None: none.
        progress: the state of the loop.
        seconds_counted_at: time (`time.monotonic`) at which `progress.seconds` was last brought up to date.
    """

    folder: Path
    config: TrainingConfig
    steps: int
    updater: Updater
    batches: Batches
    validate: Validate | None
    score_name: str
    model_config: Mapping[str, Any]
    model_files: Mapping[str, bytes]
    identity: Mapping[str, Any]
    journal: Journal
    reporter: Reporter
    pause_at: int | None = None
    progress: Progress = field(default_factory=Progress)
    seconds_counted_at: float = field(default_factory=time.monotonic)

    @property
    def checkpoints(self) -> Path:
        """Folder of the checkpoints."""
        return self.folder / "checkpoints"


def fit(run: Run) -> Progress:
    """Train until the last step, early stopping, the step of a pause, or a signal.

    Raises:
        TrainingStopped: a signal stopped training; a checkpoint was saved.
        TrainingError: the loss or the gradient is not finite.
        CheckpointError: a checkpoint could not be written; the last good one is kept.
    """
    config, progress = run.config, run.progress
    progress.finished = False
    run.seconds_counted_at = time.monotonic()
    last_step = run.steps if run.pause_at is None else min(run.steps, run.pause_at)
    started, tokens = time.monotonic(), 0  # of the log interval; validations and checkpoints are taken out
    with StopRequest() as stop:
        # a signal may have stopped the run between an update and its validation: make up for it first
        pending = _validation_due(run) and progress.score_step != progress.step
        if progress.step and (pending or progress.step == run.steps):
            if pending:
                validate(run)
            progress.finished = progress.finished or progress.step == run.steps
            save(run)
        while progress.step < last_step and not progress.finished:
            step = progress.step + 1
            rate = learning_rate(config, step, run.steps)
            parts = run.batches.parts(step - 1, config.micro_batches)
            sums, _ = run.updater.update(parts, step, rate, step / run.steps)
            progress.step = step
            for head, head_sums in sums.items():
                progress.interval.setdefault(head, Sums()).add(head_sums)
                tokens += head_sums.targets
            run.reporter.step(step)
            if step % config.log_every == 0 or step == run.steps:
                log(run, rate, tokens / (time.monotonic() - started))
                started, tokens = time.monotonic(), 0
            if _validation_due(run) and stop.by is None:
                pause = time.monotonic()
                validate(run)
                started += time.monotonic() - pause
            stop_signal = stop.by  # read once: a signal that comes during the save below counts for the next step
            pending = _validation_due(run) and progress.score_step != step
            progress.finished = progress.finished or (step == run.steps and not pending)
            is_best = progress.score_step == step == progress.best_step
            due = step % config.checkpoint_every == 0 or step == last_step
            if due or is_best or progress.finished or stop_signal is not None:
                pause = time.monotonic()
                save(run)
                started += time.monotonic() - pause
            if stop_signal is not None:
                raise TrainingStopped(
                    f"stopped by {stop_signal.name} after step {step}, checkpoint saved; run the same command to resume"
                )
    return progress


def _validation_due(run: Run) -> bool:
    """Whether the present step is one with a validation."""
    step = run.progress.step
    return run.validate is not None and (step % run.config.validate_every == 0 or step == run.steps)


def log(run: Run, rate: float, tokens_per_second: float) -> None:
    """Write a train event: the mean loss per real target since the last train event, summed over heads.

    With several heads, `nll_HEAD` is the mean of each.
    """
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


def validate(run: Run) -> None:
    """Validate and write a valid event; update the best score, and stop early if the recipe sets `early_stop`."""
    if run.validate is None:
        return
    progress, scores = run.progress, run.validate()
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
    """Save a checkpoint of everything that the next step depends on, then delete old ones beyond `keep`.

    Returns:
        The folder of the checkpoint.

    Raises:
        CheckpointError: the checkpoint could not be written.
    """
    progress, config = run.progress, run.config
    now = time.monotonic()
    progress.seconds, run.seconds_counted_at = progress.seconds + now - run.seconds_counted_at, now
    state = {
        **progress.to_dict(),
        "score": progress.score if progress.score_step == progress.step else None,
        "last_score": progress.score,
        "epoch": progress.step / run.batches.updates_per_epoch,
        "scheduled": progress.finished
        or progress.step % config.checkpoint_every == 0,  # not for a best score or a signal
        "torch": torch.__version__,
        **run.identity,
    }
    run_id = str(run.identity["run_id"])
    run.journal.flush()  # after a power cut, the journal must hold every event up to the checkpoint
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
    finish_save(run)
    return path


def finish_save(run: Run) -> None:
    """Write the event of a checkpoint and delete old checkpoints beyond `keep`.

    It is called again on resuming from a checkpoint, since a kill may have come between the checkpoint and these.

    Raises:
        CheckpointError: a checkpoint cannot be read.
    """
    config, step = run.config, run.progress.step
    event = {"event": "checkpoint", "step": step}
    if event not in run.journal.events():
        run.journal.append(event)
    every = config.checkpoint_every
    # the checkpoints to average at the end are kept, in addition to those of signals and best scores
    averaged = {(step // every - back) * every for back in range(config.average)}
    retain(run.checkpoints, max(config.keep, config.average), averaged, run_id=str(run.identity["run_id"]))


def restore(run: Run, path: Path) -> None:
    """Load weights, optimizer state and progress from a checkpoint; the caller cuts the journal to its step.

    Raises:
        CheckpointError: the checkpoint is damaged.
        TokenizerError: it was trained with another tokenizer than the run has now.
        UsageError: it was written by a version with other tensor names.
    """
    checkpoint = load_checkpoint(path)
    if int(checkpoint.config.get("version", 1)) != VERSION:
        raise UsageError(
            f"{path} was written by an earlier version of Atento, so training cannot continue from it: `init: "
            f"{path.parent.parent}` starts a run from its weights, --force starts over"
        )
    if checkpoint.state.get("tokenizer") != run.identity["tokenizer"]:
        raise TokenizerError(
            f"{path} was trained with another tokenizer than {run.folder / 'tokenizer'} is now: put its files back, or "
            "start over with --force"
        )
    run.updater.network.load_state_dict(checkpoint.weights)
    run.updater.load_optimizer_tensors(checkpoint.optimizer)
    run.updater.copy_weights()
    run.progress = Progress.from_dict(checkpoint.state | {"score": checkpoint.state.get("last_score")})
