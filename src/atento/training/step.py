"""One training step on one page: parts of a batch in, summed losses, gradients divided once, one update out."""

from collections.abc import Iterable, Iterator
from contextvars import copy_context
from copy import deepcopy
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from atento.attention.dropout import Randomness
from atento.attention.observe import observing
from atento.config.recipe import TrainingConfig
from atento.errors import TrainingError
from atento.precision import side_by_side
from atento.training.objectives import Batch, Objective, seq2seq_loss

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
_AT_ONCE = 4  # parts of an update computed side by side at most: each holds what its backward pass needs


@dataclass
class Sums:
    """What a step, a validation or a log interval adds up: nats and the real targets they are over."""

    loss: float = 0.0
    nll: float = 0.0
    targets: int = 0

    def add(self, other: "Sums") -> None:
        """Add another's sums."""
        self.loss, self.nll, self.targets = self.loss + other.loss, self.nll + other.nll, self.targets + other.targets


class Updater:
    """The network, its optimiser and, in bfloat16, a working copy of the weights that the products run on.

    The weights themselves, their gradients' sum and the optimiser's state stay float32 (mixed precision,
    Micikevicius et al. 2018); bfloat16 has float32's range, so no loss scaling is needed.
    """

    def __init__(
        self, network: nn.Module, config: TrainingConfig, precision: str, loss: Objective | None = None
    ) -> None:
        self.network, self.config = network, config
        self.loss: Objective = loss or seq2seq_loss
        self.device = next(network.parameters()).device
        self.parameters = dict(network.named_parameters())
        self.working = network if precision == "float32" else deepcopy(network).to(DTYPES[precision])
        self.working.train()
        self.optimizer = torch.optim.AdamW(
            self._groups(), lr=config.learning_rate, betas=config.betas, weight_decay=config.weight_decay, fused=True
        )

    def _groups(self) -> list[dict[str, object]]:
        """Matrices decay; biases and norms do not."""
        decayed = [p for p in self.parameters.values() if p.dim() > 1]
        rest = [p for p in self.parameters.values() if p.dim() <= 1]
        return [{"params": decayed}, {"params": rest, "weight_decay": 0.0}]

    def update(self, parts: Iterable[Batch], step: int, rate: float) -> tuple[Sums, float]:
        """One update from the parts of its batch; returns the sums and the gradient's norm before clipping.

        Raises:
            TrainingError: the loss or the gradient is not finite; the weights are then untouched.
        """
        sums = Sums()
        self.network.zero_grad(set_to_none=True)  # what an update that was broken off left behind
        for part_sums, gradients in self._parts(list(parts), step):
            sums.add(part_sums)
            for master, gradient in zip(self.parameters.values(), gradients):
                if gradient is not None and master.grad is None:
                    master.grad = gradient.to(master.dtype, copy=True)  # a copy: two weights may share a gradient
                elif gradient is not None and master.grad is not None:
                    master.grad.add_(gradient)
        norm = self._divide_and_clip(sums, step)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.refresh()
        return sums, norm

    def _parts(self, parts: list[Batch], step: int) -> Iterator[tuple[Sums, list[Tensor | None]]]:
        """Sums and gradients of each part, in order: on a CPU side by side, each with its share of the threads.

        Small products gain little from a second thread, and every one of them waits for the slower. Parts side by side
        wait for each other once an update. Side by side or in turn, the same bits come out.
        """
        at_once = min(len(parts), torch.get_num_threads(), _AT_ONCE) if self.device.type == "cpu" else 1
        if at_once <= 1:
            yield from (self._part(part, step, slot) for slot, part in enumerate(parts))
            return
        threads = torch.get_num_threads() // at_once
        workers = 1 if observing(self.working) else at_once  # what is seen is kept in the order of the parts
        with side_by_side(workers, threads) as pool:
            todo = [pool.submit(copy_context().run, self._part, part, step, slot) for slot, part in enumerate(parts)]
            yield from (one.result() for one in todo)

    def _part(self, part: Batch, step: int, slot: int) -> tuple[Sums, list[Tensor | None]]:
        """One part's sums, and the gradient of its summed loss for every weight; None where there is none."""
        random = Randomness(self.config.seed, step, slot)
        loss, nll = self.loss(self.working, part.to(self.device), self.config.label_smoothing, random)
        weights = list(self.working.parameters())
        learned = [weight for weight in weights if weight.requires_grad]
        found = iter(torch.autograd.grad(loss, learned, allow_unused=True))
        gradients = [next(found) if weight.requires_grad else None for weight in weights]
        return Sums(float(loss.detach()), float(nll), part.targets), gradients

    def _divide_and_clip(self, sums: Sums, step: int) -> float:
        grads = [p.grad for p in self.parameters.values() if p.grad is not None]
        torch._foreach_div_(grads, float(max(1, sums.targets)))
        norm = float(torch.linalg.vector_norm(torch.stack(torch._foreach_norm(grads))))
        if not (norm < float("inf") and abs(sums.loss) < float("inf")):  # NaN fails both
            self.optimizer.zero_grad(set_to_none=True)
            raise TrainingError(
                f"step {step}: the {'loss' if not abs(sums.loss) < float('inf') else 'gradient'} is not finite "
                f"(loss {sums.loss / max(1, sums.targets):g}, gradient norm {norm:g}); the weights are unchanged. "
                "Lower `training.learning_rate` or raise `training.warmup`"
            )
        if self.config.clip and norm > self.config.clip:
            torch._foreach_mul_(grads, self.config.clip / norm)
        return norm

    @torch.no_grad()
    def refresh(self) -> None:
        """Bring the working copy up to date with the weights."""
        if self.working is not self.network:
            torch._foreach_copy_(list(self.working.parameters()), list(self.parameters.values()))

    def optimizer_tensors(self) -> dict[str, Tensor]:
        """The optimiser's state as named tensors, for a checkpoint."""
        names = {id(parameter): name for name, parameter in self.parameters.items()}
        return {
            f"{names[id(parameter)]}.{key}": value
            for parameter, state in self.optimizer.state.items()
            for key, value in state.items()
        }

    def load_optimizer_tensors(self, tensors: dict[str, Tensor]) -> None:
        """The inverse of `optimizer_tensors`; weights that never had a gradient have no state."""
        for name, parameter in self.parameters.items():
            if f"{name}.step" not in tensors:
                continue
            keys = ("step", "exp_avg", "exp_avg_sq")
            self.optimizer.state[parameter] = {
                key: tensors[f"{name}.{key}"].to(parameter.device, copy=True) for key in keys
            }
