"""Weights, gradients and optimizer state sharded over processes by `fully_shard`."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from copy import deepcopy
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn

from atento.base.errors import RecipeError
from atento.networks.interface import Network, stacks_of
from atento.training.ema import EMA
from atento.training.replica.gradient_sum import Gradients
from atento.training.replica.local import Tensors, Weights

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.tensor import DTensor


@dataclass(frozen=True)
class Shards:
    """The processes that one copy of the weights is sharded over."""

    # (shards,), or (copies, shards) if there are several copies; one row has the processes of a copy
    mesh: "DeviceMesh"
    group: dist.ProcessGroup  # the processes of this copy
    index: int  # number of this process's shard, from 0
    count: int  # number of shards of a copy
    # turns the error of a collective operation into one that says what has happened
    answered: Callable[[], AbstractContextManager[None]]

    @property
    def writes(self) -> bool:
        """Whether this process has the first copy of its shard."""
        return dist.get_rank() == self.index

    def rows(self, size: int) -> slice:
        """Return which rows of a tensor with `size` rows are this process's, as `torch.chunk` divides them."""
        each = -(-size // self.count)  # rounded up, as `torch.chunk`
        return slice(min(self.index * each, size), min((self.index + 1) * each, size))  # fewer rows at the end


def shards_of(
    device: str,
    count: int,
    grouped: Callable[[list[int]], dist.ProcessGroup],
    answered: Callable[[], AbstractContextManager[None]],
) -> Shards:
    """Return the shards of a copy: neighbours have one copy, so that a machine has as few copies as possible.

    Args:
        device: "cpu" or "cuda".
        count: number of shards of a copy, which divides the number of processes.
        grouped: makes a group of processes; all processes call it for all groups.
        answered: turns the error of a collective operation into one that says what has happened.
    """
    from torch.distributed.device_mesh import DeviceMesh  # late: it takes tenths of a second

    rank, size = dist.get_rank(), dist.get_world_size()
    copies = size // count
    ranks = torch.arange(size).reshape(copies, count)  # a row has the processes of a copy
    of_copies = [grouped(row.tolist()) for row in ranks]
    group = of_copies[rank // count]  # neighbours have one copy
    if copies == 1:
        return Shards(DeviceMesh.from_group(group, device), group, rank, count, answered)
    of_shards = [grouped(column.tolist()) for column in ranks.T]  # those with the same shard of each copy
    names = ("replicate", "shard")
    mesh = DeviceMesh.from_group([of_shards[rank % count], group], device, mesh=ranks, mesh_dim_names=names)
    return Shards(mesh, group, rank % count, count, answered)


class ShardedWeights(Weights):
    """A shard of each weight of a network: some of its rows (Zhao et al. 2023, PyTorch FSDP).

    Before a block computes, its weights are gathered from all processes, and freed afterwards; its gradients are summed
    over the processes, each of which keeps those of its shard. The embeddings, the heads and the last norm are gathered
    for the whole pass. The original network has no memory for its weights, except while it is evaluated.

    In bfloat16, weights are gathered in bfloat16, and gradients are summed in float32.

    Args:
        network: a Transformer, with its weights.
        dtype: data type to compute in.
        shards: the processes of a copy.

    Raises:
        RecipeError: the network cannot be sharded.
    """

    sharded = True

    def __init__(self, network: Network, dtype: torch.dtype, shards: Shards) -> None:
        check_network(network)
        self.original, self.shards = network, shards
        self.network = _sharded(network, dtype, shards.mesh)
        self._sharded: dict[str, nn.Parameter] = dict(self.network.named_parameters())
        self.parameters: dict[str, Tensor] = {
            name: nn.Parameter(_local(value), requires_grad=value.requires_grad)
            for name, value in self._sharded.items()
        }
        self._trained: list[bool] | None = None  # which shards the last update has trained
        self._free()

    def copy(self) -> None:
        """The network computes with the weights themselves."""

    def gradients(self, loss: Tensor) -> list[Tensor | None]:
        """Add the gradients of the parts that all processes compute now to those of the shards."""
        loss.backward()
        return []

    def begin(self) -> None:
        """Begin an update: free gradients, and let `fully_shard` see which weights are trained now.

        It chooses the data types of a block's gradients when the block is first gathered, by the weights that are
        trained then; gathering a block by hand makes it choose anew.
        """
        from torch.distributed.fsdp import FSDPModule  # late, as in `_sharded`

        self.network.zero_grad(set_to_none=True)
        trained = [value.requires_grad for value in self._sharded.values()]
        if self._trained not in (None, trained):
            for module in self.network.modules():
                if isinstance(module, FSDPModule):
                    with self.shards.answered():
                        module.unshard()
                    module.reshard()
        self._trained = trained

    def norm(self, gradients: Sequence[Tensor]) -> float:
        """Return the norm of the gradients of all shards together."""
        square = torch.stack(torch._foreach_norm(list(gradients))).double().square().sum()
        with self.shards.answered():
            dist.all_reduce(square, group=self.shards.group)  # of all shards
        return float(square.sqrt())

    @contextmanager
    def evaluated(self, average: EMA | None) -> Iterator[None]:
        """Let the original network have all weights meanwhile; each process needs memory for them."""
        self._gather({} if average is None else average.averages)
        try:
            yield
        finally:
            self._free()

    def own(self, tensors: Tensors) -> dict[str, Tensor]:
        """Return this process's rows of each tensor; a scalar is the same on all processes."""
        return {name: value[self.shards.rows(len(value))] if value.dim() else value for name, value in tensors.items()}

    @torch.no_grad()
    def load(self, weights: Tensors) -> None:
        """Load the whole weights and buffers of the network."""
        for parameter in self.original.parameters():
            _allocate(parameter)
        self.original.load_state_dict(weights)
        own = self.own({name: value.detach() for name, value in self.original.named_parameters()})
        for name, shard in self.parameters.items():
            shard.copy_(own[name])
        buffers = dict(self.network.named_buffers())
        for name, buffer in self.original.named_buffers():
            buffers[name].copy_(buffer)
        self._free()

    def release(self) -> None:
        """Let the original network have all weights again, at the end of training."""
        self._gather({})

    @torch.no_grad()
    def _gather(self, replaced: Tensors) -> None:
        """Gather the weights, or the tensors that replace some of them, into the original network."""
        values = {**self.parameters, **replaced}
        for name, parameter in self.original.named_parameters():
            _allocate(parameter)
            local = values[name].detach()
            each = -(-len(parameter) // self.shards.count)  # rounded up: the last shards may be padding
            padded = local.new_zeros(each, *local.shape[1:])  # (each,...)
            padded[: len(local)] = local
            gathered = local.new_empty(self.shards.count, each, *local.shape[1:])  # (shards,each,...)
            with self.shards.answered():
                dist.all_gather(list(gathered.unbind()), padded, group=self.shards.group)
            parameter.copy_(gathered.flatten(0, 1)[: len(parameter)])  # without the padding

    def _free(self) -> None:
        """Free the memory of the original network's weights, which keep their shapes."""
        for parameter in self.original.parameters():
            storage = parameter.untyped_storage()
            if storage.resizable():
                storage.resize_(0)  # shapes stay, bytes go


class ShardedSum:
    """The gradients of the shards, which the backward passes have summed over all processes."""

    def __init__(self, weights: ShardedWeights) -> None:
        self.weights = weights
        weights.begin()

    def add(self, number: int, gradients: Gradients) -> None:
        """The backward pass has added them."""

    def finish(self) -> None:
        """Set `.grad` of each shard."""
        for name, value in self.weights.network.named_parameters():
            gradient, value.grad = value.grad, None
            self.weights.parameters[name].grad = None if gradient is None else _local(gradient)


def check_network(network: Network) -> None:
    """Check that a network can be sharded.
    Raises RecipeError: it has no stack of blocks, or a weight that is a single number.
    """
    if not stacks_of(network):
        raise RecipeError(
            f"`training.parallel.shard` needs a Transformer: got architecture {network.config.architecture!r}"
        )
    scalars = [name for name, parameter in network.named_parameters() if not parameter.dim()]
    if scalars:
        raise RecipeError(f"`training.parallel.shard` divides the rows of weights, and {scalars[0]} is a single number")


def gathered_sizes(network: Network) -> tuple[int, int]:
    """Return the parameters that are gathered for the whole pass, and those of the largest block."""
    total = sum(parameter.numel() for parameter in network.parameters())
    every = [block for stack in stacks_of(network) for block in stack.blocks]
    blocks = [sum(parameter.numel() for parameter in block.parameters()) for block in every]
    return total - sum(blocks), max(blocks, default=0)  # what stands outside of blocks


def _sharded(network: Network, dtype: torch.dtype, mesh: "DeviceMesh") -> Network:
    """Return a network with the same structure, whose parameters are shards of those of the network."""
    from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard  # late, as the mesh

    # the parameters themselves are taken over, so that there is no second copy of all weights
    sharded = deepcopy(network, {id(parameter): parameter for parameter in network.parameters()})
    policy = MixedPrecisionPolicy()
    if dtype != torch.float32:
        policy = MixedPrecisionPolicy(dtype, torch.float32, cast_forward_inputs=False)
        for module in sharded.modules():
            for name, buffer in module.named_buffers(recurse=False):
                if buffer.is_floating_point():
                    setattr(module, name, buffer.to(dtype))
    for block in (block for stack in stacks_of(sharded) for block in stack.blocks):
        fully_shard(block, mesh=mesh, mp_policy=policy)
    fully_shard(sharded, mesh=mesh, mp_policy=policy)
    for module in sharded.modules():
        if isinstance(module, FSDPModule):  # gradients are summed; they are divided by the targets of an update
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)
    return sharded


@torch.no_grad()
def _local(value: Tensor) -> Tensor:
    """Return the shard that a distributed tensor has in this process, in the same memory."""
    local: Tensor = cast("DTensor", value.detach()).to_local()
    return local


def _allocate(parameter: Tensor) -> None:
    """Give a parameter memory again that has been freed."""
    size = parameter.numel() * parameter.element_size()
    if parameter.untyped_storage().size() < size:
        parameter.untyped_storage().resize_(size)
