"""Start a new run at a checkpoint of another run: `--from RUN@STEP`."""

from dataclasses import dataclass, replace
from pathlib import Path

from atento.base.errors import UsageError
from atento.config.reading.loading import load_recipe
from atento.config.sections.initial import LoraConfig
from atento.config.sections.network import NetworkConfig
from atento.config.sections.network_parts import by_key
from atento.models.migration import migrated
from atento.models.model_folder import lora_config, network_config
from atento.runs.run_record import is_run
from atento.storage.checkpoint import load_checkpoint
from atento.storage.checkpoint_list import best, list_checkpoints, newest
from atento.storage.manifest import read_manifest
from atento.training.run_state import Run, TrainerState, restore, save

_MAY_DIFFER = ("dropout", "attention.dropout", "feed_forward.dropout")  # keys of the network


@dataclass(frozen=True)
class BranchPoint:
    """A checkpoint of another run that a new run begins at."""

    name: str  # the checkpoint as the user named it, "RUN@STEP"
    path: Path  # folder of the checkpoint
    step: int  # its step
    run_id: str  # id of the other run

    def to_dict(self) -> dict[str, str | int]:
        """Return what `run.json` stores of it."""
        return {"run_id": self.run_id, "step": self.step}


def branch_point(name: str) -> BranchPoint:
    """Find the checkpoint that "RUN@STEP" names; STEP is a number, `best` or `last`.
    Raises UsageError: the name has another form, there is no such run, or no such checkpoint in it. CheckpointError:
    the manifest of the checkpoint is damaged.
    """
    run, at, step = name.rpartition("@")
    if not at or not run or not (step.isdecimal() or step in ("best", "last")):
        raise UsageError(f"--from must be RUN@STEP, such as runs/mine@500, runs/mine@best or @last: got {name!r}")
    if not is_run(Path(run)):
        raise UsageError(f"--from {name}: {run} is not a run")
    folder = Path(run) / "checkpoints"
    path: Path | None = folder / f"step-{int(step):08d}" if step.isdecimal() else None
    if not step.isdecimal():
        # read only: the other run may be training
        path = (best if step == "best" else newest)(folder, rename_damaged=False)
    if path is None or not path.is_dir():
        steps = ", ".join(str(item.step) for item in reversed(list_checkpoints(folder))) or "none"
        raise UsageError(f"--from {name}: there is no such checkpoint; there are those of steps: {steps}")
    manifest = read_manifest(path)
    return BranchPoint(name, path, manifest.step, manifest.run_id)


def check_network(point: BranchPoint, network: NetworkConfig, lora: LoraConfig | None) -> None:
    """Check that the checkpoint has the network of the recipe and its adapters; only dropout may differ.
    Raises UsageError: another network; the message names the difference.
    """
    config = migrated(load_checkpoint(point.path).config, {}, str(point.path))[0]
    if lora_config(config, point.path) != lora:
        raise UsageError(f"--from {point.name}: its adapters are not those of the recipe's `init.lora`")
    checkpoint_values = by_key(network_config(config, point.path))
    different = [
        f"network.{key}: {checkpoint_values[key]} -> {value}"
        for key, value in by_key(network).items()
        if key not in _MAY_DIFFER and checkpoint_values[key] != value
    ]
    if different:
        raise UsageError(
            f"--from {point.name}: its network is not the recipe's: {'; '.join(different[:3])}"
            f"{' ...' if len(different) > 3 else ''}"
        )


def check_optimizer(point: BranchPoint, optimizer: str) -> None:
    """Check that the other run was trained with the same optimizer, whose state the new run continues.
    Raises UsageError: another optimizer.
    """
    before = load_recipe(point.path.parent.parent / "recipe.yaml", environment={}).recipe.training.optimizer
    if before != optimizer:
        raise UsageError(
            f"--from {point.name}: its optimizer state is that of {before}, and `training.optimizer` is {optimizer}: "
            f"use {before}, or start from its weights alone with `init`"
        )


def begin_at(run: Run, point: BranchPoint) -> None:
    """Load weights, optimizer state and step of the checkpoint, and save them as the first checkpoint of the run.

    The position in the data follows from the step. The best score of the other run is not taken over, since its weights
    stay in that run.
    Raises UsageError: `training.steps` is not above the step of the checkpoint. CheckpointError: the checkpoint is
    damaged or cannot be saved.
    """
    if point.step >= run.steps:
        raise UsageError(f"--from {point.name}: `training.steps` must be above {point.step}: got {run.steps}")
    restore(run, point.path, continues=False)
    progress = run.progress
    begun = {"step", "interval", "noise", "loss_scale", "skipped", "skipped_in_row", "splits"}
    run.progress = replace(TrainerState(), **{name: getattr(progress, name) for name in begun})
    save(run)
