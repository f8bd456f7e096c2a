"""The plan of a run before it starts: parameters, updates, memory by part, computation."""

import os
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from atento.attention.dropout import Randomness
from atento.config.fitting import FITTED
from atento.config.loading import LoadedRecipe
from atento.config.network import NetworkConfig
from atento.config.training import TrainingConfig
from atento.data.batches import Batches
from atento.networks import build_network, parameter_count
from atento.networks.network import Network
from atento.precision import best_precision
from atento.runs.fitting import fitted_to
from atento.runs.prepare import Data, read_data, tokenizer_and_network, training_batches
from atento.runs.tuning import tune
from atento.training.losses import Call, losses
from atento.training.optimizer import hidden_matrices
from atento.training.step import DTYPES, MAX_WORKERS, recompute
from atento.training.trained import TrainedWeights

_MEASURED = 100_000_000  # parameters of a network whose activations are measured as it is


@dataclass(frozen=True)
class Plan:
    """The plan of a run; sizes in bytes.

    Attributes:
        parameters: number of parameters.
        trained: number of parameters that are trained.
        steps: updates.
        updates_per_epoch: updates in a pass over the training data.
        tokens_per_update: real targets of the first update.
        parts: parts of the first update, which several processes share.
        memory: bytes by part.
        flops_per_update: floating-point operations of an update: 6 for each trained weight of a matrix and each token
            that it reads, with the tokens of the first update (Kaplan et al. 2020, 2.1); attention scores are left out.
    """

    parameters: int
    trained: int
    steps: int
    updates_per_epoch: float
    tokens_per_update: int
    parts: int
    memory: dict[str, int]
    flops_per_update: float

    @property
    def total(self) -> int:
        """Bytes of all parts."""
        return sum(self.memory.values())

    def to_dict(self) -> dict[str, Any]:
        """Return the plan as plain data."""
        return asdict(self) | {"total": self.total}


def plan_run(loaded: LoadedRecipe, device: str, threads: int, report: Callable[[str], None]) -> Plan:
    """Return the plan of a recipe on one device; reads the data, and makes the tokenizer if it has no path.

    Raises:
        RecipeError, DataError, UsageError: as training would.
    """
    started = resident()
    data = read_data(loaded.recipe, loaded.folder, report)
    loaded = with_sizes(loaded, data)
    recipe = loaded.recipe
    tokenizer, config = tokenizer_and_network(loaded, data.train, report)
    batches = training_batches(recipe, config, tokenizer, data.train, report)
    with torch.device("meta"):
        network = build_network(config)
        trained = tune(recipe, network, batches.updates_per_epoch)
    training, precision = recipe.training, recipe.training.precision
    precision = best_precision(device) if precision == "auto" else precision
    parts = list(batches.parts(0, training.micro_batches))
    concurrent = min(len(parts), threads, MAX_WORKERS) if device == "cpu" else 1
    read_by_part = [sum(int(lengths.sum()) for lengths in part.batch.lengths.values()) for part in parts]
    largest = read_by_part.index(max(read_by_part))
    targets = sum(count for part in parts for count in part.batch.counts().values())
    steps = training.steps
    if training.epochs is not None:
        steps = max(1, round(training.epochs * batches.updates_per_epoch))
    memory = memory_of_weights(network, training, trained, precision)
    memory["activations"] = concurrent * activations(config, batches, largest, training, precision)
    memory["program and data"] = max(resident(), started) if device == "cpu" else 0
    matrices = sum(p.numel() for name, p in network.named_parameters() if p.dim() > 1 and name in trained.begins)
    return Plan(
        parameters=parameter_count(network),
        trained=sum(p.numel() for name, p in network.named_parameters() if name in trained.begins),
        steps=steps,
        updates_per_epoch=batches.updates_per_epoch,
        tokens_per_update=targets,
        parts=len(parts),
        memory=memory,
        flops_per_update=6.0 * matrices * sum(read_by_part),
    )


def with_sizes(loaded: LoadedRecipe, data: Data) -> LoadedRecipe:
    """Choose the sizes that the recipe leaves open, by the amount of training text, as training does."""
    keys = [key for key, origin in loaded.origins.items() if origin == FITTED]
    if not keys:
        return loaded
    recipe, _ = fitted_to(loaded.recipe, keys, data.train)
    return replace(loaded, recipe=recipe)


def memory_of_weights(
    network: Network, config: TrainingConfig, trained: TrainedWeights, precision: str
) -> dict[str, int]:
    """Return the bytes of weights, gradients, the optimizer's state and copies, which follow from shapes alone."""
    parameters = dict(network.named_parameters())
    all_bytes = 4 * sum(p.numel() for p in parameters.values())
    ours = {name: p for name, p in parameters.items() if name in trained.begins}
    trained_bytes = 4 * sum(p.numel() for p in ours.values())
    state = optimizer_bytes(network, config, ours)
    memory = {"weights": all_bytes, "gradients": trained_bytes, "optimizer": state}
    if precision == "bfloat16":
        memory["weights in bfloat16"] = all_bytes // 2
        memory["gradients"] += trained_bytes // 2  # those of a part, before they are added
    else:
        memory["gradients"] += trained_bytes
    if config.ema:
        memory["moving average"] = trained_bytes
    if config.async_checkpoints:
        memory["copy for a checkpoint"] = all_bytes + state + (trained_bytes if config.ema else 0)
    return memory


def optimizer_bytes(network: Network, config: TrainingConfig, trained: Mapping[str, Tensor]) -> int:
    """Return the bytes of the optimizer's state of some weights, its step counters included."""
    hidden = set(hidden_matrices(network)) if config.optimizer == "muon" else set()
    total = 0
    for name, parameter in trained.items():
        if name in hidden:
            total += 4 * parameter.numel()
        elif config.optimizer != "adafactor":
            total += 4 + 8 * parameter.numel()
        elif parameter.dim() > 1:  # a value for each row and each column of a matrix
            total += 4 + 4 * (parameter.numel() // parameter.shape[-1] + parameter.numel() // parameter.shape[-2])
        else:
            total += 4 + 4 * parameter.numel()
    return total


def activations(config: NetworkConfig, batches: Batches, part: int, training: TrainingConfig, precision: str) -> int:
    """Return the bytes that the forward pass of a part keeps for its backward pass: measured, on the CPU.

    A network of more than 100 million parameters is measured with one and with two layers a stack, and the
    difference is multiplied by the others.
    """
    with torch.device("meta"):
        small = parameter_count(build_network(config)) <= _MEASURED
    if small or config.n_layers <= 2:
        return _kept(config, batches, part, training, precision)
    kept = [_kept(_with_layers(config, count), batches, part, training, precision) for count in (1, 2)]
    return kept[0] + (config.n_layers - 1) * (kept[1] - kept[0])


def _with_layers(config: NetworkConfig, count: int) -> NetworkConfig:
    decoder_layers = None if config.n_decoder_layers is None else count
    return replace(config, n_layers=count, n_decoder_layers=decoder_layers)


def _kept(config: NetworkConfig, batches: Batches, number: int, training: TrainingConfig, precision: str) -> int:
    network = build_network(config).to(DTYPES[precision]).train()
    if training.activation_checkpointing:
        recompute(network)
    own = {value.untyped_storage().data_ptr() for value in network.state_dict().values()}
    sizes: dict[int, int] = {}
    tensors: list[Tensor] = []  # alive, so that no address is used twice

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            sizes[storage.data_ptr()] = storage.nbytes()
            tensors.append(tensor)
        return tensor

    batch = list(batches.parts(0, training.micro_batches))[number].batch
    call = Call(Randomness(training.seed, 1, number), training.label_smoothing, 1)
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        losses(network, batch, call)
    return sum(sizes.values())


def resident() -> int:
    """Return the memory of this process in bytes; 0 where the system does not say."""
    try:
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    except OSError:
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE")
