"""Searches of several jobs that share the steps of one network, each written as if it were alone.

A search runs in a greenlet. Where it calls `step`, it waits; when all of them wait, their rows are stepped together,
and each goes on with its logits. So beam search, minimum Bayes risk and the exact search are those of
`atento.decoding`, unchanged. Beams of the same width are one search (`decoding.beam.beam_batch`): each waits for
its outputs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from greenlet import GreenletExit, getcurrent, greenlet
from torch import Tensor

from atento.base.errors import CapabilityError
from atento.decoding.beam.beam_batch import BeamBatches
from atento.decoding.beam.beam_search import BeamSearch
from atento.decoding.beam.groups import BeamRequest
from atento.decoding.contract import AnyStepFunction, Joining, Rewinding, State
from atento.decoding.running import JoinedRows, RunningBatch
from atento.decoding.source import ends_of, first_tokens
from atento.inference.fast import FastStepFunction
from atento.inference.prompts import PrefixCache, PrefixCachingSteps
from atento.inference.slots import Slots

REMEMBERED = 2048  # tokens of prompts whose keys and values are held, for prompts that begin alike
PART = 256  # tokens of inputs that are read between two steps


@dataclass(frozen=True)
class SharedState:
    """Rows of a state that several searches share."""

    state: State
    rows: Tensor  # (R,)

    def select(self, rows: Tensor) -> SharedState:
        """Only those rows, in that order; they are taken from the shared state at the next step."""
        return SharedState(self.state, self.rows[rows])


@dataclass(eq=False)
class _Waiting:
    """A search that waits for a step, and what it reads."""

    search: greenlet
    tokens: Tensor
    shared: SharedState


@dataclass(eq=False)
class _WaitingBeam:
    """A search in a continuous batch, which goes on after each step of it, or when it has its outputs."""

    search: greenlet
    asked: BeamRequest
    each: bool


class Searches:
    """The searches under way; also the step function that they call.

    Args:
        step_function: of the network.
        part: tokens of prompts that are read between two steps.
        joins: whether searches share steps, if states can be joined; else each makes its own steps, in turns. A search
            that holds many states should not share them, because a shared state holds the rows of all.
        beam_batches: continuous batches of beams; None: each beam is a search like the others.
    """

    def __init__(
        self, step_function: AnyStepFunction, *, part: int, joins: bool = True, beam_batches: BeamBatches | None = None
    ) -> None:
        self.inner, self.part, self.beam_batches = step_function, part, beam_batches
        self._join = step_function.joined if joins and isinstance(step_function, Joining) else None
        self.start_id, self.eos_id = step_function.start_id, step_function.eos_id
        self.pad_id, self.eos_ids = step_function.pad_id, ends_of(step_function, None)
        self._hub = getcurrent()
        self._ready: list[greenlet] = []  # those that go on without a step
        self._waiting: list[_Waiting] = []
        self._beams: list[_WaitingBeam] = []

    def start(self, run: Callable[[], None]) -> greenlet:
        """Let a search begin with the next step; `run` must raise nothing."""
        search = greenlet(run, parent=self._hub)
        self._ready.append(search)
        return search

    def stop(self, search: greenlet) -> None:
        """End a search where it is."""
        self._ready = [ready for ready in self._ready if ready is not search]
        self._waiting = [waiting for waiting in self._waiting if waiting.search is not search]
        self._beams = [beam for beam in self._beams if beam.search is not search]
        search.throw(GreenletExit)

    @property
    def rows(self) -> int:
        """The number of rows that wait for a step, and of searches that are at the beginning."""
        in_batches = 0 if self.beam_batches is None else self.beam_batches.rows
        return sum(len(waiting.shared.rows) for waiting in self._waiting) + len(self._ready) + in_batches

    def run_step(self) -> int:
        """Let all searches run until they wait, and make one step of all rows; the number of these."""
        ready, self._ready = self._ready, []  # those begun meanwhile wait for the next step
        for search in ready:
            search.switch()  # until it asks for a step, or ends
        waiting, self._waiting = self._waiting, []  # those that ask again wait for the next step
        count = sum(len(one.tokens) for one in waiting)
        if self.beam_batches is not None:  # one step of all beams in continuous batches
            count += sum(self.beam_batches.steps())
            beams, self._beams = self._beams, []
            for beam in beams:
                if beam.each or not beam.asked.open:
                    beam.search.switch()
                else:
                    self._beams.append(beam)
        for batch, state in self._batches(waiting):  # states of one shape are one step
            logits, state = self.inner.step(torch.cat([one.tokens for one in batch]), state)
            first = 0
            for one in batch:
                last = first + len(one.tokens)
                rows = torch.arange(first, last, device=logits.device)
                # the search sees its own rows of it alone
                one.search.switch(logits[first:last], SharedState(state, rows))
                first = last
        return count

    # The step function that searches call.

    def first_tokens(self, ids: Tensor, token_mask: Tensor | None) -> Tensor:
        """As the step function of the network."""
        return first_tokens(self.inner, ids, token_mask, None)

    def begin(self, ids: Tensor, token_mask: Tensor | None) -> SharedState:
        """As the step function of the network; other searches go on between the parts of a long prompt."""
        if not isinstance(self.inner, Joining):
            state = self.inner.begin(ids, token_mask)
        else:
            for state in self.inner.prefill_in_chunks(ids, token_mask, max(1, self.part // len(ids))):
                if state is None:
                    self._ready.append(getcurrent())
                    self._hub.switch()
        return SharedState(state, torch.arange(len(ids), device=ids.device))

    def step(self, tokens: Tensor, state: SharedState) -> tuple[Tensor, SharedState]:
        """As the step function of the network, together with the rows of the other searches."""
        self._waiting.append(_Waiting(getcurrent(), tokens, state))
        result: tuple[Tensor, SharedState] = self._hub.switch()
        return result

    def takes(self, asked: BeamRequest) -> bool:
        """As `decoding.beam.beam_search.BeamHost.takes`."""
        return self.beam_batches is not None and self.beam_batches.takes(asked)

    def beam_steps(self, asked: BeamRequest, *, each: bool) -> Iterator[BeamSearch]:
        """As `decoding.beam.beam_search.BeamHost.beam_steps`."""
        assert self.beam_batches is not None
        beam_batch = self.beam_batches.add(asked)
        try:
            while asked.open:
                self._beams.append(_WaitingBeam(getcurrent(), asked, each))
                self._hub.switch()
                yield beam_batch.search
        finally:
            asked.drop()
        if asked.error is not None:
            raise asked.error

    @property
    def rounding(self) -> float:
        """As the step function of the network, which must be one of `Rewinding`; so the three methods below."""
        return float(self._rewinding.rounding)

    def rewindable(self, state: SharedState) -> State:
        """As the step function of the network."""
        return self._rewinding.rewindable(state.state.select(state.rows))

    def step_all(self, tokens: Tensor, counts: Sequence[int], state: State) -> tuple[Tensor, State]:
        """As the step function of the network, for these rows alone; other searches make a step before."""
        self._ready.append(getcurrent())
        self._hub.switch()
        return self._rewinding.step_all(tokens, counts, state)

    def crop(self, state: State, counts: Sequence[int]) -> State:
        """As the step function of the network."""
        return self._rewinding.crop(state, counts)

    @property
    def _rewinding(self) -> Rewinding:
        """The step function. Raises CapabilityError: tokens of its states cannot be taken back."""
        if not isinstance(self.inner, Rewinding):
            raise CapabilityError(f"a draft is not supported by the steps of a {type(self.inner).__name__}")
        return self.inner

    def _batches(self, waiting: list[_Waiting]) -> Iterator[tuple[list[_Waiting], State]]:
        """The searches whose rows are stepped together, with the state of these rows."""
        if self._join is None:  # states that cannot be joined
            for one in waiting:
                yield [one], one.shared.state.select(one.shared.rows)
            return
        by_state: dict[tuple[int, torch.Size, int], list[_Waiting]] = {}
        for one in waiting:
            # the rows of one state that read as many tokens
            by_state.setdefault((id(one.shared.state), one.tokens.shape[1:], _shape(one.shared)), []).append(one)
        by_width: dict[tuple[torch.Size, int], list[tuple[list[_Waiting], State]]] = {}
        for (_, shape, _), batch in by_state.items():
            # rows that no search has any more are dropped
            state = batch[0].shared.state.select(torch.cat([one.shared.rows for one in batch]))
            by_width.setdefault((shape, getattr(state, "width", 1)), []).append((batch, state))
        for parts in by_width.values():
            # padded to one length
            state = parts[0][1] if len(parts) == 1 else self._join([state for _, state in parts])
            yield [one for batch, _ in parts for one in batch], state


def _shape(shared: SharedState) -> int:
    """Rows with the same number can be selected at once, so that outputs of a text go on to share a cache.

    0: all outputs of each text, in any order. Of a state without tokens: how often each text is repeated. -1: others.
    """
    rows, width = shared.rows, getattr(shared.state, "width", 1)
    if width == 1 and getattr(shared.state, "length", 1) == 0:
        repeats = int((rows == rows[0]).sum())  # outputs of the first text
        return repeats if len(rows) % repeats == 0 else -1
    if len(rows) % width:
        return -1
    texts = rows.view(-1, width) // width  # (texts,w): the text of each row
    return 0 if bool((texts == texts[:, :1]).all()) else -1


def shared_steps(
    function: AnyStepFunction, device: torch.device
) -> tuple[AnyStepFunction, Callable[[int], RunningBatch] | None]:
    """What searches call of a step function, and what makes a running batch of its rows; None: they cannot share."""
    if isinstance(function, FastStepFunction):
        memory = None if function.reader is None else PrefixCache(REMEMBERED)
        remembering = function if memory is None else PrefixCachingSteps(function, memory)
        return remembering, partial(Slots, function, memory)
    if isinstance(function, Joining):
        return function, lambda width: JoinedRows(function, part=PART, device=device, width=width)
    return function, None
