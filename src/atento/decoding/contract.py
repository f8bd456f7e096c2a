"""The input of a search: the step function that it calls, and the request."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, Self, TypeVar, runtime_checkable

from torch import Tensor

from atento.decoding.trace import Trace


class State(Protocol):
    """The state of a network after the tokens that it read for the rows of one batch; it belongs to one search."""

    def select(self, rows: Tensor) -> Self:
        """The state of those batch rows, in that order; a row may occur several times."""


StateT = TypeVar("StateT", bound=State)


@runtime_checkable
class Keeping(Protocol):
    """A state whose rows can leave within its memory."""

    def keep(self, rows: Tensor) -> Self:
        """As `select`, where this state is not used again."""


class StepFunction(Protocol[StateT]):
    """What a search needs of a network: it begins from a batch and reads one token a row at a time.

    Everything that a call has read is in the state, so threads can share a step function. It may also have the methods
    of `PromptReader` and `ObservableStepFunction`, and `eos_ids` where several ids end an output.
    """

    start_id: int
    eos_id: int
    pad_id: int

    def begin(self, ids: Tensor, token_mask: Tensor | None) -> StateT:
        """ids (B,S) -> a state of B rows."""

    def step(self, tokens: Tensor, state: StateT) -> tuple[Tensor, StateT]:
        """tokens (R,) or several (R,T) of R rows -> logits (R,V) of what comes next, and the state after them."""


AnyStepFunction = StepFunction[Any]
"""A step function whose state is opaque to the caller."""


@runtime_checkable
class PromptReader(Protocol):
    """A step function that continues prompts: `begin` reads all of each but its last token."""

    def first_tokens(self, ids: Tensor, token_mask: Tensor | None) -> Tensor:
        """ids (B,S) -> what the first step reads (B,)."""


@runtime_checkable
class ObservableStepFunction(Protocol):
    """A step function whose network can be observed: after a search it runs once more, over the best outputs."""

    def show(self, ids: Tensor, token_mask: Tensor | None, written: list[list[int]]) -> None:
        """Show observers the input: `ids` and `token_mask` as given to `begin`, and each row's output."""


@runtime_checkable
class Joining(Protocol):
    """A step function whose states can be joined, so that searches that began at different times share its steps."""

    def joined(self, states: Sequence[State]) -> State:
        """The rows of all states in their order, in new memory; rows may have read different numbers of tokens.

        The join of a single state needs no more memory than its longest row.
        """

    def prefill_in_chunks(self, ids: Tensor, token_mask: Tensor | None, size: int) -> Iterator[State | None]:
        """As `begin`, in parts of `size` tokens of long prompts: gives None after each part, and the state at last."""


@runtime_checkable
class Rewinding(Protocol):
    """A step function that reads several tokens of each row in one step, and whose states can give tokens back.

    Drafted decoding (`atento.decoding.draft_verification`) needs it. Each of these states replaces the one before,
    which must not be used again.
    """

    @property
    def rounding(self) -> float:
        """How far a logit of `step_all` may be from that of `step`, as a share of the highest logit's size."""

    def rewindable(self, state: State) -> State:
        """The rows of a state from `begin`, which stays as it is, as one for `step_all` and `crop`.
        Raises CapabilityError: tokens of this network's states cannot be taken back.
        """

    def step_all(self, tokens: Tensor, counts: Sequence[int], state: State) -> tuple[Tensor, State]:
        """tokens (R,T) -> logits (R,T,V) of what comes after each, and the state after the first `counts` (R) of a row.

        The others are padding: any tokens, whose logits have no meaning. T is the highest of `counts`.
        """

    def crop(self, state: State, counts: Sequence[int]) -> State:
        """The state without the last `counts` (R) tokens of each row."""


@dataclass(frozen=True)
class Written:
    """What the rows of one step have written, for the rules: R rows of the same length t."""

    ids: Tensor  # (R,t) written so far, prefix and prompt not counted
    rows: Sequence[int]  # (R): which row of the request each belongs to
    prompts: Sequence[Sequence[int]]  # (B): the source's ids, or the prompt's, of each row of the request


Rule = Callable[[Tensor, Written], Tensor]
"""scores (R,V) and what was written before them -> changed scores, in a new tensor; -inf forbids a token."""


@dataclass(frozen=True)
class Request:
    """The options that all strategies share.

    Every row of the batch (B) has its own `max_new_tokens`, prompt and seed. `rules` change the scores before a token
    is chosen, in their order. `stop` is called after every token with the ids of an output so far; the output ends
    where it returns True. `trace` records what the search considered.
    """

    max_new_tokens: list[int]
    min_new_tokens: int
    eos_ids: tuple[int, ...]
    rules: tuple[Rule, ...] = ()
    seeds: tuple[int, ...] = ()
    prompts: Sequence[Sequence[int]] = ()
    required: Sequence[Sequence[Sequence[int]]] | None = None  # a row: token sequences that its output must hold
    stop: Callable[[list[int]], bool] | None = None
    trace: Trace | None = None
