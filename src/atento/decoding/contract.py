"""What decoding gives and what it needs: hypotheses, the request, and the step function that it walks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from torch import Tensor

if TYPE_CHECKING:
    from atento.decoding.trace import Trace


@dataclass(frozen=True)
class Hypothesis:
    """One output: `ids` without EOS; `token_scores`, log-probabilities (nats) of its tokens, EOS's last if finished.

    `log_prob` is their sum; `score` = log_prob / length ** length_penalty, EOS counted (docs/notes.md#h8). `finished`:
    by EOS, or by a stop string, which has no score of its own.
    """

    ids: list[int]
    score: float
    log_prob: float
    token_scores: list[float] = field(repr=False)
    finished: bool = True

    def __repr__(self) -> str:
        end = "finished" if self.finished else "unfinished"
        return f"Hypothesis({len(self.ids)} ids, score={self.score:.4f}, log_prob={self.log_prob:.4f}, {end})"


class StepFunction(Protocol):
    """A network, or a toy, seen by a search: it knows nothing else of it.

    One that goes on from a prompt also has `first_tokens(ids, token_mask)` -> (B,): what its first step reads.
    """

    start_id: int
    eos_id: int
    pad_id: int

    def begin(self, ids: Tensor, token_mask: Tensor | None) -> Any:
        """ids (B,S) -> a state of B rows, which has `select(rows)`."""

    def step(self, tokens: Tensor, state: Any) -> tuple[Tensor, Any]:
        """tokens (R,) of R rows -> logits (R,V) of what comes next, and the state after them."""


@dataclass(frozen=True)
class Written:
    """What the rows of one step have behind them, for the rules: R rows that stand at the same length t."""

    ids: Tensor  # (R,t) written so far, prefix and prompt not counted
    rows: Sequence[int]  # (R): which row of the request each belongs to
    prompts: Sequence[Sequence[int]]  # (B): the source's ids, or the prompt's, of each row of the request


Rule = Callable[[Tensor, Written], Tensor]
"""scores (R,V) and what stands behind them -> scores changed, in a new tensor; -inf forbids."""


@dataclass(frozen=True)
class Request:
    """What every strategy obeys, beside its own fields.

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
