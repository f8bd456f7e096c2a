"""Continuous batches of beams: searches of several requests as one, whose groups come and go between steps.

An output is the one that `beam_search.beam` finds for the same request, whatever is beside it: the groups of one step
share the network and the operations of the search, each with a length, limits and rules of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch

from atento.decoding.beam.beam_search import BeamSearch
from atento.decoding.beam.candidates import HighestScores
from atento.decoding.beam.groups import BeamRequest, Group
from atento.decoding.choosing import moved_up, no_distribution
from atento.decoding.running import Reading, RunningBatch

WIDEST = 8  # beams of a text that read one another's columns; with more, a search by itself is not slower


@dataclass(eq=False)
class _Arrival:
    """A group whose input is being read."""

    group: Group
    reading: Reading


class BeamBatch:
    """The searches of one width that share steps.

    Args:
        batch: its groups are those of the search.
        width: w, the slots of a group.
        candidates: how many continuations of a group are ranked at a step.
        part: about so many tokens of inputs are read between two steps.
    """

    def __init__(self, batch: RunningBatch, width: int, candidates: int, *, part: int, device: torch.device) -> None:
        self.batch, self.width, self.part, self.device = batch, width, part, device
        self.search = BeamSearch(width, HighestScores(candidates), device)
        self.tokens = torch.empty(0, width, dtype=torch.long, device=device)  # (U,w) what the next step reads
        self._arrivals: list[_Arrival] = []

    def add(self, asked: BeamRequest) -> None:
        """Let the searches of a request begin."""
        self._arrivals += [
            _Arrival(group, self.batch.reading(asked.request.prompts[group.row])) for group in asked.groups
        ]

    @property
    def rows(self) -> int:
        """The number of hypotheses of the groups that are not over."""
        groups = [*self.search.groups, *(arrival.group for arrival in self._arrivals)]
        return self.width * sum(not group.is_over for group in groups)

    def step(self) -> int:
        """One step of all groups, or a part of a prompt; the number of rows that the step had."""
        self._change_groups()
        if not self.search.groups:
            return 0
        log_probs = torch.log_softmax(self.batch.step(self.tokens.flatten()), dim=-1)  # (U·w,V)
        # end the requests whose logits are NaN or infinite; they fail
        broken = log_probs[:, 0].isnan()  # then all of the row are
        if bool(broken.any()):
            for number in broken.view(-1, self.width).any(dim=1).nonzero().flatten().tolist():
                group = self.search.groups[number]
                group.asked.error = no_distribution(group.row, group.length)
                group.asked.drop()
        parents, self.tokens = self.search.extend(log_probs)
        self.batch.reorder(parents)  # slots of a group may continue one another
        return len(log_probs)  # rows that the network computed

    def _change_groups(self) -> None:
        """Drop the groups that are over, read a part of the inputs, and take in the groups whose input was read."""
        groups = self.search.groups
        numbers = moved_up([not group.is_over for group in groups])
        if len(numbers) < len(groups):
            self.tokens = self.tokens[numbers]  # (U',w)
            self.search.select(numbers)
            self.batch.keep(numbers)
        self._arrivals = [arrival for arrival in self._arrivals if not arrival.group.is_over]
        if not self._arrivals:
            return
        self.batch.read([arrival.reading for arrival in self._arrivals], self.part)
        joining = [arrival for arrival in self._arrivals if arrival.reading.is_read]
        if not joining:
            return
        self._arrivals = [arrival for arrival in self._arrivals if not arrival.reading.is_read]
        self.batch.join([arrival.reading for arrival in joining])
        self.search.join([arrival.group for arrival in joining])
        first = torch.tensor([[arrival.reading.first] for arrival in joining], dtype=torch.long, device=self.device)
        self.tokens = torch.cat([self.tokens, first.expand(-1, self.width)])  # all slots read the same first token


class BeamBatches:
    """A continuous batch for each width, and each number of candidates, that is asked for.

    Args:
        batch: makes the running batch of a continuous batch of that width.
        part: as of `ContinuousBatch`.
    """

    def __init__(self, batch: Callable[[int], RunningBatch], *, part: int, device: torch.device) -> None:
        self._batch, self._part, self._device = batch, part, device
        self._beam_batches: dict[tuple[int, int], BeamBatch] = {}

    @staticmethod
    def takes(asked: BeamRequest) -> bool:
        """Whether a search may share steps: one group a text, at most `WIDEST` wide, no required words, no trace."""
        strategy, request = asked.strategy, asked.request
        is_plain = strategy.groups == 1 and request.trace is None and not any(request.required or ())
        return is_plain and strategy.width <= WIDEST

    def add(self, asked: BeamRequest) -> BeamBatch:
        """Let the searches of a request begin, in the continuous batch that is returned."""
        key = asked.width, asked.candidates  # searches of one shape share operations
        if key not in self._beam_batches:
            self._beam_batches[key] = BeamBatch(self._batch(asked.width), *key, part=self._part, device=self._device)
        self._beam_batches[key].add(asked)
        return self._beam_batches[key]

    @property
    def rows(self) -> int:
        """The number of hypotheses of all continuous batches."""
        return sum(beam_batch.rows for beam_batch in self._beam_batches.values())

    def steps(self) -> Iterator[int]:
        """One step of each continuous batch that has rows; the number of rows that it had."""
        for beam_batch in self._beam_batches.values():
            if beam_batch.rows:
                yield beam_batch.step()
