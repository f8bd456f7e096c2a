"""One training step: compute losses and gradients of the parts of an update, then clip and take an optimizer step."""

import itertools
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextvars import copy_context
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from atento.attention.dropout import Randomness
from atento.attention.observe import observing
from atento.base.errors import RecipeError, TrainingError
from atento.base.precision import side_by_side, threads
from atento.config.sections.training import TrainingConfig
from atento.data.batches.batch import Part
from atento.networks.interface import Network, stacks_of
from atento.training.allocator import trim_memory
from atento.training.ema import EMA, GradientNoiseScale, divide
from atento.training.losses import Call, Sums, losses, on_device
from atento.training.optimizer import LossScale, Optimizer, TrainedWeights, all_weights
from atento.training.replica.local import GradientSum, Replica
from atento.training.scheduled_sampling import own_tokens

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
SMALL = 2_000_000  # elements of weights below which one thread makes batches and updates weights
PartSums = dict[str, tuple[Tensor, Tensor, int]]  # by head: loss and negative log-likelihood (), number of targets
MAX_WORKERS = 4  # parts computed at the same time on a CPU; each one holds its own activations


def recompute(network: Network) -> None:
    """Let every stack of a network compute its activations again in the backward pass.
    Raises RecipeError: the network has no stack of blocks.
    """
    stacks = stacks_of(network)
    if not stacks:
        raise RecipeError(
            f"`training.activation_checkpointing` needs a Transformer: got architecture {network.config.architecture!r}"
        )
    for stack in stacks:
        stack.recompute = True


class NotFinite(TrainingError):
    """The loss or the gradient of an update is not finite; `parameter` is the first whose gradient is not, or empty."""

    def __init__(self, message: str, parameter: str) -> None:
        super().__init__(message)
        self.parameter = parameter


class Updater:
    """Updates a network's weights with the optimizer of the recipe, in float32 or in mixed precision.

    In bfloat16 and float16, forward and backward passes run on a copy of the network in that data type. The weights,
    the accumulated gradients and the optimizer's state stay float32 (mixed precision, Micikevicius et al. 2018).
    bfloat16 has the range of float32; in float16 the loss is scaled, and an update whose gradient overflows is skipped.

    Args:
        network: the network to train, on the device to train on.
        config: learning rate, weight decay, clipping and label smoothing.
        precision: "float32", "bfloat16" or "float16".
        trained: the weights to train, and from which update on; None: all of them. The others keep their bits, have no
            optimizer state, and no gradient is computed for them or below the lowest trained layer. Dropout stays on in
            every layer.
        replica: the processes that share each update; None: this one alone.
    """

    def __init__(
        self,
        network: Network,
        config: TrainingConfig,
        precision: str,
        trained: TrainedWeights | None = None,
        replica: Replica | None = None,
    ) -> None:
        self.network, self.config = network, config
        self.replica = Replica(config.parallel.exact) if replica is None else replica
        self.device = next(network.parameters()).device
        self.weights = self.replica.weights(network, DTYPES[precision])
        self.compute_network, self.parameters = self.weights.network, self.weights.parameters
        self.compute_network.train()
        if config.activation_checkpointing:
            recompute(self.compute_network)
        self.trained = all_weights(network) if trained is None else trained
        self._unfrozen: frozenset[str] | None = None  # by the last update; the next one sets what needs gradients
        self.optimizer = Optimizer(network, config, self.trained, self.parameters)
        self.noise = GradientNoiseScale() if config.log_gradient_noise else None
        self.loss_scale = LossScale() if precision == "float16" else None
        self.norm: float | None = None  # of the gradient of the last update before clipping; None: it is not finite
        # threads that have shared an operation spin before they sleep, and take the cores of a small network's parts
        on_cpu, elements = self.device.type == "cpu", sum(weight.numel() for weight in self.parameters.values())
        self._threads = torch.get_num_threads()  # of the present update
        self._threads_beside = 1 if on_cpu and elements < SMALL else None
        self.one_by_one = False  # parts are computed one by one, to save memory
        trained_parameters = {name: self.parameters[name] for name in self.trained.begins}
        self.average = EMA(trained_parameters, config.ema) if config.ema else None

    def update(
        self,
        parts: Iterable[Part],
        step: int,
        rate: float,
        progress: float = 0.0,
        spare: Callable[[], Part] | None = None,
    ) -> tuple[dict[str, Sums], float]:
        """Take one optimizer step on the parts of an update.

        The loss is Σ over heads of weight · (sum of the head's losses / its real targets in the whole update). The
        targets are counted before the first forward pass. If there is one head with weight 1, gradients are summed
        undivided and divided once at the end.

        Args:
            parts: the batches of the update that this process computes, with the loss weights of their heads.
            step: number of the update, from 1; dropout is a function of it and the seed.
            progress: share of the run that is done, 0 to 1.
            spare: returns any part, for a process that has none of an update whose weights are sharded.

        Returns:
            The summed losses of each head over all processes, empty if a gradient in float16 overflowed and the weights
            are unchanged; and the norm of the gradient before clipping.

        Raises NotFinite: the loss or the gradient is not finite. The weights are unchanged. TrainingError: memory ran
        out while the weights were changed.
        """
        self._threads = torch.get_num_threads()
        with threads(self._threads_beside):
            return self._update(parts, step, rate, progress, spare)

    def _update(
        self, parts: Iterable[Part], step: int, rate: float, progress: float, spare: Callable[[], Part] | None
    ) -> tuple[dict[str, Sums], float]:
        # ask for gradients of the weights that this update trains; a function of the step, so resuming is exact
        names = self.trained.names(step)
        if names != self._unfrozen:
            for network in (self.network, self.compute_network):
                for name, parameter in network.named_parameters():
                    parameter.requires_grad_(name in names)
            self._unfrozen = names
        parameters = list(self.parameters.values())
        self.replica.check(step, parameters)
        parts = list(parts)
        counts: dict[str, int] = {}
        counted = self.replica.exchange(
            [(part.batch.counts(), all(weight == 1.0 for weight in part.weights.values())) for part in parts]
        )
        for part_counts, _ in counted:
            for head, count in part_counts.items():
                counts[head] = counts.get(head, 0) + count
        # one head of weight 1: dividing the summed gradient once is cheaper, and more exact, than scaling each loss
        divide_once = len(counts) == 1 and all(unweighted for _, unweighted in counted) and self.loss_scale is None
        factor = 1.0 if self.loss_scale is None else self.loss_scale.factor
        scales = None if divide_once else {head: factor / max(1, count) for head, count in counts.items()}
        sums = {head: Sums() for head in counts}
        if self.noise is not None:
            self.noise.begin()
        self.optimizer.zero_grad()  # an interrupted update may have left gradients
        gradient_sum = self.replica.gradient_sum(self.weights, len(counted))

        def compute() -> list[dict[str, tuple[float, float, int]]]:
            computed = self._add_gradients(gradient_sum, parts, step, progress, scales, sum(counts.values()))
            if self.replica.lacks_part(len(parts), len(counted)):
                # add zeros: all processes gather sharded weights, also one that has no part left
                part = parts[-1] if parts or spare is None else spare()
                call = Call(Randomness(self.config.seed, step, 0), 0.0, step, progress, r_drop=self.config.r_drop)
                self._part_gradients(part, call, dict.fromkeys(part.batch.labels, 0.0))
            return computed  # (loss, nll, targets) by head of each part

        for part_sums in self.replica.together(compute):
            for head, values in part_sums.items():
                sums[head].add(Sums(*values))
        gradient_sum.finish()
        divisor = max(1, next(iter(counts.values()), 1)) if scales is None else factor
        self.norm = None
        norm = self._divide_and_clip(divisor, sums, step)
        if not norm < float("inf"):  # also False for NaN
            return {}, norm
        self.norm = norm
        if self.noise is not None:
            self.noise.squares = self.replica.exchange(self.noise.squares)
            self.noise.update(norm)
        self.optimizer.step(rate)
        self.optimizer.zero_grad()  # freed before the next forward pass
        self.copy_weights()
        if self.average is not None:
            self.average.update(step)
        return sums, norm

    def _add_gradients(
        self,
        gradient_sum: GradientSum,
        parts: list[Part],
        step: int,
        progress: float,
        scales: Mapping[str, float] | None,
        total: int,
    ) -> list[dict[str, tuple[float, float, int]]]:
        """Add the gradients of the parts of this process; return loss, negative log-likelihood and targets by head."""
        part_sums = []
        numbers = list(itertools.islice(itertools.compress(itertools.count(), self.replica.ours()), len(parts)))
        for number, (sums, gradients) in zip(numbers, self._gradients(parts, numbers, step, progress, scales)):
            if self.noise is not None:
                targets = sum(head_targets for *_, head_targets in sums.values())  # over all heads
                factor = 1.0 if self.loss_scale is None else self.loss_scale.factor
                self.noise.part(gradients, (1 if scales is None else total / factor) / max(1, targets), targets)
            gradient_sum.add(number, gradients)
            part_sums.append(sums)
        # read at the end alone: a GPU is waited for here, and not between its parts
        return [{head: (float(loss), float(nll), n) for head, (loss, nll, n) in sums.items()} for sums in part_sums]

    def _gradients(
        self, parts: list[Part], numbers: list[int], step: int, progress: float, scales: Mapping[str, float] | None
    ) -> Iterator[tuple[PartSums, list[Tensor | None]]]:
        """Yield the sums and gradients of each part, in order; on a CPU, parts are computed at the same time.

        Dropout depends on the number of a part in the update, and not on the process that computes it.

        Small matrix products gain little from a second thread, and both threads wait for each other at each product.
        Parts in threads of their own wait once an update. The result is bit-equal to computing them one by one.
        """
        smoothing, seed = self.config.label_smoothing, self.config.seed
        calls = [Call(Randomness(seed, step, n), smoothing, step, progress, r_drop=self.config.r_drop) for n in numbers]
        sampling = self.config.scheduled_sampling
        if sampling.share:
            own = partial(own_tokens, sampling, seed, step, progress)
            calls = [replace(call, own=own(part)) for call, part in zip(calls, parts)]
        # compiled code is traced in one thread at a time, and sharded weights are gathered in one order
        several = self.device.type == "cpu" and not self.config.compile and not self.weights.sharded
        concurrent = min(len(parts), self._threads, MAX_WORKERS) if several else 1  # parts at a time
        if concurrent <= 1:
            for part, call in zip(parts, calls):
                with threads(self._threads):
                    computed = self._part_gradients(part, call, scales)
                yield computed
                del computed  # or the gradients of a part would stay while the next is computed
            return
        threads_each = self._threads // concurrent  # the same for one worker, or bits would change
        in_turn = self.one_by_one or observing(self.compute_network)
        workers = 1 if in_turn else concurrent  # observations stay in the order of the parts
        with side_by_side(workers, threads_each) as pool:
            futures = deque(
                pool.submit(copy_context().run, self._part_gradients, part, call, scales)
                for part, call in zip(parts, calls)
            )
            while futures:
                yield futures.popleft().result()  # a future would keep the gradients of its part

    def _part_gradients(
        self, part: Part, call: Call, scales: Mapping[str, float] | None
    ) -> tuple[PartSums, list[Tensor | None]]:
        """Return the sums of one part, and the gradient of its loss for each parameter, None where there is none.

        Without `scales`, the loss is the sum over the real targets of the only head. With `scales`, it is Σ over heads
        of weight · scale · sum.
        """
        head_losses = losses(self.compute_network, on_device(self.compute_network, part.batch, self.device), call)
        if scales is None:
            ((total, _),) = head_losses.values()
        else:
            total = torch.stack(
                [loss * (part.weights.get(head, 1.0) * scales[head]) for head, (loss, _) in head_losses.items()]
            ).sum()
        gradients = self.weights.gradients(total)
        counts = part.batch.counts()
        return {head: (loss.detach(), nll, counts[head]) for head, (loss, nll) in head_losses.items()}, gradients

    def _divide_and_clip(self, divisor: float, sums: Mapping[str, Sums], step: int) -> float:
        """Divide the gradients, check them and clip them in place; return their norm before clipping.

        It is infinite if a gradient in float16 overflowed; then the gradients are freed.
        """
        grads = [p.grad for p in self.parameters.values() if p.grad is not None]
        torch._foreach_div_(grads, float(divisor))  # in place, in one call
        norm = self.weights.norm(grads)
        finite = all(abs(head_sums.loss) < float("inf") for head_sums in sums.values())
        if finite and not norm < float("inf") and self.loss_scale is not None and self.loss_scale.overflowed():
            self.optimizer.zero_grad()
            return float("inf")
        if not (norm < float("inf") and finite):  # NaN fails both
            # the first such parameter; weights first: they were broken before this update
            names = [name for name, p in self.parameters.items() if not bool(torch.isfinite(p).all())]
            where = f"; the weight {names[0]} is not finite" if names else ""
            if not names:
                gradients = {name: p.grad for name, p in self.parameters.items() if p.grad is not None}
                names = [name for name, gradient in gradients.items() if not bool(torch.isfinite(gradient).all())]
                where = f"; the first such gradient is that of {names[0]}" if names else ""
            self.optimizer.zero_grad()
            loss = sum(head_sums.loss / max(1, head_sums.targets) for head_sums in sums.values())
            raise NotFinite(
                f"step {step}: the {'gradient' if finite else 'loss'} is not finite (loss {loss:g}, gradient norm "
                f"{norm:g}); the weights are unchanged{where}. Lower `training.learning_rate` or raise "
                "`training.warmup`",
                names[0] if names else "",
            )
        if self.config.clip and norm > self.config.clip:  # norm is that before clipping
            torch._foreach_mul_(grads, self.config.clip / norm)
        if self.loss_scale is not None:
            self.loss_scale.took()  # an update without overflow
        return norm

    def copy_weights(self) -> None:
        """Copy the weights to the network that computes in a narrower type; in float32 it is the same network."""
        self.weights.copy()

    def release(self) -> None:
        """Free what updates alone need, at the end of training; the network has all its weights."""
        self.weights.release()
        self.optimizer.load({})
        self.optimizer.zero_grad()
        self.compute_network, self.average = self.network, None
        trim_memory()

    def checkpoint_tensors(self) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Return the weights by name, and what else an update depends on.

        With a moving average, the weights are the average, and those that are trained stand beside the optimizer's
        state.
        """
        names = {id(value): name for name, value in self.network.named_parameters()}  # shared weights: one name
        averages = {} if self.average is None else self.average.averages
        ours = {**self.parameters, **averages}
        state = self.network.state_dict(keep_vars=True)
        weights = {name: ours[names[id(value)]] if id(value) in names else value for name, value in state.items()}
        optimizer = {**self.optimizer.tensors(), **({} if self.average is None else self.average.raw())}
        if self.replica.main:
            return weights, optimizer
        # of sharded weights, the first process saves what each process has whole: buffers and counters
        rows = {name: value for name, value in weights.items() if id(state[name]) in names}
        return rows, {name: value for name, value in optimizer.items() if value.dim()}  # counters are tensors ()

    def load(self, weights: dict[str, Tensor], optimizer: dict[str, Tensor]) -> None:
        """Load what `checkpoint_tensors` returned."""
        raw, state = divide(optimizer)
        self.weights.load(weights)
        if self.average is not None:
            self.average.start()
        with torch.no_grad():
            for name, value in self.weights.own(raw).items():
                self.parameters[name].copy_(value)
        self.optimizer.load(self.weights.own(state))
        self.copy_weights()
