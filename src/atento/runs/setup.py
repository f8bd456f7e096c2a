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
from atento.training.replica.local import Replica


@dataclass
class Setup:
    """The state of the steps of a run; each step sets fields that later steps read."""

    loaded: LoadedRecipe  # the recipe, with the origin of each value
    memory: Mapping[str, MemoryRecords]  # records passed in Python, by split
    branch: BranchPoint | None  # checkpoint of another run to begin at (`--from`)
    folder: Path  # the run folder, which is locked
    device: str  # "cpu", "cuda" or a device with its number
    threads: int | None  # CPU threads; None: as before, or as torch chooses
    reporter: Reporter  # writes to the terminal and the log
    files: ExitStack  # closes files at the end of the command
    share: Fraction = Fraction(1)  # share of the updates after which the run pauses; 1: it does not
    initial: ModelFiles | None = None  # the model that `init` names
    features: ModelFiles | None = None  # the encoder of `network.features`, or a checkpoint of the run
    teach: Teach | None = None  # adds what the models that `teacher` names say of the training data
    # the processes that share each update; the first one writes the folder
    replica: Replica = field(default_factory=Replica)
    parts: list["Setup"] = field(default_factory=list)  # of a recipe with several tasks, a setup for each
    data: Data = field(init=False)  # records of all splits
    identity: dict[str, Any] = field(init=False)  # content of `run.json`
    tokenizer: Tokenizer = field(init=False)  # the run's tokenizer
    config: NetworkConfig = field(init=False)  # configuration of the network
    batches: Batches = field(init=False)  # the training data
    network: Network = field(init=False)  # the network with its first weights, on its device
    trained: TrainedWeights = field(init=False)  # the weights that are trained, and from which update on

    @property
    def recipe(self) -> Recipe:
        """The recipe, with the sizes that fit the data once these are read."""
        return self.loaded.recipe

    @property
    def begins_with_init(self) -> bool:
        """Whether `initial` is the model that the recipe names, not a checkpoint of the run."""
        return self.initial is not None and self.folder not in self.initial.path.parents

    def report(self, line: str) -> None:
        """Write a line to the terminal and the log; of one of several tasks, with its name."""
        warning, head = "warning: " if line.startswith("warning: ") else "", self.recipe.head
        self.reporter.line(f"{warning}{head}: {line.removeprefix(warning)}" if head else line)
