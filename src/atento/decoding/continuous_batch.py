"""A continuous batch: greedy search and sampling for outputs that come and go between steps, each of a request.

An output is what `token_loop.token_search` writes for the same request, whatever is beside it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

import torch

from atento.decoding.running import Reading, RunningBatch
from atento.decoding.token_loop import Drawn, Output, TokenLoop


@dataclass
class _Input:
    """An input with its outputs, which begin when it was read."""

    outputs: list[Output]
    reading: Reading


class ContinuousBatch(TokenLoop):
    """The outputs that are being written by one network.

    Args:
        batch: its rows are those of the outputs.
        part: about so many tokens of inputs are read between two steps, so that long ones do not hold up the others.
        most: outputs that are written at a time; further ones wait.
    """

    def __init__(self, batch: RunningBatch, *, part: int, most: int, device: torch.device) -> None:
        super().__init__(batch, [], torch.empty(0, dtype=torch.long, device=device))
        self.running, self.part, self.most, self.device = batch, part, most, device
        self._new: list[Output] = []
        self._inputs: list[_Input] = []  # those that are being read

    def add(self, outputs: Sequence[Output]) -> None:
        """Let outputs begin, the samples of one input side by side."""
        self._new += [output for output in outputs if not output.has_ended]

    def drop(self, outputs: Sequence[Output]) -> None:
        """End outputs; they leave before the next step."""
        for output in outputs:
            output.has_ended = True

    @property
    def rows(self) -> int:
        """The number of outputs that have not ended."""
        outputs = chain(self.outputs, *(one.outputs for one in self._inputs), self._new)
        return sum(not output.has_ended for output in outputs)

    def step(self) -> list[tuple[Output, Drawn | None]]:
        """One token of each output, or part of a prompt; None for an output that ended without another token."""
        # begin to read the inputs of new outputs
        self._new = [output for output in self._new if not output.has_ended]
        room = max(0, self.most - (self.rows - len(self._new)))  # what is written or read counts
        by_input: dict[int, list[Output]] = {}
        for output in self._new[:room]:
            by_input.setdefault(id(output.input_ids), []).append(output)  # outputs of one input read it once
        self._new = self._new[room:]
        for outputs in by_input.values():
            self._inputs.append(_Input(outputs, self.running.reading(outputs[0].input_ids)))
        return super().step()

    def _change_rows(self) -> None:
        """Drop the outputs that have ended, read a part of the inputs, and take in the outputs whose input was read."""
        super()._change_rows()
        for one in self._inputs:
            one.outputs = [output for output in one.outputs if not output.has_ended]
        self._inputs = [one for one in self._inputs if one.outputs]
        self.running.read([one.reading for one in self._inputs], self.part)
        joining = [one for one in self._inputs if one.reading.is_read]
        self._inputs = [one for one in self._inputs if not one.reading.is_read]
        if joining:
            readings = [one.reading for one in joining for _ in one.outputs]  # a row for each output of an input
            self.running.join(readings)
            self.outputs += [output for one in joining for output in one.outputs]
            first = torch.tensor([reading.first for reading in readings], dtype=torch.long, device=self.device)
            self.tokens = torch.cat([self.tokens, first])  # (R,)
