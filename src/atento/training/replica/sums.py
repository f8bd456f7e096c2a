"""Sums of gradients over several processes that have a copy of the network each."""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Protocol

import torch
import torch.distributed as dist
from torch import Tensor

from atento.training.replica.control_messages import Channel
from atento.training.replica.gradient_sum import Gradients, Tree, buckets, copy_from_flat, flat, in_full_precision
from atento.training.replica.local import GradientAccumulator

BUCKET = 1 << 26  # bytes that are sent at a time


class Summing(Protocol):
    """The processes, as `Processes` says."""

    rank: int  # number of this process
    size: int  # number of processes
    slots: int  # remainders by which parts are dealt out
    levels: int  # levels of the tree over the processes
    update_channel: Channel  # their messages

    def answered(self) -> AbstractContextManager[None]:
        """Turn the error of a collective operation in an update into one that says what has happened."""


class AllReduceSum:
    """Adds the gradients of the parts of each process in order, then those of all processes (all-reduce)."""

    def __init__(self, processes: Summing, parameters: Sequence[Tensor]) -> None:
        self.processes, self.parameters, self.local = processes, parameters, GradientAccumulator(parameters)

    def add(self, number: int, gradients: Gradients) -> None:
        """Take in the gradients of a part."""
        self.local.add(number, gradients)

    def finish(self) -> None:
        """Sum the gradients over all processes, in place."""
        self.local.finish()  # as for one process: a transposed view is no gradient that an optimizer takes
        present = present_anywhere(self.processes, [parameter.grad is not None for parameter in self.parameters])
        for parameter, has_gradient in zip(self.parameters, present):
            if has_gradient and parameter.grad is None:  # no part of this process has one
                parameter.grad = torch.zeros_like(parameter)
        gradients = [parameter.grad for parameter in self.parameters if parameter.grad is not None]
        for bucket in buckets(gradients, BUCKET):
            vector = flat(bucket)  # one message for many tensors
            with self.processes.answered():
                dist.all_reduce(vector)
            copy_from_flat(bucket, vector)


class DeterministicAllReduce:
    """Adds gradients in the tree over the numbers of the parts, whose upper levels reach over the processes.

    For these, each process gets a share of the elements from all others, adds it up, and gives the sum to all. So it
    sends and receives about as much as in an all-reduce.
    """

    def __init__(self, processes: Summing, parameters: Sequence[Tensor], parts: int) -> None:
        self.processes, self.parameters, self.parts = processes, parameters, parts
        self.tree = Tree(parts, highest=processes.levels)

    def add(self, number: int, gradients: Gradients) -> None:
        """Take in the gradients of a part."""
        self.tree.add(number, in_full_precision(self.parameters, gradients))

    def finish(self) -> None:
        """Set `.grad` of each parameter to the sum of the nodes of all processes."""
        nodes = list(self.tree.nodes.values())
        # a weight that no part of ours reached may have a gradient elsewhere
        ours = [any(node[index] is not None for node in nodes) for index in range(len(self.parameters))]
        for parameter, has_gradient in zip(self.parameters, present_anywhere(self.processes, ours)):
            # of no process: None, as without processes
            parameter.grad = torch.empty_like(parameter) if has_gradient else None
        indices = {id(parameter.grad): index for index, parameter in enumerate(self.parameters)}
        gradients = [parameter.grad for parameter in self.parameters if parameter.grad is not None]
        for bucket in buckets(gradients, BUCKET):
            size, elements = self.processes.size, sum(gradient.numel() for gradient in bucket)
            share = -(-elements // size)  # elements that each process adds up
            tree = Tree(self.parts, lowest=self.processes.levels)
            for first in range(0, min(self.processes.slots, self.parts), size):  # a second round for slots left
                node = self.tree.nodes.get(first + self.processes.rank)
                # -0.0 is neutral in a sum, also of -0.0; 0.0 is not
                sent = torch.full((size * share,), -0.0, dtype=bucket[0].dtype, device=bucket[0].device)
                if node is not None:
                    for gradient, part in zip(bucket, sent[:elements].split([g.numel() for g in bucket])):
                        if (value := node[indices[id(gradient)]]) is not None:
                            part.copy_(value.reshape(-1))
                received = torch.empty_like(sent)
                with self.processes.answered():
                    dist.all_to_all_single(received, sent)  # process p gets share p of every gradient
                for number, values in enumerate(received.split(share), start=first):  # from process 0, 1 ...
                    if number < min(self.processes.slots, self.parts):
                        tree.add(number, [values])
            (total,) = tree.nodes[0]  # (share,), the sum over all slots
            assert total is not None
            shares = [torch.empty_like(total) for _ in range(size)]  # of every process
            with self.processes.answered():
                dist.all_gather(shares, total)
            copy_from_flat(bucket, torch.cat(shares))  # may end in padding, which nobody reads


def present_anywhere(processes: Summing, present: Sequence[bool]) -> list[bool]:
    """Return for each parameter whether any process has a gradient."""
    flags = torch.tensor(present, dtype=torch.uint8)
    processes.update_channel.highest(flags)
    return [bool(flag) for flag in flags.tolist()]
