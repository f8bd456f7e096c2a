"""A prepared run, the state of its loop, and the checkpoints that save both."""

import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch

from atento.base.errors import CheckpointError, TokenizerError, UsageError, counted
from atento.config.sections.training import TrainingConfig
from atento.config.tables.renamed_keys import VERSION
from atento.data.batches.batch import Batches
from atento.storage.checkpoint import load_checkpoint, prune, save_checkpoint
from atento.storage.shards import save_shards
from atento.storage.writer import CheckpointWriter, cpu_copy
from atento.training.losses import Sums
from atento.training.metrics_log import MetricsLog
from atento.training.optimizer import LossScale, learning_rate
from atento.training.progress import Reporter
from atento.training.step import Updater

Validate = Callable[[], dict[str, float]]
Samples = Callable[[], list[dict[str, str]]]  # texts by name: input, output, reference


@dataclass
class TrainerState:
    """The state of the loop, saved in `state.json` of each checkpoint; `step` gives the position in the data."""

    step: int = 0  # updates done
    # score of the last validation, higher is better; None: no validation, or a score that is not finite
    score: float | None = None
    ties: list[float] = field(default_factory=list)  # its further scores, which decide between equal ones
    score_step: int = -1  # step of that validation
    best: float | None = None  # best score so far
    best_ties: list[float] = field(default_factory=list)  # the further scores of the best validation
    best_step: int = 0  # step of the best score
    stale: int = 0  # validations since the best score
    validations: int = 0  # how many there were
    still: dict[str, float] = field(default_factory=dict)  # metrics that had the same score in all of them, and which
    finished: bool = False  # whether training has ended, by its steps or by early stopping
    seconds: float = 0.0  # time spent in training, without the time between two commands
    interval: dict[str, Sums] = field(default_factory=dict)  # summed losses since the last train event, by head
    noise: dict[str, float] = field(default_factory=dict)  # sums of the gradient noise scale since the last train event
    # the state of the loss scale of float16; empty in other types
    loss_scale: dict[str, float] = field(default_factory=dict)
    skipped: int = 0  # updates that were not finite and have not changed the weights
    skipped_in_row: int = 0  # such updates since the last one that was finite
    splits: int = 1  # factor of `micro_batches` since memory ran out
    zero_at: int = 1  # how many updates after the last one a decay of the rate reaches 0; 0 in runs of earlier versions

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "TrainerState":
        """Build the state from the result of `asdict`; other keys are ignored."""
        known = {name: data[name] for name in cls.__dataclass_fields__ if name in data}
        interval = {head: Sums(**sums) for head, sums in data["interval"].items()}
        return cls(**{"zero_at": 0} | known | {"interval": interval})


@dataclass
class Run:
    """A prepared run: everything that the training loop needs."""

    folder: Path  # the run folder
    config: TrainingConfig  # the section `training` of the recipe
    steps: int  # updates in total
    updater: Updater  # takes the optimizer steps
    batches: Batches  # the training data
    validate: Validate | None  # returns the validation scores by name; None: there is no validation data
    deciding: tuple[str, ...]  # the validation scores that decide which checkpoint is best, the first one first
    model_config: Mapping[str, object]  # content of `config.json`
    # files saved with each checkpoint, by name: the tokenizer's, and card and licence of the initial model
    model_files: Mapping[str, bytes]
    identity: Mapping[str, object]  # what must be equal to resume the run, and what its bits depend on
    journal: MetricsLog  # writes `metrics.jsonl`
    reporter: Reporter  # writes to the terminal and the log
    writer: CheckpointWriter = field(default_factory=CheckpointWriter)  # writes checkpoints while training continues
    # returns outputs for the first validation records, beside the references; None: the recipe asks for none
    samples: Samples | None = None
    # the step after which `fit` returns with a checkpoint although the run has not finished; None: none
    pause_at: int | None = None
    progress: TrainerState = field(default_factory=TrainerState)  # the state of the loop
    # time (`time.monotonic`) at which `progress.seconds` was last brought up to date
    seconds_counted_at: float = field(default_factory=time.monotonic)
    seconds_of_writing: float = 0.0  # of the last checkpoint; 0: there is none yet

    @property
    def score_name(self) -> str:
        """The first of the scores that decide."""
        return self.deciding[0]

    @property
    def checkpoints(self) -> Path:
        """Folder of the checkpoints."""
        return self.folder / "checkpoints"


IN_TURN = 0.01  # of the time between two checkpoints: one that takes less is written in turn, without a copy


def save(run: Run, *, beside: bool = False) -> None:
    """Save a checkpoint of everything that the next step depends on, then delete old ones beyond `keep`.

    Args:
        beside: copy the tensors and write them in a thread, while training continues, if writing the last one took
            more than a hundredth of the time since. Events are held back until the checkpoint is written, so that
            `metrics.jsonl` is the same as without.

    Raises CheckpointError: the checkpoint, or the one before it, could not be written, or the run folder is gone.
    """
    run.updater.replica.on_main_process(partial(_refuse_gone, run))
    if run.updater.replica.writers is None:
        run.updater.replica.on_main_process(partial(_save, run, beside))
    else:  # each process has a part of the weights
        _save(run, beside)


def _refuse_gone(run: Run) -> None:
    if run.journal.gone:  # a checkpoint would make a folder of its own, which is no run
        raise CheckpointError(
            f"{run.folder} was removed or moved during training, so step {run.progress.step} is not saved: put it "
            "back, and run the same command to resume"
        )


def _save(run: Run, beside: bool) -> None:
    finish_writing(run, wait=True)
    progress, config = run.progress, run.config
    now, writers = time.monotonic(), run.updater.replica.writers
    since = now - run.seconds_counted_at  # seconds since the last save
    beside = beside and (writers is not None or run.seconds_of_writing > IN_TURN * since)
    progress.seconds, run.seconds_counted_at = progress.seconds + since, now
    progress.noise = {} if run.updater.noise is None else run.updater.noise.sums
    progress.loss_scale = {} if run.updater.loss_scale is None else asdict(run.updater.loss_scale)
    state = {
        **asdict(progress),  # JSON keeps the exact bits of floats
        "score": progress.score if progress.score_step == progress.step else None,
        "last_score": progress.score,
        "epoch": progress.step / run.batches.updates_per_epoch,
        "scheduled": progress.finished
        or progress.step % config.checkpoint_every == 0,  # not for a best score or a signal
        "checkpoint_every": config.checkpoint_every,
        "steps": run.steps,
        "torch": torch.__version__,
        "journal": run.journal.mark() if run.updater.replica.main else None,
        **run.identity,
    }
    run_id = str(run.identity["run_id"])
    if run.updater.replica.main:
        run.journal.flush()  # after a power cut, the journal must hold every event up to the checkpoint
    weights, optimizer = run.updater.checkpoint_tensors()
    step = progress.step
    if beside:
        try:
            weights, optimizer = cpu_copy(weights), cpu_copy(optimizer)
        except (RuntimeError, MemoryError):  # too little memory for a copy
            beside = False

    to_disk: Callable[..., Path] = save_checkpoint if writers is None else partial(save_shards, writers=writers)

    def write() -> None:
        start, tensors = time.monotonic(), {"weights": weights, "optimizer": optimizer}
        to_disk(
            run.checkpoints, step, config=run.model_config, **tensors, state=state, extra=run.model_files, run_id=run_id
        )
        run.seconds_of_writing = time.monotonic() - start
        if run.updater.replica.main:
            delete_old(run, step)

    if beside:
        run.journal.hold()
        run.writer.start(step, write)
    else:
        write()
        append_event(run, step)


def finish_writing(run: Run, *, wait: bool = False) -> None:
    """Write the event of the checkpoint that was written in a thread, once it is; with `wait`, wait for it.
    Raises CheckpointError: it could not be written.
    """
    if run.writer.step is None or not (wait or run.writer.done):
        return
    step = run.writer.step
    try:
        run.writer.wait()
        append_event(run, step)
    finally:
        run.journal.release()


def append_event(run: Run, step: int) -> None:
    """Write the event of a checkpoint, if it is not there yet, before the events that are held back."""
    if not run.journal.has_checkpoint(step):
        run.journal.append({"event": "checkpoint", "step": step}, held=False)


def delete_old(run: Run, step: int) -> None:
    """Delete old checkpoints beyond `keep`; `step` is that of the newest.
    Raises CheckpointError: a checkpoint cannot be read.
    """
    config, every = run.config, run.config.checkpoint_every
    # the checkpoints to average at the end are kept, in addition to those of signals and best scores
    averaged = {(step // every - back) * every for back in range(config.average)}  # the last `average` scheduled ones
    prune(run.checkpoints, max(config.keep, config.average), averaged, run_id=str(run.identity["run_id"]))


def finish_save(run: Run) -> None:
    """Make up for what a kill may have cut off behind the newest checkpoint: its event and the deletion of old ones.
    Raises CheckpointError: a checkpoint cannot be read.
    """
    if run.updater.replica.main:
        append_event(run, run.progress.step)
        delete_old(run, run.progress.step)


def restore(run: Run, path: Path, *, continues: bool = True) -> dict[str, Any]:
    """Load weights, optimizer state and progress from a checkpoint; the caller cuts the journal to its step.

    A run that `continues` has the teachers of the checkpoint; a branch may have others.

    Returns:
        The state of the checkpoint.

    Raises CheckpointError: the checkpoint is damaged. TokenizerError: it was trained with another tokenizer than the
    run has now. UsageError: it was written by a version with other tensor names, or learned from another teacher.
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
    if continues and checkpoint.state.get("teachers") != run.identity.get("teachers"):
        raise UsageError(
            f"{path} was trained with another teacher, or its weights have changed: put them back, or start over with "
            "--force"
        )
    run.updater.load(checkpoint.weights, checkpoint.optimizer)
    run.progress = TrainerState.from_dict(checkpoint.state | {"score": checkpoint.state.get("last_score")})
    step, steps = checkpoint.step, checkpoint.state.get("steps")
    if steps is not None and steps != run.steps and step < run.steps:
        zero_at = run.progress.zero_at
        before, now = (learning_rate(run.config, step + 1, count, zero_at=zero_at) for count in (steps, run.steps))
        if before != now:
            run.reporter.line(
                f"warning: the run had {counted(steps, 'step')} and has {counted(run.steps, 'step')} now: with the "
                f"schedule {run.config.schedule}, the learning rate of step {step + 1:,} is {now:.2e} instead of "
                f"{before:.2e}"
            )
    if run.updater.noise is not None:
        run.updater.noise.sums = dict(run.progress.noise)
    if run.updater.loss_scale is not None:
        run.updater.loss_scale = LossScale(**checkpoint.state.get("loss_scale", {}))  # of a run in another type: none
    return checkpoint.state


def restore_weights(run: Run, path: Path) -> int:
    """Load weights and optimizer state alone from a checkpoint of the run, and return its step.
    Raises CheckpointError: the checkpoint is damaged.
    """
    checkpoint = load_checkpoint(path)
    run.updater.load(checkpoint.weights, checkpoint.optimizer)
    return checkpoint.step
