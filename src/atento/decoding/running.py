"""The rows that are written together, and for a continuous batch the inputs that are read for rows to come.

`StateRows` are those of a call. `RunningBatch` is what a continuous batch needs; `JoinedRows` is the plain one, for
every step function whose states can be joined. `inference.slots.Slots` gives the same outputs on fast steps, without
copies of rows that stay.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from atento.decoding.choosing import kept
from atento.decoding.contract import AnyStepFunction, Joining, State, StateT, StepFunction
from atento.decoding.source import first_tokens


class Reading(Protocol):
    """An input that is being read."""

    @property
    def first(self) -> int:
        """The token that its rows read first."""

    @property
    def is_read(self) -> bool:
        """Whether its rows can join."""


class Rows(Protocol):
    """Groups of rows that are stepped together, and that leave between two steps.

    A group is of w rows, all of one input: w is 1, or the width of a beam.
    """

    def keep(self, groups: Sequence[int]) -> None:
        """Only those groups, in that order; a group moves forward, or stays where it is."""

    def step(self, tokens: Tensor) -> Tensor:
        """tokens (U·w,) -> logits (U·w,V) of what comes next in each row."""


class RunningBatch(Rows, Protocol):
    """Groups of rows that come and go between two steps."""

    def reading(self, ids: Sequence[int]) -> Reading:
        """An input that is to be read."""

    def read(self, readings: Sequence[Any], part: int) -> None:
        """Read about `part` tokens of the first inputs that are not read yet, at once or with the next step."""

    def join(self, readings: Sequence[Any]) -> None:
        """Append a group for each of these inputs, which were read; an input may occur several times."""

    def reorder(self, parents: Tensor) -> None:
        """Each row continues a row of its group from now on: `parents` (U,w), from 0 to w-1."""


class StateRows:
    """The rows of one state, which begin together: rows leave and none come."""

    def __init__(self, step_function: StepFunction[StateT], state: StateT, device: torch.device) -> None:
        self.step_function, self.state, self.device = step_function, state, device

    def keep(self, groups: Sequence[int]) -> None:
        """Only those rows, in that order."""
        if groups:
            self.state = kept(self.state, torch.tensor(groups, dtype=torch.long, device=self.device))

    def step(self, tokens: Tensor) -> Tensor:
        """tokens (R,), or (R,P) at first -> logits (R,V) of what comes next in each row."""
        logits, self.state = self.step_function.step(tokens, self.state)
        return logits


@dataclass(eq=False)
class JoinedReading:
    """An input of `JoinedRows`; `parts` gives None after each part of it, and its state at last."""

    first: int
    parts: Iterator[State | None]
    size: int  # tokens of a part
    state: Any = None

    @property
    def is_read(self) -> bool:
        """Whether its rows can join."""
        return self.state is not None


class JoinedRows:
    """The rows of one running batch as one state: where rows come or go, all of it is copied.

    Args:
        step_function: one whose states can be joined.
        part: tokens of a long prompt that are read at a time.
        width: w, the rows of a group.
    """

    def __init__(self, step_function: AnyStepFunction, *, part: int, device: torch.device, width: int = 1) -> None:
        assert isinstance(step_function, Joining)
        self.step_function, self.part, self.device, self.width = step_function, part, device, width
        self.state: Any = None  # of the rows; None: there are none
        self._new: list[Any] = []  # the states of rows that join before the next step

    def reading(self, ids: Sequence[int]) -> JoinedReading:
        """An input that is to be read."""
        row = torch.tensor([list(ids)], dtype=torch.long, device=self.device)
        parts = self.step_function.prefill_in_chunks(row, None, self.part)
        return JoinedReading(int(first_tokens(self.step_function, row, None, None)), parts, min(len(ids), self.part))

    def read(self, readings: Sequence[JoinedReading], part: int) -> None:
        """Read about `part` tokens of the first inputs that are not read yet."""
        for reading in readings:
            if part <= 0:
                return
            if not reading.is_read:
                reading.state = next(reading.parts)  # None until its last part is read
                part -= reading.size

    def join(self, readings: Sequence[JoinedReading]) -> None:
        """Append a group for each of these inputs."""
        for reading in readings:
            self._new.append(reading.state.select(torch.zeros(self.width, dtype=torch.long, device=self.device)))

    def keep(self, groups: Sequence[int]) -> None:
        """Only those groups, in that order."""
        self._join_new()
        index = torch.tensor(groups, dtype=torch.long, device=self.device).unsqueeze(1) * self.width
        rows = index + torch.arange(self.width, device=self.device)  # (U',w)
        self.state = self.state.select(rows.flatten()) if groups else None  # a state of no rows does not exist

    def reorder(self, parents: Tensor) -> None:
        """Each row continues a row of its group from now on."""
        first = torch.arange(len(parents), device=self.device).unsqueeze(1) * self.width  # (U,1)
        self.state = self.state.select((first + parents).flatten())  # (U·w,)

    def step(self, tokens: Tensor) -> Tensor:
        """tokens (U·w,) -> logits (U·w,V) of what comes next in each row."""
        self._join_new()
        logits, self.state = self.step_function.step(tokens, self.state)
        return logits

    def _join_new(self) -> None:
        if self._new:
            states = self._new if self.state is None else [self.state, *self._new]
            self.state, self._new = self.step_function.joined(states), []  # one copy for all that join
