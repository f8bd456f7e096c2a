"""The plan of a run before its first step: parameters, updates, memory by part, computation, time."""

import math
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from itertools import islice
from typing import Any

import torch

from atento.attention.dropout import Randomness
from atento.base.precision import side_by_side, training_precision
from atento.config.reading.loading import LoadedRecipe
from atento.config.reading.sizes_by_data import FITTED
from atento.config.recipe import Recipe
from atento.config.sections.network import NetworkConfig
from atento.config.sections.training import TrainingConfig
from atento.data.batches.batch import Batches, Part
from atento.networks import build_network, parameter_count
from atento.networks.build import own_draws
from atento.networks.interface import Network
from atento.runs.fine_tuning import tune
from atento.runs.prepare import fitted_to, read_data, steps_of, tokenizer_and_network, training_batches
from atento.runs.sharded import check_sharded
from atento.training.allocator import KERNEL_BYTES, KERNELS, KERNELS_OF_NEW_SHAPES, PeakMemory, resident
from atento.training.losses import Call, losses
from atento.training.optimizer import TrainedWeights, all_weights, hidden_matrices
from atento.training.replica.sharded_weights import gathered_sizes
from atento.training.step import DTYPES, MAX_WORKERS, recompute

_MEASURED = 100_000_000  # parameters of a network that is measured as it is
_COUNTED = 32  # updates whose shapes are counted
_FEWEST_PARTS, _MOST_PARTS = 64, 256  # of an epoch, whose shapes are compared
_QUICK = 3.0  # seconds: a first pass that is shorter spends much of it on compiling kernels, so a second one is timed


@dataclass(frozen=True)
class Plan:
    """The plan of a run; sizes in bytes."""

    parameters: int  # number of parameters
    trained: int  # number of parameters that are trained
    steps: int  # updates
    updates_per_epoch: float  # updates in a pass over the training data
    tokens_per_update: int  # real targets of the first update
    parts: int  # parts of the first update, which several processes share
    outside_blocks: int  # number of parameters that are gathered for the whole pass where weights are sharded
    largest_block: int  # number of parameters of the largest block
    # bytes by part; `activations` are those of the parts that are computed at the same time, with their gradients
    memory: dict[str, int]
    # floating-point operations of an update: 6 for each trained weight of a matrix and each token that it reads, with
    # the tokens of the first update, with R-Drop twice (Kaplan et al. 2020, 2.1); attention scores are left out
    flops_per_update: float
    seconds_per_update: float  # a first estimate, from the forward and backward pass of one part

    @property
    def total(self) -> int:
        """Bytes of all parts."""
        return sum(self.memory.values())

    def sentence(self, targets: str) -> str:
        """Return the memory in a line; `targets` is the noun for the targets of an update."""
        largest = sorted(self.memory.items(), key=lambda item: -item[1])[:3]
        parts = ", ".join(f"{name} {size / 2**20:,.0f}" for name, size in largest)
        return (
            f"estimate: {self.total / 2**20:,.0f} MiB of memory ({parts} ...) at {self.tokens_per_update:,} {targets} "
            "an update"
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the plan as plain data."""
        return asdict(self) | {"total": self.total}


def plan_recipe(loaded: LoadedRecipe, device: str, threads: int, report: Callable[[str], None]) -> Plan:
    """Return the plan of a recipe on one device; reads the data, and makes the tokenizer if it has no path.
    Raises RecipeError, DataError, UsageError: as training would.
    """
    data = read_data(loaded.recipe, loaded.folder, report)
    if keys := [key for key, origin in loaded.origins.items() if origin == FITTED]:
        loaded = replace(loaded, recipe=fitted_to(loaded.recipe, keys, data.train)[0])
    recipe, training = loaded.recipe, loaded.recipe.training
    tokenizer, config = tokenizer_and_network(loaded, data.train, report)
    with torch.device("meta"):
        check_sharded(recipe, build_network(config), None)
    batches = training_batches(recipe, config, tokenizer, data.train, report)
    return plan_run(recipe, config, batches, training_precision(training.precision, device), device, threads)


def plan_run(
    recipe: Recipe,
    config: NetworkConfig,
    batches: Batches,
    precision: str,
    device: str,
    threads: int,
    *,
    built: bool = False,
) -> Plan:
    """Return the plan of a prepared run. PyTorch's random numbers are the same before and after.

    Args:
        config: configuration of its network.
        precision: "float32", "bfloat16" or "float16".
        device: "cpu", "cuda" or a device with its number.
        built: whether the process has the weights of the run already.
    """
    training = recipe.training
    program = resident()
    with own_draws():
        with torch.device("meta"):
            network = build_network(config)
            trained = tune(recipe, network, batches.updates_per_epoch)
        parts = list(batches.parts(0, training.micro_batches))
        read_by_part = [sum(int(lengths.sum()) for lengths in part.batch.lengths.values()) for part in parts]
        largest = read_by_part.index(max(read_by_part))
        concurrent = min(len(parts), threads, MAX_WORKERS) if device == "cpu" else 1
        peak, products, seconds = measured(
            *(recipe, config, parts[largest], batches.updates_per_epoch, precision, device), concurrent
        )
    steps = steps_of(training, batches)
    share = sum(read_by_part) / max(1, read_by_part[largest])  # the update in units of the measured part
    if training.minutes is not None:
        in_time = max(1, int(60 * training.minutes / max(1e-9, seconds * share)))
        steps = min(steps, in_time) if training.epochs is not None else in_time
    memory = memory_of_weights(network, training, trained, precision)
    memory["activations"] = concurrent * peak
    if device == "cpu":
        ours = ("weights", "weights in 16 bits", "moving average") if built else ()
        if precision != "float32":  # float32 products are computed by other libraries
            cached = KERNELS_OF_NEW_SHAPES if new_shapes(batches, training.micro_batches) else KERNELS
            kernels = min(cached, products * shapes(batches, steps, training.micro_batches))
            memory["compiled kernels"] = kernels * KERNEL_BYTES
        # the pass has loaded more of the program; memory that it has freed is used again
        program = max(program, resident() - peak - memory["weights"])
        memory["program and data"] = max(0, program - sum(memory.get(name, 0) for name in ours))
    outside_blocks, largest_block = gathered_sizes(network)
    return Plan(
        parameters=parameter_count(network),
        trained=sum(p.numel() for name, p in network.named_parameters() if name in trained.begins),
        steps=steps,
        updates_per_epoch=batches.updates_per_epoch,
        tokens_per_update=sum(count for part in parts for count in part.batch.counts().values()),
        parts=len(parts),
        outside_blocks=outside_blocks,
        largest_block=largest_block,
        memory=memory,
        flops_per_update=flops_of_update(network, trained, sum(read_by_part) * (2 if training.r_drop else 1)),
        seconds_per_update=seconds * share,
    )


def flops_of_update(network: Network, trained: TrainedWeights, read: int) -> float:
    """Return the floating-point operations of an update that reads so many tokens (see `Plan`)."""
    matrices = sum(p.numel() for name, p in network.named_parameters() if p.dim() > 1 and name in trained.begins)
    return 6.0 * matrices * read


def shapes(batches: Batches, steps: int, micro_batches: int) -> int:
    """Return the number of different shapes among the parts of the first 32 updates."""
    updates = min(steps, _COUNTED, math.ceil(batches.updates_per_epoch))
    return len({_shape(part) for update in range(updates) for part in batches.parts(update, micro_batches)})


def new_shapes(batches: Batches, micro_batches: int) -> bool:
    """Return whether more than half of the first parts of an epoch have another shape than those before.

    256 parts are looked at, or as many as the epoch has; fewer than 64 soon come again.
    """
    updates = range(math.ceil(batches.updates_per_epoch))
    parts = (_shape(part) for update in updates for part in batches.parts(update, micro_batches))
    first = list(islice(parts, _MOST_PARTS))
    return len(first) >= _FEWEST_PARTS and 2 * len(set(first)) > len(first)


def _shape(part: Part) -> tuple[tuple[int, ...], ...]:
    return tuple(tuple(value.shape) for value in part.batch.inputs.values())


def memory_of_weights(
    network: Network, config: TrainingConfig, trained: TrainedWeights, precision: str
) -> dict[str, int]:
    """Return the bytes of weights, summed gradients, the optimizer's state and copies, which follow from shapes."""
    parameters = dict(network.named_parameters())
    all_bytes = 4 * sum(p.numel() for p in parameters.values())  # float32, whatever the precision
    ours = {name: p for name, p in parameters.items() if name in trained.begins}
    trained_bytes = 4 * sum(p.numel() for p in ours.values())  # of the first stage on: all that are ever trained
    # the bytes of the optimizer's state of some weights, its step counters included
    hidden = set(hidden_matrices(network)) if config.optimizer == "muon" else set()
    state = 0
    for name, parameter in ours.items():
        if name in hidden:
            state += 4 * parameter.numel()
        elif config.optimizer != "adafactor":
            state += 4 + 8 * parameter.numel()
        elif parameter.dim() > 1:  # a value for each row and each column of a matrix
            state += 4 + 4 * (parameter.numel() // parameter.shape[-1] + parameter.numel() // parameter.shape[-2])
        else:
            state += 4 + 4 * parameter.numel()
    memory = {"weights": all_bytes, "gradients": trained_bytes, "optimizer": state}
    if precision != "float32":
        memory["weights in 16 bits"] = all_bytes // 2
    if config.ema:
        memory["moving average"] = trained_bytes
    if config.async_checkpoints:
        memory["copy for a checkpoint"] = all_bytes + state + (trained_bytes if config.ema else 0)
    return memory


def measured(
    recipe: Recipe,
    config: NetworkConfig,
    part: Part,
    updates_per_epoch: float,
    precision: str,
    device: str,
    concurrent: int,
) -> tuple[int, int, float]:
    """Return the most bytes that a pass of a part, forward and backward, holds beside the weights, the number
    of its matrix products of different shapes, and its seconds where so many parts are computed at the same time.

    The weights are random. A network of more than 100 million parameters is measured with one layer a stack, and with
    two in each stack; the differences are multiplied by the others.
    """

    def of(config: NetworkConfig, tuned: bool) -> tuple[int, int, float]:
        network = build_network(config)
        trained = tune(recipe, network, updates_per_epoch) if tuned else all_weights(network)
        return _pass(network.to(device, DTYPES[precision]).train(), trained, part, recipe.training, concurrent)

    if device != "cpu" and not torch.cuda.is_available():  # the plan of another machine
        device = "cpu"
    with torch.device("meta"):
        small = parameter_count(build_network(config)) <= _MEASURED
    if small or config.n_layers <= 2:
        return of(config, tuned=True)
    shallow = replace(config, n_layers=1, n_decoder_layers=config.n_decoder_layers and 1)
    deeper = [(config.n_layers, replace(shallow, n_layers=2))]  # both stacks, where the decoder has no depth of its own
    if config.n_decoder_layers is not None:
        deeper.append((config.n_decoder_layers, replace(shallow, n_decoder_layers=2)))
    first = peak, products, seconds = of(shallow, tuned=False)
    for depth, one_more in deeper:
        more = of(one_more, tuned=False)
        peak += (depth - 1) * (more[0] - first[0])
        products += (depth - 1) * (more[1] - first[1])
        seconds += (depth - 1) * max(0.0, more[2] - first[2])
    return peak, products, seconds


def _pass(
    network: Network, trained: TrainedWeights, part: Part, training: TrainingConfig, concurrent: int
) -> tuple[int, int, float]:
    """The peak, the products and the seconds of the pass of a part.

    The time is that of parts side by side, each on its share of the threads, as training computes them.
    """
    if training.activation_checkpointing:
        recompute(network)
    names = trained.names(1)  # those of the first stage
    for name, parameter in network.named_parameters():
        parameter.requires_grad_(name in names)
    weights = [parameter for parameter in network.parameters() if parameter.requires_grad]
    batch = part.batch.to(next(network.parameters()).device)

    def compute() -> float:
        begun = time.perf_counter()
        call = Call(Randomness(training.seed, 1), training.label_smoothing, 1, r_drop=training.r_drop)
        total = torch.stack([loss for loss, _ in losses(network, batch, call).values()]).sum()
        gradients = torch.autograd.grad(total, weights, allow_unused=True)
        if total.is_cuda:
            torch.cuda.synchronize()
        del gradients
        return time.perf_counter() - begun

    tensors = [*network.state_dict().values(), *batch.inputs.values(), *batch.labels.values()]
    with PeakMemory(tensors) as memory:
        seconds = compute()
    if seconds < _QUICK and concurrent > 1:
        with side_by_side(concurrent, torch.get_num_threads() // concurrent) as pool:
            begun = time.perf_counter()
            list(pool.map(lambda _: compute(), range(concurrent)))
            seconds = (time.perf_counter() - begun) / concurrent  # of one part
    elif seconds < _QUICK:
        seconds = compute()
    return memory.peak, len(memory.products), seconds
