"""The weights that a run trains, the schedules of their learning rate, optimizers and their state; loss scaling."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

import torch
from torch import Tensor

from atento.base.errors import RecipeError, TrainingError
from atento.config.sections.training import TrainingConfig
from atento.networks.interface import Network
from atento.networks.weight_depths import layer_depths

Parameters = Mapping[str, Tensor]  # by the names of the weights
Group = dict[str, Any]  # a parameter group: `params`, `scale` (the factor of its learning rate) and options
_LONGEST_WARMUP = 200  # updates, where the recipe leaves it open
FIRST_SCALE = 2.0**16
_BATCH_ELEMENTS = 1 << 20  # of matrices that Muon orthogonalizes together: they stay in the cache
DOUBLED_AFTER = 2000  # updates without an overflow, after which the factor doubles


@dataclass(frozen=True)
class TrainedWeights:
    """The weights that a run trains."""

    begins: Mapping[str, int]  # name of each trained weight -> the first update (from 1) that trains it
    scales: Mapping[str, float]  # name of each trained weight -> the factor of its learning rate

    def names(self, step: int) -> frozenset[str]:
        """The weights that the update of that number trains."""
        return frozenset(name for name, begin in self.begins.items() if begin <= step)


def all_weights(network: Network) -> TrainedWeights:
    """Every weight that needs a gradient, from the first update, at the whole learning rate."""
    names = [name for name, parameter in network.named_parameters() if parameter.requires_grad]
    return TrainedWeights(dict.fromkeys(names, 1), dict.fromkeys(names, 1.0))


@dataclass
class LossScale:
    """A power of two that the loss in float16 is multiplied by, and the gradient divided by, so that it keeps digits.

    Small gradients would otherwise be 0 (Micikevicius et al. 2018).
    """

    factor: float = FIRST_SCALE  # the present factor
    taken: int = 0  # updates since it changed
    overflows: int = 0  # updates that were skipped because a gradient was too large for float16

    def overflowed(self) -> bool:
        """Halve the factor after a gradient that is not finite; return whether the factor can have been the cause."""
        if self.factor <= 1:
            return False
        self.factor, self.taken, self.overflows = self.factor / 2, 0, self.overflows + 1
        return True

    def took(self) -> None:
        """Count an update without an overflow, and double the factor now and then: it finds the largest that fits."""
        self.taken += 1
        if self.taken == DOUBLED_AFTER:
            self.factor, self.taken = 2 * self.factor, 0


class Optimizer:
    """Updates the trained weights of a network by their gradients.

    Args:
        network: the network, on the device to train on.
        config: the section `training` of the recipe.
        trained: the weights to train, and the factors of their learning rates.
        parameters: the tensors to change, by the names of the weights: a shard of each; None: the weights themselves.

    Raises:
        RecipeError: the optimizer cannot train a network of this architecture.
    """

    def __init__(
        self, network: Network, config: TrainingConfig, trained: TrainedWeights, parameters: Parameters | None = None
    ) -> None:
        self.parameters: Parameters = dict(network.named_parameters()) if parameters is None else parameters
        self.optimizers = OPTIMIZERS[config.optimizer](network, config, trained, self.parameters)

    def step(self, rate: float) -> None:
        """Take one step at a learning rate.

        If memory runs out before anything has changed, the exception is raised as it is, and the step can be repeated.
        Raises TrainingError: memory ran out while the weights were changed.
        """
        tensors = [*self.parameters.values(), *self.tensors().values()]
        versions = [tensor._version for tensor in tensors]  # PyTorch counts the changes in place
        with_state = [set(map(id, optimizer.state)) for optimizer in self.optimizers]
        try:
            for optimizer in self.optimizers:
                for group in optimizer.param_groups:
                    group["lr"] = rate * group["scale"]  # a factor of one rate for all
                optimizer.step()
        except (RuntimeError, MemoryError) as error:
            if versions != [tensor._version for tensor in tensors]:
                raise TrainingError(
                    f"the optimizer failed while it changed the weights ({error}); run the same command to continue "
                    "from the last checkpoint"
                ) from error
            for optimizer, known in zip(self.optimizers, with_state):  # a state may be half made
                for parameter in [parameter for parameter in optimizer.state if id(parameter) not in known]:
                    del optimizer.state[parameter]
            raise

    def zero_grad(self) -> None:
        """Free the gradients."""
        for optimizer in self.optimizers:
            optimizer.zero_grad(set_to_none=True)

    def tensors(self) -> dict[str, Tensor]:
        """Return the state as tensors named `parameter.key`, for a checkpoint."""
        names = {id(parameter): name for name, parameter in self.parameters.items()}
        return {
            f"{names[id(parameter)]}.{key}": value
            for optimizer in self.optimizers
            for parameter, state in optimizer.state.items()
            for key, value in state.items()
        }

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Load what `tensors` returned; parameters that never had a gradient have no state."""
        states: dict[str, dict[str, Tensor]] = {}
        for full_name, value in tensors.items():
            name, _, key = full_name.rpartition(".")  # parameter.exp_avg, parameter.step
            states.setdefault(name, {})[key] = value
        for optimizer in self.optimizers:
            optimizer.state.clear()
            owned = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
            for name, parameter in self.parameters.items():
                if name in states and id(parameter) in owned:
                    copies = {key: value.to(parameter.device, copy=True) for key, value in states[name].items()}
                    optimizer.state[parameter] = copies


def parameter_groups(parameters: Mapping[str, Tensor], trained: TrainedWeights) -> list[Group]:
    """Return parameter groups: matrices with weight decay, vectors without; a pair for each factor of the rate.

    Each group has `scale`, the factor of its learning rate.
    """
    groups: list[Group] = []
    for scale in sorted(set(trained.scales.values()), reverse=True):  # the highest rate first
        ours = [parameter for name, parameter in parameters.items() if trained.scales.get(name) == scale]
        matrices = [parameter for parameter in ours if parameter.dim() > 1]  # decay is for what multiplies
        vectors = [parameter for parameter in ours if parameter.dim() <= 1]
        groups += [{"params": matrices, "scale": scale}] if matrices else []
        groups += [{"params": vectors, "scale": scale, "weight_decay": 0.0}] if vectors else []
    return groups


def _adamw(groups: Iterable[Group], config: TrainingConfig) -> torch.optim.Optimizer:
    return torch.optim.AdamW(
        groups, lr=config.learning_rate, betas=config.betas, weight_decay=config.weight_decay, fused=True
    )


def muon(
    network: Network, config: TrainingConfig, trained: TrainedWeights, parameters: Parameters
) -> list[torch.optim.Optimizer]:
    """Muon for the matrices of the layers, AdamW for the other weights: embeddings, heads, positions, biases, norms.

    Muon orthogonalizes the momentum of a matrix (Jordan et al. 2024). Its step is scaled to the root mean square of a
    step of AdamW, so that both have one learning rate and one weight decay (Liu et al. 2025, Muon is Scalable, 2.2).
    Raises RecipeError: the layers of the network have no matrices that are trained.
    """
    hidden = {name: parameters[name] for name in hidden_matrices(network) if name in trained.scales}
    if not hidden:
        raise RecipeError(
            f"`training.optimizer` muon: a network of architecture {network.config.architecture!r} has no matrices in "
            "layers to train; use adamw"
        )
    others = {name: parameter for name, parameter in parameters.items() if name not in hidden}
    optimizers: list[torch.optim.Optimizer] = [
        BatchedMuon(
            parameter_groups(hidden, trained),
            lr=config.learning_rate,
            weight_decay=config.weight_decay,
            adjust_lr_fn="match_rms_adamw",
        )
    ]
    groups = parameter_groups(others, trained)
    return [*optimizers, _adamw(groups, config)] if groups else optimizers


class BatchedMuon(torch.optim.Muon):
    """PyTorch's Muon with Nesterov's momentum and "match_rms_adamw", faster for small matrices, and the same step.

    Matrices of one shape are orthogonalized together.
    """

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """Take one step by the gradients."""
        for group in self.param_groups:
            alike: dict[tuple[int, ...], list[tuple[Tensor, Tensor]]] = {}  # by shape: parameters and their gradients
            for parameter in group["params"]:
                if parameter.grad is not None:
                    alike.setdefault(tuple(sorted(parameter.shape)), []).append((parameter, parameter.grad))
            for (rows, columns), pairs in alike.items():
                count = max(1, _BATCH_ELEMENTS // (rows * columns))
                for first in range(0, len(pairs), count):
                    self._step_together(group, pairs[first : first + count], rows)

    def _step_together(self, group: Group, pairs: Sequence[tuple[Tensor, Tensor]], rows: int) -> None:
        directions = []
        for parameter, gradient in pairs:
            state = self.state[parameter]
            momentum = state.get("momentum_buffer")
            if momentum is None:
                momentum = state["momentum_buffer"] = torch.zeros_like(gradient)
            momentum.lerp_(gradient, 1 - group["momentum"])
            direction = gradient.lerp(momentum, group["momentum"]).bfloat16()  # Nesterov's
            directions.append(direction if len(parameter) == rows else direction.T)  # no more rows than columns
        # about the nearest matrices with orthogonal rows to matrices (R,C), R <= C, by Newton-Schulz: (N,R,C)
        a, b, c = group["ns_coefficients"]
        norms = torch.stack([matrix.norm() for matrix in directions])
        x = torch.stack(directions) / norms.clamp(min=group["eps"])[:, None, None]  # no singular value above 1
        for _ in range(group["ns_steps"]):
            gram = x @ x.mT
            x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
        for (parameter, _), direction in zip(pairs, x):
            parameter.mul_(1 - group["lr"] * group["weight_decay"])
            factor = 0.2 * math.sqrt(max(parameter.shape))  # the root mean square of a step of AdamW
            parameter.add_(direction if len(parameter) == rows else direction.T, alpha=-group["lr"] * factor)


def hidden_matrices(network: Network) -> list[str]:
    """Return the names of the matrices of a network's layers, without tables of positions."""
    levels = layer_depths(network)
    return [
        name
        for name, parameter in network.named_parameters()
        if 1 <= levels.of[name] <= levels.layers and parameter.dim() == 2 and "positions." not in name
    ]


MakesOptimizers = Callable[[Network, TrainingConfig, TrainedWeights, Parameters], list[torch.optim.Optimizer]]
OPTIMIZERS: dict[str, MakesOptimizers] = {
    # Loshchilov & Hutter 2019
    "adamw": lambda network, config, trained, parameters: [_adamw(parameter_groups(parameters, trained), config)],
    # no first moment; the second one of a matrix as the product of a column and a row. A step changes a tensor by about
    # `learning_rate` times its root mean square (Shazeer & Stern 2018)
    "adafactor": lambda network, config, trained, parameters: [
        torch.optim.Adafactor(
            parameter_groups(parameters, trained), lr=config.learning_rate, weight_decay=config.weight_decay
        )
    ],
    "muon": muon,
}


# (share of the steps after the warm-up that is done, step, section of the recipe) -> factor of the learning rate
SCHEDULES: dict[str, Callable[[float, int, TrainingConfig], float]] = {
    # √(warmup / step), which is 1 at the end of the warm-up (Vaswani et al. 2017, 5.3); also without one, from step 1
    "inverse-sqrt": lambda progress, step, config: math.sqrt(max(1, config.warmup or 0) / max(step, 1)),
    # half a cosine, from 1 to 0 (Loshchilov & Hutter 2017)
    "cosine": lambda progress, step, config: 0.5 * (1 + math.cos(math.pi * progress)),
    "linear": lambda progress, step, config: 1 - progress,
    "constant": lambda progress, step, config: 1.0,
    # 1, then a straight line to 0 in the last share `decay` (warm-up, stable, decay; Hu et al. 2024, MiniCPM, 4.2)
    "wsd": lambda progress, step, config: min(1.0, (1 - progress) / config.decay),
}


def warmup_steps_of(config: TrainingConfig, steps: int) -> int:
    """Return the updates of warm-up in a run of `steps` updates: those of the recipe, else a fifth, at most 200."""
    return min(_LONGEST_WARMUP, steps // 5) if config.warmup is None else config.warmup  # a fifth of a short run


def learning_rate(config: TrainingConfig, step: int, steps: int, *, zero_at: int = 1) -> float:
    """Return the learning rate of an update: linear warm-up, then the schedule.

    The last update of a decay to 0 learns too, as in transformers.

    Args:
        config: the section of the recipe.
        step: number of the update, from 1.
        steps: updates of the run.
        zero_at: how many updates after the last one a decay reaches 0.
    """
    warmup = warmup_steps_of(config, steps)
    if config.warmup is None:
        config = replace(config, warmup=warmup)
    if step <= warmup:
        return config.learning_rate * step / warmup  # 1/warmup, 2/warmup ... 1
    progress = (step - warmup) / max(1, steps + zero_at - warmup)  # 0 at the end of the warm-up
    return config.learning_rate * SCHEDULES[config.schedule](min(1.0, progress), step, config)


def pause_step(steps: int, share: Fraction, validate_every: int) -> int:
    """Return the first step with a validation after a share of the steps, so that a pause adds no validation.

    >>> pause_step(900, Fraction(1, 9), 40)
    120
    """
    return min(steps, math.ceil(share * steps / validate_every) * validate_every)
