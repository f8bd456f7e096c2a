"""The prompts that a decoder read last: tokens that a new prompt has in common with one of them are not read again.

Prompts often begin alike, with the same instructions or the same examples. Their keys and values are the same too,
because a token attends to none behind it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from itertools import chain

import torch
from torch import Tensor

from atento.attention.multihead import KeyValues
from atento.inference.fast import FastStepFunction
from atento.inference.fast_state import FastState

SHORTEST = 32  # tokens in common that are worth it


def common_length(first: Sequence[int], second: Sequence[int]) -> int:
    """The number of tokens with which both begin."""
    count = 0
    for a, b in zip(first, second):
        if a != b:
            break
        count += 1
    return count


class PrefixCache:
    """The keys and values of prompts that were read last.

    Args:
        most: tokens of prompts that are held; the prompts that were used longest ago are dropped.

    Attributes:
        shortest: prompts with fewer tokens in common are read again.
        skipped: the number of tokens that were not read again.
    """

    def __init__(self, most: int, shortest: int = SHORTEST) -> None:
        self.most, self.shortest, self.skipped = most, shortest, 0
        self._read: OrderedDict[tuple[int, ...], list[KeyValues]] = OrderedDict()  # of each prompt, by layer

    def longest(self, ids: Sequence[int]) -> tuple[int, list[KeyValues]]:
        """How many first tokens these ids have in common with a prompt at most, and their keys and values by layer.

        0 and an empty list, if they are fewer than `shortest`.
        """
        best = max(self._read, key=lambda read: common_length(read, ids), default=())  # the first of equals
        count = common_length(best, ids)
        if count < max(1, self.shortest):  # fewer are not worth a copy
            return 0, []
        self._read.move_to_end(best)  # used last, dropped last
        return count, [KeyValues(layer.keys[:, :, :count], layer.values[:, :, :count]) for layer in self._read[best]]

    def remember(self, ids: tuple[int, ...], keys: Sequence[Tensor], values: Sequence[Tensor]) -> None:
        """Hold the keys and values (1,Hkv,T,K) of a prompt, by layer, and drop the oldest ones where they are too many.

        The tensors must not be changed later.
        """
        if len(ids) < self.shortest:
            return
        self._read[ids] = [KeyValues(k, v) for k, v in zip(keys, values)]
        self._read.move_to_end(ids)
        while sum(map(len, self._read)) > self.most:
            self._read.popitem(last=False)


class PrefixCachingSteps(FastStepFunction):
    """The steps `inner` of a decoder, which hold the prompts that they read last in `memory`."""

    def __init__(self, inner: FastStepFunction, memory: PrefixCache) -> None:
        vars(self).update(vars(inner))
        self.memory = memory

    def prefill_in_chunks(
        self, ids: Tensor, token_mask: Tensor | None, size: int, known: Sequence[KeyValues] = ()
    ) -> Iterator[FastState | None]:
        """As `FastStepFunction.prefill_in_chunks`; what is known is looked up in the memory.

        Prompts that are long enough to be remembered are read one by one, because the next one may begin alike.
        """
        real = torch.ones_like(ids, dtype=torch.bool) if token_mask is None else token_mask
        prompts = [row[is_real].tolist() for row, is_real in zip(ids, real)]
        short = [row for row, prompt in enumerate(prompts) if len(prompt) <= self.memory.shortest]
        long = [row for row, prompt in enumerate(prompts) if len(prompt) > self.memory.shortest]
        together = [super().prefill_in_chunks(ids[short], real[short], size)] if short else []
        states = list[FastState]()
        for state in chain(*together, *(self._begin_one(prompts[row], ids.device, size) for row in long)):
            if state is None:
                yield None
            else:
                states.append(state)
        if len(states) == 1:
            yield states[0]
        else:
            order = torch.tensor([*short, *long], device=ids.device)  # the row of each output
            yield self.joined(states).select(order.argsort())  # back in the order of the rows

    def _begin_one(self, prompt: list[int], device: torch.device, size: int) -> Iterator[FastState | None]:
        """Read one prompt, but for the tokens that it has in common with another one."""
        count, known = self.memory.longest(prompt[:-1])
        self.memory.skipped += count
        for state in super().prefill_in_chunks(torch.tensor([prompt], device=device), None, size, known):
            if state is not None:
                length, cache = len(prompt) - 1, state.cache
                keys, values = (
                    [tensor[:, :, :length].clone() for tensor in part] for part in (cache.keys, cache.values)
                )
                self.memory.remember(tuple(prompt[:-1]), keys, values)
            yield state
