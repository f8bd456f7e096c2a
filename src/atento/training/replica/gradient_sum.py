"""The sum of the gradients of an update in a fixed tree over the numbers of its parts; gradients in buckets."""

from collections.abc import Sequence

import torch
from torch import Tensor

Gradients = Sequence[Tensor | None]  # of each parameter; None: the loss does not depend on it


class Tree:
    """A binary tree over the numbers of parts; its sum has the same bits in whatever order the parts come.

    Level k of the tree has a node for each remainder of a part's number modulo 2^k. A node is the sum of the two nodes
    below it, those of remainders r and r + 2^(k-1), or a copy of one of them if there is no part below the other. So a
    process that computes the parts of one remainder modulo 2^k can build that node alone.

    Args:
        parts: number of parts of the update.
        lowest: level at which values come in; None: that of single parts.
        highest: level of the nodes to build.
    """

    def __init__(self, parts: int, *, lowest: int | None = None, highest: int = 0) -> None:
        self.parts, self.highest = parts, highest
        self.lowest = max((parts - 1).bit_length(), highest) if lowest is None else lowest  # ⌈log2 parts⌉ levels
        self.nodes: dict[int, Gradients] = {}  # the finished nodes of the highest level, by remainder
        self._waiting: dict[tuple[int, int], Gradients] = {}  # nodes whose neighbour is missing, by level and remainder

    def add(self, number: int, values: Gradients) -> None:
        """Take in the values of a part, or of a node of the lowest level."""
        level, node = self.lowest, number
        while level > self.highest:
            neighbour = node ^ (1 << (level - 1))  # r and r + 2^(level-1): one bit apart
            if neighbour < self.parts:  # there is a part below it
                waiting = self._waiting.pop((level, neighbour), None)  # whichever of the two comes first waits
                if waiting is None:
                    self._waiting[level, node] = values
                    return
                values = [
                    two if one is None else one if two is None else one + two for one, two in zip(values, waiting)
                ]
            level, node = level - 1, min(node, neighbour)  # their sum has the lower remainder
        self.nodes[node] = values


class DeterministicAccumulator:
    """Adds gradients in a tree over the numbers of the parts.

    Args:
        parameters: the parameters, whose `.grad` is None.
        parts: number of parts of the update.
    """

    def __init__(self, parameters: Sequence[Tensor], parts: int) -> None:
        self.parameters, self.tree = parameters, Tree(parts)

    def add(self, number: int, gradients: Gradients) -> None:
        """Take in the gradients of a part."""
        self.tree.add(number, in_full_precision(self.parameters, gradients))

    def finish(self) -> None:
        """Set `.grad` of each parameter."""
        if self.tree.nodes:
            for parameter, gradient in zip(self.parameters, self.tree.nodes[0]):  # 0: the only node of level 0
                # autograd may return one tensor twice, and transposed views
                parameter.grad = None if gradient is None else gradient.clone(memory_format=torch.contiguous_format)


def in_full_precision(parameters: Sequence[Tensor], gradients: Gradients) -> Gradients:
    """Return gradients in the data type of their parameters."""
    return [None if one is None else one.to(parameter.dtype) for parameter, one in zip(parameters, gradients)]


def buckets(tensors: Sequence[Tensor], size: int) -> list[list[Tensor]]:
    """Divide tensors into groups of one data type and about `size` bytes each, in order."""
    groups: list[list[Tensor]] = []
    filled = 0
    for tensor in tensors:
        if not groups or filled >= size or tensor.dtype != groups[-1][0].dtype:
            groups.append([])
            filled = 0
        groups[-1].append(tensor)
        filled += tensor.numel() * tensor.element_size()
    return groups


def flat(tensors: Sequence[Tensor]) -> Tensor:
    """Return the elements of tensors in one vector."""
    return torch.cat([tensor.reshape(-1) for tensor in tensors])


def copy_from_flat(tensors: Sequence[Tensor], vector: Tensor) -> None:
    """Copy the elements of a vector to the tensors whose elements it has."""
    start = 0  # of the next tensor in the vector
    for tensor in tensors:
        tensor.copy_(vector[start : start + tensor.numel()].view_as(tensor))
        start += tensor.numel()
