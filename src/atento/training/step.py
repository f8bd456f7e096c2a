"""One training step on one page: the parts of an update in, summed losses by head, gradients divided once, one step."""

from collections.abc import Iterable, Iterator, Mapping
from contextvars import copy_context
from copy import deepcopy

import torch
from torch import Tensor

from atento.attention.dropout import Randomness
from atento.attention.observe import observing
from atento.config.recipe import TrainingConfig
from atento.data.batches import Part
from atento.errors import TrainingError
from atento.networks.network import Network
from atento.precision import side_by_side
from atento.training.losses import Call, Sums, losses

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
_AT_ONCE = 4  # parts of an update computed side by side at most: each holds what its backward pass needs


class Updater:
    """The network, its optimiser and, in bfloat16, a working copy of the weights that the products run on.

    The weights themselves, their gradients' sum and the optimiser's state stay float32 (mixed precision,
    Micikevicius et al. 2018); bfloat16 has float32's range, so no loss scaling is needed.
    """

    def __init__(self, network: Network, config: TrainingConfig, precision: str) -> None:
        self.network, self.config = network, config
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

    def update(
        self, parts: Iterable[Part], step: int, rate: float, progress: float = 0.0
    ) -> tuple[dict[str, Sums], float]:
        """One update from its parts; returns the sums of each head and the gradient's norm before clipping.

        The loss is Σ over heads of weight · (sum of the head's losses / its real targets in the whole update). The
        targets are known before the first forward pass. Where there is one head, of weight 1, its summed gradient is
        divided once at the end.

        Raises:
            TrainingError: the loss or the gradient is not finite; the weights are then untouched.
        """
        parts = list(parts)
        counts: dict[str, int] = {}
        for part in parts:
            for head, count in part.batch.counts().items():
                counts[head] = counts.get(head, 0) + count
        plain = len(counts) == 1 and all(weight == 1.0 for part in parts for weight in part.weights.values())
        scales = None if plain else {head: 1.0 / max(1, count) for head, count in counts.items()}
        sums = {head: Sums() for head in counts}
        self.network.zero_grad(set_to_none=True)  # what an update that was broken off left behind
        for part_sums, gradients in self._parts(parts, step, progress, scales):
            for head, found in part_sums.items():
                sums[head].add(found)
            for master, gradient in zip(self.parameters.values(), gradients):
                if gradient is not None and master.grad is None:
                    master.grad = gradient.to(master.dtype, copy=True)  # a copy: two weights may share a gradient
                elif gradient is not None and master.grad is not None:
                    master.grad.add_(gradient)
        divisor = max(1, next(iter(counts.values()), 1)) if scales is None else 1
        norm = self._divide_and_clip(divisor, sums, step)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.refresh()
        return sums, norm

    def _parts(
        self, parts: list[Part], step: int, progress: float, scales: Mapping[str, float] | None
    ) -> Iterator[tuple[dict[str, Sums], list[Tensor | None]]]:
        """Sums and gradients of each part, in order: on a CPU side by side, each with its share of the threads.

        Small products gain little from a second thread, and every one of them waits for the slower. Parts side by side
        wait for each other once an update. Side by side or in turn, the same bits come out.
        """
        smoothing, seed = self.config.label_smoothing, self.config.seed
        calls = [Call(Randomness(seed, step, slot), smoothing, step, progress) for slot in range(len(parts))]
        at_once = min(len(parts), torch.get_num_threads(), _AT_ONCE) if self.device.type == "cpu" else 1
        if at_once <= 1:
            yield from (self._part(part, call, scales) for part, call in zip(parts, calls))
            return
        threads = torch.get_num_threads() // at_once
        workers = 1 if observing(self.working) else at_once  # what is observed is kept in the order of the parts
        with side_by_side(workers, threads) as pool:
            todo = [pool.submit(copy_context().run, self._part, part, call, scales) for part, call in zip(parts, calls)]
            yield from (one.result() for one in todo)

    def _part(
        self, part: Part, call: Call, scales: Mapping[str, float] | None
    ) -> tuple[dict[str, Sums], list[Tensor | None]]:
        """One part's sums, and the gradient of its loss for every weight; None where there is none.

        The loss is the sum over real targets, or, with `scales`, over heads of weight · scale · sum.
        """
        batch = part.batch.to(self.device)
        found = losses(self.working, batch, call)
        if scales is None:
            ((total, _),) = found.values()
        else:
            total = torch.stack(
                [loss * (part.weights.get(head, 1.0) * scales[head]) for head, (loss, _) in found.items()]
            ).sum()
        weights = list(self.working.parameters())
        learned = [weight for weight in weights if weight.requires_grad]
        made = iter(torch.autograd.grad(total, learned, allow_unused=True))
        gradients = [next(made) if weight.requires_grad else None for weight in weights]
        counts = part.batch.counts()
        sums = {head: Sums(float(loss.detach()), float(nll), counts[head]) for head, (loss, nll) in found.items()}
        return sums, gradients

    def _divide_and_clip(self, divisor: int, sums: Mapping[str, Sums], step: int) -> float:
        grads = [p.grad for p in self.parameters.values() if p.grad is not None]
        torch._foreach_div_(grads, float(divisor))
        norm = float(torch.linalg.vector_norm(torch.stack(torch._foreach_norm(grads))))
        finite = all(abs(one.loss) < float("inf") for one in sums.values())
        if not (norm < float("inf") and finite):  # NaN fails both
            self.optimizer.zero_grad(set_to_none=True)
            loss = sum(one.loss / max(1, one.targets) for one in sums.values())
            raise TrainingError(
                f"step {step}: the {'gradient' if finite else 'loss'} is not finite "
                f"(loss {loss:g}, gradient norm {norm:g}); the weights are unchanged. "
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
