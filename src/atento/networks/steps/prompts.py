"""The prompts that a decoder read last: tokens that a new prompt has in common with one of them are not read again.

Prompts often begin alike, with the same instructions or the same examples. Their keys and values are the same too,
because a token attends to none behind it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import takewhile

import torch
from torch import Tensor

from atento.attention.multihead import KeyValues
from atento.networks.steps.fast import FastStepFunction
from atento.networks.steps.fast_state import FastState

SHORTEST = 32  # tokens in common that are worth it


@dataclass(frozen=True)
class _Read:
    """A prompt that was read: its tokens but the last, and their keys and values in every layer, (1,Hkv,T,K)."""

    ids: tuple[int, ...]
    layers: list[KeyValues]

    def first(self, count: int) -> list[KeyValues]:
        """The keys and values of its first tokens."""
        return [KeyValues(layer.keys[:, :, :count], layer.values[:, :, :count]) for layer in self.layers]


class RememberingSteps:
    """A step function like the one it holds, whose states can be joined.

    Args:
        inner: of a decoder.
        most: tokens of prompts that are held; the prompts that were used longest ago are dropped.

    Attributes:
        skipped: the number of tokens that were not read again.
    """

    def __init__(self, inner: FastStepFunction, most: int) -> None:
        self.inner, self.most, self.skipped = inner, most, 0
        self.start_id, self.eos_id, self.pad_id = inner.start_id, inner.eos_id, inner.pad_id
        self._read: OrderedDict[tuple[int, ...], _Read] = OrderedDict()

    def first_tokens(self, ids: Tensor, token_mask: Tensor | None) -> Tensor:
        """As `FastStepFunction.first_tokens`."""
        return self.inner.first_tokens(ids, token_mask)

    def begin(self, ids: Tensor, token_mask: Tensor | None) -> FastState:
        """As `FastStepFunction.begin`."""
        *_, state = self.begin_in_parts(ids, token_mask, ids.shape[1])
        assert state is not None
        return state

    def step(self, tokens: Tensor, state: FastState) -> tuple[Tensor, FastState]:
        """As `FastStepFunction.step`."""
        return self.inner.step(tokens, state)

    def joined(self, states: Sequence[FastState]) -> FastState:
        """As `FastStepFunction.joined`."""
        return self.inner.joined(states)

    def begin_in_parts(self, ids: Tensor, token_mask: Tensor | None, size: int) -> Iterator[FastState | None]:
        """As `FastStepFunction.begin_in_parts`.

        Prompts that are long enough to be remembered are read one by one, because the next one may begin alike.
        """
        real = torch.ones_like(ids, dtype=torch.bool) if token_mask is None else token_mask
        prompts = [row[is_real].tolist() for row, is_real in zip(ids, real)]
        short = [row for row, prompt in enumerate(prompts) if len(prompt) <= SHORTEST]
        long = [row for row, prompt in enumerate(prompts) if len(prompt) > SHORTEST]
        states = list[FastState]()
        if short:
            index = torch.tensor(short, device=ids.device)
            for state in self.inner.begin_in_parts(ids[index], real[index], size):
                if state is None:
                    yield None
                else:
                    states.append(state)
        for row in long:
            for state in self._begin_one(prompts[row], ids.device, size):
                if state is None:
                    yield None
                else:
                    states.append(state)
        if len(states) == 1:
            yield states[0]
        else:
            order = torch.tensor([*short, *long], device=ids.device)
            yield self.inner.joined(states).select(order.argsort())

    def _begin_one(self, prompt: list[int], device: torch.device, size: int) -> Iterator[FastState | None]:
        """Read one prompt, but for the tokens that it has in common with another one."""
        read, count = self._longest(prompt[:-1])
        known = read.first(count) if read is not None else []
        self.skipped += count
        for state in self.inner.begin_in_parts(torch.tensor([prompt], device=device), None, size, known):
            if state is not None:
                self._remember(tuple(prompt[:-1]), state)
            yield state

    def _longest(self, ids: list[int]) -> tuple[_Read | None, int]:
        """The prompt with which these ids have most first tokens in common, and how many; None below `SHORTEST`."""
        best, most = None, SHORTEST - 1
        for read in self._read.values():
            count = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(read.ids, ids)))
            if count > most:
                best, most = read, count
        if best is not None:
            self._read.move_to_end(best.ids)
        return best, most if best is not None else 0

    def _remember(self, ids: tuple[int, ...], state: FastState) -> None:
        """Hold a prompt, and drop the oldest ones where they are too many."""
        length = len(ids)
        parts = zip(state.cache.keys, state.cache.values)
        self._read[ids] = _Read(ids, [KeyValues(k[:, :, :length].clone(), v[:, :, :length].clone()) for k, v in parts])
        self._read.move_to_end(ids)
        while sum(map(len, self._read)) > self.most:
            self._read.popitem(last=False)
