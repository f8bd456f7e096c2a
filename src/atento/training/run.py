"""A prepared run and the state of its loop, which each checkpoint saves."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from atento.config.sections.training import TrainingConfig
from atento.data.batches.batch import Batches
from atento.storage.writer import CheckpointWriter
from atento.training.journal import Journal
from atento.training.losses import Sums
from atento.training.progress import Reporter
from atento.training.step import Updater

Validate = Callable[[], dict[str, float]]
Samples = Callable[[], list[dict[str, str]]]  # texts by name: input, output, reference


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
        noise: sums of the gradient noise scale since the last train event.
        loss_scale: the state of the loss scale of float16; empty in other types.
        skipped: updates that were not finite and have not changed the weights.
        skipped_in_row: such updates since the last one that was finite.
        splits: factor of `micro_batches` since memory ran out.
        zero_at: how many updates after the last one a decay of the rate reaches 0; 0 in runs of earlier versions.
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
    noise: dict[str, float] = field(default_factory=dict)
    loss_scale: dict[str, float] = field(default_factory=dict)
    skipped: int = 0
    skipped_in_row: int = 0
    splits: int = 1
    zero_at: int = 1

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "Progress":
        """Build the state from the result of `asdict`; other keys are ignored."""
        known = {name: data[name] for name in cls.__dataclass_fields__ if name in data}
        return cls(
            **{"zero_at": 0} | known | {"interval": {head: Sums(**sums) for head, sums in data["interval"].items()}}
        )


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
        writer: writes checkpoints while training continues.
        reporter: writes to the terminal and the log.
        samples: returns outputs for the first validation records, beside the references; None: the recipe asks for
            none.
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
    model_config: Mapping[str, object]
    model_files: Mapping[str, bytes]
    identity: Mapping[str, object]
    journal: Journal
    reporter: Reporter
    writer: CheckpointWriter = field(default_factory=CheckpointWriter)
    samples: Samples | None = None
    pause_at: int | None = None
    progress: Progress = field(default_factory=Progress)
    seconds_counted_at: float = field(default_factory=time.monotonic)

    @property
    def checkpoints(self) -> Path:
        """Folder of the checkpoints."""
        return self.folder / "checkpoints"
