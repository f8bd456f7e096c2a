"""The decoding strategies and their options, as plain values: greedy search, sampling, beam search, MBR. No torch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Any, Literal


@dataclass(frozen=True)
class Greedy:
    """The most probable token at every step (docs/notes.md#h1)."""


@dataclass(frozen=True)
class Sample:
    """Sampling: tokens drawn from the model's distribution (docs/notes.md#h2 to #h5).

    The filters apply in this order, and the probabilities that remain are scaled to sum to 1.

    Args:
        temperature: divides the logits; 0 takes the most probable token.
        top_k: keeps the k most probable tokens; 0: all.
        top_p: keeps the smallest set of most probable tokens whose probability reaches p, one at least.
        min_p: keeps the tokens with at least this share of the best one's probability.
        n: outputs a row.
        typical_p: keeps the smallest set whose probability reaches p, tokens whose -log p is nearest to the entropy
            first.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    n: int = 1
    typical_p: float = 1.0

    def __post_init__(self) -> None:
        if not 0 <= self.temperature < float("inf"):
            raise ValueError(f"`temperature` must be finite and not negative: got {self.temperature}")
        if self.top_k != int(self.top_k) or self.top_k < 0:
            raise ValueError(f"`top_k` must be a whole number, 0 or more: got {self.top_k}")
        for name in ("top_p", "typical_p"):
            if not 0 < getattr(self, name) <= 1:
                raise ValueError(f"`{name}` must lie in (0, 1]: got {getattr(self, name)}")
        if not 0 <= self.min_p <= 1:
            raise ValueError(f"`min_p` must lie in [0, 1]: got {self.min_p}")
        if self.n < 1:
            raise ValueError(f"`n` must be at least 1: got {self.n}")


@dataclass(frozen=True)
class Beam:
    """Beam search: the `width` best hypotheses are extended at every step (docs/notes.md#h6).

    Args:
        width: how many live hypotheses the beam holds.
        length_penalty: outputs are ranked by log-probability / length ** length_penalty; 0 favours short outputs.
        n_best: how many outputs are returned, at most `width`.
        stopping: "fixed" holds `width` live hypotheses until `width` outputs have finished; "shrinking" closes one
            slot for each output that finishes.
        until: when the search for a sentence ends: "filled", as soon as `width` outputs have finished; "likely", when
            no live hypothesis would rank among them at its present length; "sure", when none could at any length that
            it may reach.
        groups: divides the beam into groups that choose one after the other: diverse beam search (Vijayakumar et al.
            2018). Must divide `width`.
        diversity: subtracted from the log-probability of a token for each earlier group that has taken it at the same
            step.
    """

    width: int = 4
    length_penalty: float = 1.0
    n_best: int = 1
    stopping: Literal["fixed", "shrinking"] = "fixed"
    until: Literal["filled", "likely", "sure"] = "filled"
    groups: int = 1
    diversity: float = 0.0

    def __post_init__(self) -> None:
        if self.width < 1:
            raise ValueError(f"`width` must be at least 1: got {self.width}")
        if not 1 <= self.n_best <= self.width:
            raise ValueError(f"`n_best` must lie between 1 and `width` {self.width}: got {self.n_best}")
        if self.stopping not in ("fixed", "shrinking"):
            raise ValueError(f"`stopping` must be 'fixed' or 'shrinking': got {self.stopping!r}")
        if self.until not in ("filled", "likely", "sure"):
            raise ValueError(f"`until` must be 'filled', 'likely' or 'sure': got {self.until!r}")
        if not isfinite(self.length_penalty) or not isfinite(self.diversity):
            raise ValueError(
                f"`length_penalty` and `diversity` must be finite: got {self.length_penalty} and {self.diversity}"
            )
        if self.groups < 1 or self.width % self.groups:
            raise ValueError(f"`groups` must divide `width`: got {self.groups} and {self.width}")
        if self.diversity < 0:
            raise ValueError(f"`diversity` must not be negative: got {self.diversity}")


@dataclass(frozen=True)
class MBR:
    """Minimum Bayes risk: the candidate with the lowest expected risk, 1 - utility (docs/notes.md#h10).

    Args:
        utility: "bleu", "chrf", "rouge" (ROUGE-L), "rouge1", "rouge2", "f1", or a function of (candidates,
            evidence), two lists of texts, that gives the matrix of utilities (N,M) in 0-1, candidate in the place of
            the hypothesis, evidence of the reference (`atento.metrics.mbr_utilities`).
        candidates: the strategy that writes the candidates, or several, whose outputs are joined.
        evidence: the strategy that writes the outputs that candidates are compared with; None: the candidates
            themselves.
        weights: "uniform" counts each piece of evidence once for each time it was drawn; "model" weighs it by the
            model's probability, the same output once.
        self_comparison: whether a candidate is also compared with itself, where the candidates are the evidence.
        text: ids -> text; None: each id stands for a word of one letter.
        n_best: how many outputs of different texts are returned, lowest risk first.
        method: "full" compares every candidate with every piece of evidence; "aggregated", "coarse" and "pruned" are
            faster for hundreds of them and nearly agree (`atento.decoding.risk.minimum_bayes_risk_choice`).
        keep: how many candidates "coarse" and "pruned" compare with all the evidence at least.
        confidence: how sure "pruned" must be before it drops a candidate.
    """

    utility: str | Callable[[list[str], list[str]], Any] = "chrf"
    candidates: Sample | Beam | Sequence[Sample | Beam] = Sample(n=32)
    evidence: Sample | Beam | Sequence[Sample | Beam] | None = None
    weights: Literal["uniform", "model"] = "uniform"
    self_comparison: bool = True
    text: Callable[[list[int]], str] | None = None
    n_best: int = 1
    method: Literal["full", "aggregated", "coarse", "pruned"] = "full"
    keep: int = 16
    confidence: float = 0.999

    def __post_init__(self) -> None:
        for name in ("candidates", "evidence"):
            if getattr(self, name) in ((), []):
                raise ValueError(f"`{name}` must hold a strategy at least: got none")
        if self.weights not in ("uniform", "model"):
            raise ValueError(f"`weights` must be 'uniform' or 'model': got {self.weights!r}")
        if self.method not in ("full", "aggregated", "coarse", "pruned"):
            raise ValueError(f"`method` must be 'full', 'aggregated', 'coarse' or 'pruned': got {self.method!r}")
        if self.n_best < 1 or self.keep < 1:
            raise ValueError(f"`n_best` and `keep` must be at least 1: got {self.n_best} and {self.keep}")
        if not 0 < self.confidence < 1:
            raise ValueError(f"`confidence` must lie between 0 and 1: got {self.confidence}")


Strategy = Greedy | Sample | Beam | MBR
