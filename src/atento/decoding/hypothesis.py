"""What decoding gives and what it needs: hypotheses, strategies, and the step function that it walks."""

from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from torch import Tensor


@dataclass(frozen=True)
class Hypothesis:
    """One output: `ids` without EOS; `token_scores`, log-probabilities (nats) of its tokens, EOS's last if finished.

    `log_prob` is their sum (H11); `score` = log_prob / length ** length_penalty, EOS counted (H8).
    """

    ids: list[int]
    score: float
    log_prob: float
    token_scores: list[float] = field(repr=False)
    finished: bool = True


@dataclass(frozen=True)
class Greedy:
    """The most probable token at every step (H1)."""


@dataclass(frozen=True)
class Beam:
    """The `width` best beginnings at every step (H6).

    stopping "fixed" keeps `width` beginnings until `width` outputs have finished; "shrinking" gives up one place for
    every output that finishes (H7). `length_penalty` 0 ranks by summed log-probability, which favours short outputs.
    """

    width: int = 4
    length_penalty: float = 1.0
    n_best: int = 1
    stopping: Literal["fixed", "shrinking"] = "fixed"

    def __post_init__(self) -> None:
        if self.width < 1:
            raise ValueError(f"`width` must be at least 1: got {self.width}")
        if not 1 <= self.n_best <= self.width:
            raise ValueError(f"`n_best` must lie between 1 and `width` {self.width}: got {self.n_best}")
        if self.stopping not in ("fixed", "shrinking"):
            raise ValueError(f"`stopping` must be 'fixed' or 'shrinking': got {self.stopping!r}")


class Steps(Protocol):
    """A network, or a toy, seen by a search: it knows nothing else of it.

    One that goes on from a prompt also has `first_tokens(ids, padding_mask)` -> (B,): what its first step reads.
    """

    start_id: int
    eos_id: int
    pad_id: int

    def begin(self, ids: Tensor, padding_mask: Tensor | None) -> Any:
        """ids (B,S) -> a state of B rows, which has `select(rows)`."""

    def step(self, tokens: Tensor, state: Any) -> tuple[Tensor, Any]:
        """tokens (R,) of R rows -> logits (R,V) of what comes next, and the state after them."""


@dataclass(frozen=True)
class Limits:
    """What every strategy obeys: `most` new tokens a sentence (B,), at least `least`, the ids that end an output."""

    most: list[int]
    least: int
    eos_ids: tuple[int, ...]
