"""The learned position tables of a run after training: updates, tokens, norm and movement of each position.

See docs/notes.md#b3.
"""

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from atento.attention.positions import Learned
from atento.base.errors import UsageError
from atento.config.reading.loading import load_recipe
from atento.data.batches.batch import Batch
from atento.models.load import read_model
from atento.networks import build_network
from atento.networks.build import own_draws
from atento.runs.prepare import read_data, training_batches
from atento.storage.checkpoint_list import newest
from atento.text.tokenizer import Tokenizer


@dataclass(frozen=True)
class PositionTable:
    """One learned table after training, a number for each position from 0 on."""

    name: str  # name of the table in the network,  `source_inputs.positions.schemes.0`
    side: str  # the side of the positions: "source", "target" or "text"
    step: int  # updates made
    updates: list[int]  # how many of them had a text that reaches the position
    tokens: list[int]  # real tokens at each position, over all updates
    norms: list[float]  # length of the position's vector
    # distance of each vector from its initial value; None if the run started from another model
    moved: list[float] | None

    @property
    def unreached(self) -> int:
        """The number of positions that no training text reached; their vectors are random."""
        return sum(count == 0 for count in self.updates)

    def to_dict(self) -> dict[str, Any]:
        """Return the table as plain data."""
        return asdict(self) | {"unreached": self.unreached}

    def __str__(self) -> str:
        """Format one line for each position of a short table, or for each group of positions of a long one (means)."""
        lines = [f"{self.name} ({self.side}), {self.step:,} updates; {self.unreached} positions were never reached"]
        lines.append(f"{'positions':>11} {'updates':>9} {'tokens':>11} {'norm':>8}" + " moved by" * bool(self.moved))
        size = max(1, -(-len(self.updates) // 32))  # at most 32 lines
        for start in range(0, len(self.updates), size):
            rows = slice(start, start + size)
            last = min(start + size, len(self.updates)) - 1
            cells = [np.mean(of[rows]) for of in (self.updates, self.tokens, self.norms)]
            label = f"{start}" if last == start else f"{start}-{last}"
            text = f"{label:>11} {cells[0]:>9.0f} {cells[1]:>11.0f} {cells[2]:>8.4f}"
            lines.append(text if self.moved is None else f"{text} {np.mean(self.moved[rows]):>8.4f}")
        return "\n".join(lines)


def position_report(run: str | Path) -> list[PositionTable]:
    """Return the learned position tables of a run, from its last checkpoint.

    The run's recipe is read again and the batches of all `step` updates are built again; no network is run.

    Args:
        run: a run folder, finished or not.

    Raises UsageError: not a run with a checkpoint, or a network without a learned table. DataError, RecipeError: the
    training data cannot be read as they were.
    """
    folder = Path(run)
    path = newest(folder / "checkpoints", rename_damaged=False) if (folder / "checkpoints").is_dir() else None
    if path is None:
        raise UsageError(f"{folder} is not a run with a checkpoint")
    model_files = read_model(path)
    config = model_files.network_config
    if not any(scheme.kind == "learned" for scheme in config.schemes):
        kinds = ", ".join(scheme.kind for scheme in config.schemes) or "none"
        raise UsageError(f"the network of {folder} has no learned positions: its schemes are {kinds}")
    loaded = load_recipe(folder)
    recipe = loaded.recipe
    step = int(path.name.rpartition("-")[2])
    data = read_data(recipe, loaded.folder, _silent)
    batches = training_batches(recipe, config, Tokenizer.load(folder / "tokenizer"), data.train, _silent)
    with own_draws(recipe.training.seed):  # the same initial weights as the run
        network = build_network(config)
    first = {name: table.detach().clone() for name, table in learned_tables(network)}
    network.load_state_dict(model_files.weights)
    none = np.zeros(config.max_len, dtype=np.int64)  # later positions are not counted
    counts: dict[str, tuple[NDArray[np.int64], NDArray[np.int64]]] = {}  # updates and tokens that reached each position
    for update in range(step):
        token_counts: dict[str, NDArray[np.int64]] = {}
        for part in batches.parts(update):
            for side, positions_of_tokens in _real_positions(part.batch):
                found = torch.bincount(positions_of_tokens, minlength=len(none))[: len(none)].numpy()
                token_counts[side] = token_counts.get(side, 0) + found
        for side, found in token_counts.items():
            updates, tokens = counts.get(side, (none, none))
            counts[side] = updates + (found > 0), tokens + found  # an update counts once a position
    tables = []
    for name, after in learned_tables(network):
        side = "target" if name.startswith(("target", "decoder")) else "source"
        side = "text" if "text" in counts else side
        updates, tokens = counts[side]
        moved = None if recipe.init is not None else (after.detach() - first[name]).norm(dim=1).tolist()
        norms = after.detach().norm(dim=1).tolist()
        tables.append(PositionTable(name, side, step, updates.tolist(), tokens.tolist(), norms, moved))
    return tables


def learned_tables(network: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """The learned tables of a network by name, (positions,D) each; without rows before position 0."""
    for name, module in network.named_modules():
        if isinstance(module, Learned) and not name.startswith("source_features."):
            yield name, module.weight[module.shift :]


def _real_positions(batch: Batch) -> Iterator[tuple[str, Tensor]]:
    """Yield the positions of the real tokens of each side of a batch."""
    for name in batch.inputs:
        if name == "ids" or (name.endswith("_ids") and name not in ("position_ids", "segment_ids")):
            real = batch.real(name)
            positions = torch.arange(real.shape[1]).expand_as(real)
            side = name.removesuffix("_ids") if name != "ids" else "text"
            yield side, (batch.inputs.get("position_ids", positions) if side == "text" else positions)[real]


def _silent(text: str) -> None:
    """Ignore messages; they were reported when the run was trained."""
