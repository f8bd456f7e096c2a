"""The state of the steps of a run."""

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import Any

from atento.config.reading.loading import LoadedRecipe
from atento.config.recipe import Recipe
from atento.config.sections.network import NetworkConfig
from atento.data.batches.batch import Batches
from atento.data.objectives.preparation import Teach
from atento.data.records.memory import MemoryRecords
from atento.models.load import ModelFiles
from atento.networks.interface import Network
from atento.runs.branch import BranchPoint
from atento.runs.prepare import Data
from atento.text.tokenizer import Tokenizer
from atento.training.optimizer import TrainedWeights
from atento.training.progress import Reporter
from atento.training.replica.local import Local, Replica


@dataclass
class Setup:
    """The state of the steps of a run; each step sets fields that later steps read.

    Attributes:
        loaded: the recipe, with the origin of each value.
        memory: records passed in Python, by split.
        branch: checkpoint of another run to begin at (`--from`).
        folder: the run folder, which is locked.
        device: "cpu", "cuda" or a device with its number.
        threads: CPU threads; None: as before, or as torch chooses.
        reporter: writes to the terminal and the log.
        files: closes files at the end of the command.
        share: share of the updates after which the run pauses; 1: it does not.
        replica: the processes that share each update; the first one writes the folder.
        data: records of all splits.
        identity: content of `run.json`.
        initial: the model that `init` names.
        features: the encoder of `network.features`, or a checkpoint of the run.
        teach: adds what the models that `teacher` names say of the training data.
        tokenizer: the run's tokenizer.
        config: configuration of the network.
        batches: the training data.
        network: the network with its first weights, on its device.
        trained: the weights that are trained, and from which update on.
    """

    loaded: LoadedRecipe
    memory: Mapping[str, MemoryRecords]
    branch: BranchPoint | None
    folder: Path
    device: str
    threads: int | None
    reporter: Reporter
    files: ExitStack
    share: Fraction = Fraction(1)
    initial: ModelFiles | None = None
    features: ModelFiles | None = None
    teach: Teach | None = None
    replica: Replica = field(default_factory=Local)
    data: Data = field(init=False)
    identity: dict[str, Any] = field(init=False)
    tokenizer: Tokenizer = field(init=False)
    config: NetworkConfig = field(init=False)
    batches: Batches = field(init=False)
    network: Network = field(init=False)
    trained: TrainedWeights = field(init=False)

    @property
    def recipe(self) -> Recipe:
        """The recipe, with the sizes that fit the data once these are read."""
        return self.loaded.recipe

    @property
    def begins_with_init(self) -> bool:
        """Whether `initial` is the model that the recipe names, not a checkpoint of the run."""
        return self.initial is not None and self.folder not in self.initial.path.parents

    def report(self, line: str) -> None:
        """Write a line to the terminal and the log."""
        self.reporter.line(line)
