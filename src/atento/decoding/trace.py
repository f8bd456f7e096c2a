"""A record of a search, step by step, in one format for every strategy.

A search that is given a trace calls it in this order:

    trace.begin("sample", count)                   # a search over `count` sentences begins: a new run
    at every step:
        trace.step(rows, ids, log_probs)           # R partial outputs: sentence of each, ids (R,t), log p (R,V)
        trace.filter("top_k", scores)              # after each rule or filter: the scores (R,V), -inf = removed
        trace.choose(tokens, ended)                # one token for each row (R), and whether it ends the output (R)
        # or, where a step keeps several: trace.candidate(row, token, fate, total=...) for each candidate
    trace.stop(row, "the length limit")            # why the search for a sentence ended, where that is not obvious
    trace.end(hypotheses)                          # the n-best lists, one for each sentence
    trace.note("risk", matrix)                     # anything else, at any time

Without a trace this costs nothing: `if request.trace is not None` once a step. Afterwards `trace.runs` is the record,
and `trace.to_dict()` the same for JSON, with the names of the tokens if the trace was given a function from id to text.
A trace belongs to one call: threads that share a model each give their own.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, is_dataclass
from typing import Any, ClassVar, cast

import torch
from torch import Tensor

from atento.base.errors import counted
from atento.decoding.hypothesis import Hypothesis

# What became of a candidate.
KEPT = "kept"
FINISHED = "finished"
CUT = "cut off by the length limit"
OVER = "the search was over"
OUTSIDE = "outside the best k"
PLACE = "place given to a finished output"
STAGE = "place given to an output with more of the required words"
BOUND = "beaten by the bound"
NOT_BEST = "not the most probable"
NOT_DRAWN = "not drawn"
TAKEN_OUT = "taken out by "  # and the name of the rule or filter

MODEL = "model"  # the distribution before any filter
_HYPOTHESIS = ("ids", "score", "log_prob", "token_scores", "finished")  # what is recorded of one


@dataclass(frozen=True)
class Distribution:
    """The most probable next tokens of a partial output, by the model or after one filter, best first."""

    parent: int  # index in the step's `live`
    filter: str  # "model", or the name of the rule or filter
    tokens: list[int]
    probabilities: list[float]  # of all that is left they sum to 1
    left: int  # how many tokens are still possible

    def __repr__(self) -> str:
        return f"Distribution(parent {self.parent}, {self.filter}, {len(self.tokens)} of {self.left} tokens)"


@dataclass(frozen=True)
class Candidate:
    """One continuation that the search considered."""

    parent: int  # index in the step's `live`
    token: int
    log_prob: float  # by the model, unfiltered
    score: float  # after the rules and filters, as the search used them
    total: float  # of the partial output with this token, as the search ranked it
    fate: str

    @property
    def alive(self) -> bool:
        """Whether it continued as a partial output or became an output."""
        return self.fate in (KEPT, FINISHED, CUT)


@dataclass
class Step:
    """One step of one sentence: its partial outputs and the fates of their continuations."""

    row: int
    length: int  # tokens written before it
    live: list[list[int]] = field(default_factory=list)
    totals: list[float] = field(default_factory=list)  # of `live`
    candidates: list[Candidate] = field(default_factory=list)
    distributions: list[Distribution] = field(default_factory=list)

    def __repr__(self) -> str:
        weighed = f"{len(self.live)} live, {len(self.candidates)} candidates"
        return f"Step(row {self.row}, length {self.length}, {weighed})"


@dataclass
class Run:
    """One search: its steps in order, and for each sentence why it ended and its n-best list."""

    strategy: str
    count: int
    steps: list[Step] = field(default_factory=list)
    stopped: dict[int, str] = field(default_factory=dict)
    hypotheses: list[list[Hypothesis]] = field(default_factory=list)

    def __repr__(self) -> str:
        return f"Run({self.strategy}, {counted(self.count, 'sentence')}, {counted(len(self.steps), 'step')})"

    def of(self, row: int) -> list[Step]:
        """The steps of one sentence."""
        return [step for step in self.steps if step.row == row]


class Trace:
    """A record that `generate(..., trace=Trace())` fills.

    Args:
        top: how many tokens of each distribution, and how many candidates of each partial output, are recorded.
        name: id -> text, for readers of the record.
        listen: called with the strategy's name and each step when the step is complete, to show a search while it runs.
    """

    _repr_html_: ClassVar[Callable[[Trace], str]]  # what a notebook shows; `inspection.decoding_page` sets it

    def __init__(
        self,
        *,
        top: int = 10,
        name: Callable[[int], str] | None = None,
        listen: Callable[[str, Step], None] | None = None,
    ) -> None:
        if top < 1:
            raise ValueError(f"`top` must be at least 1: got {top}")
        self.top, self.name, self.listen = top, name, listen
        self.runs: list[Run] = []
        self.notes: dict[str, list[Any]] = {}
        self._open: dict[int, Step] = {}  # the current step of each sentence
        self._entries: list[tuple[Step, int] | None] = []  # the step of each of the R rows, and its number in `live`
        self._log_probs = self._scores = torch.empty(0)
        self._filters: list[tuple[str, Tensor]] = []
        self._totals: dict[tuple[int, tuple[int, ...]], float] = {}

    def __repr__(self) -> str:
        names = ", ".join(run.strategy for run in self.runs[:3]) + ", ..." * (len(self.runs) > 3)
        runs = f"{counted(len(self.runs), 'run')}{': ' if names else ''}{names}"
        return f"Trace({runs}; {counted(sum(len(run.steps) for run in self.runs), 'step')})"

    def begin(self, strategy: str, count: int) -> None:
        """A search over `count` sentences begins."""
        self._close()
        self._totals = {}
        self.runs.append(Run(strategy, count))

    def step(self, rows: Sequence[int], ids: Tensor, log_probs: Tensor, totals: Tensor | None = None) -> None:
        """A step begins, with R partial outputs.

        Args:
            rows: the sentence of each.
            ids: (R,t) the tokens of each.
            log_probs: (R,V) the model's log-probabilities of the next token.
            totals: (R,) their scores so far, -inf for a row not in use; None: the trace computes the sums.
        """
        self._close()
        self._log_probs = self._scores = log_probs
        self._filters = []
        row_totals = [None] * len(rows) if totals is None else totals.tolist()  # None: to be summed
        for row, written, total in zip(rows, ids.tolist(), row_totals):
            if total == -math.inf:
                self._entries.append(None)  # keeps the numbers of rows
                continue
            step = self._open.setdefault(row, Step(row, ids.shape[1]))
            self._entries.append((step, len(step.live)))
            step.live.append(written)
            step.totals.append(self._totals.get((row, tuple(written)), 0.0) if total is None else total)
        self.runs[-1].steps.extend(self._open.values())
        self._distribution(MODEL, log_probs)

    def filter(self, name: str, scores: Tensor) -> None:
        """Scores (R,V), logits or log-probabilities, as a rule or filter left them."""
        self._filters.append((name, scores))
        self._scores = scores
        self._distribution(name, scores)

    def choose(self, tokens: Tensor, ended: Sequence[bool] | Tensor, otherwise: str = NOT_DRAWN) -> None:
        """One token of each row (R,) was chosen, and ended the output or not (R,); `otherwise` is the others' fate."""
        for row, (token, end) in enumerate(zip(tokens.tolist(), list(map(bool, ended)))):
            self.candidate(row, token, self.removal_fate(row, token) or (FINISHED if end else KEPT))
            for alternative in self.most_probable(row):
                if alternative != token:
                    self.candidate(row, alternative, self.removal_fate(row, alternative) or otherwise)

    def most_probable(self, row: int) -> list[int]:
        """The most probable next tokens of row `row`, by the model; none if the row is not in use."""
        if self._entries[row] is None:
            return []
        scores, tokens = self._log_probs[row].topk(min(self.top, self._log_probs.shape[1]))
        return [token for token, score in zip(tokens.tolist(), scores.tolist()) if score > -math.inf]

    def removal_fate(self, row: int, token: int) -> str:
        """The fate of a token that a filter removed; empty if none did."""
        for name, scores in self._filters:
            if float(scores[row, token]) == -math.inf:
                return TAKEN_OUT + name
        return ""

    def candidate(
        self, row: int, token: int, fate: str, *, total: float | None = None, log_prob: float | None = None
    ) -> None:
        """A continuation of the partial output in row `row` (0 to R-1) and its fate.

        `total` is its score in the search's ranking; None: that of the partial output plus `log_prob`, the model's.
        """
        entry = self._entries[row]
        if entry is None:
            return
        step, parent = entry
        log_prob = float(self._log_probs[row, token]) if log_prob is None else log_prob
        total = step.totals[parent] + log_prob if total is None else total
        if fate == KEPT:
            self._totals[step.row, (*step.live[parent], token)] = total
        step.candidates.append(Candidate(parent, token, log_prob, float(self._scores[row, token]), total, fate))

    def stop(self, row: int, why: str) -> None:
        """Why the search for one sentence ended."""
        self.runs[-1].stopped[row] = why

    def end(self, hypotheses: list[list[Hypothesis]]) -> None:
        """The n-best lists of the search, one for each sentence."""
        self._close()
        self.runs[-1].hypotheses = hypotheses

    def note(self, name: str, value: Any) -> None:
        """Record anything else, such as a matrix of risks; values of one name are stored in their order."""
        self.notes.setdefault(name, []).append(value)

    def to_dict(self) -> dict[str, Any]:
        """The record in the types of JSON; NaN and infinite numbers are None."""
        self._close()
        runs = [
            {
                "strategy": run.strategy,
                "sentences": run.count,
                "stopped": {str(row): why for row, why in run.stopped.items()},
                "steps": run.steps,
                "found": [
                    [{name: getattr(hypothesis, name) for name in _HYPOTHESIS} for hypothesis in row]
                    for row in run.hypotheses
                ],
            }
            for run in self.runs
        ]
        record: dict[str, object] = {"runs": runs, "notes": self.notes}
        if self.name is not None:
            tokens: set[int] = set()
            for run in self.runs:
                for step in run.steps:
                    tokens.update(token for ids in step.live for token in ids)
                    tokens.update(item.token for item in step.candidates)
                    tokens.update(token for item in step.distributions for token in item.tokens)
                tokens.update(token for row in run.hypotheses for item in row for token in item.ids)
            record["names"] = {str(token): self.name(token) for token in sorted(tokens)}
        return cast(dict[str, object], _plain(record))

    def _distribution(self, name: str, scores: Tensor) -> None:
        probabilities, tokens = torch.softmax(scores.double(), dim=1).topk(min(self.top, scores.shape[1]), dim=1)
        left = (scores > -math.inf).sum(dim=1).tolist()
        for entry, p, ids, count in zip(self._entries, probabilities.tolist(), tokens.tolist(), left):
            if entry is not None:
                step, parent = entry
                shown_count = min(count, len(ids))  # what is removed is not shown
                step.distributions.append(Distribution(parent, name, ids[:shown_count], p[:shown_count], count))

    def _close(self) -> None:
        if self.listen is not None:
            for step in self._open.values():
                self.listen(self.runs[-1].strategy, step)
        self._open, self._entries = {}, []


def rule_name(rule: Any) -> str:
    """The name of a rule or filter: its `name`, or that of the function or class."""
    return cast(str, getattr(rule, "name", None) or getattr(rule, "__name__", None) or type(rule).__name__)


def _plain(value: Any) -> Any:
    value = value.tolist() if hasattr(value, "tolist") else value  # arrays and tensors
    if is_dataclass(value) and not isinstance(value, type):
        value = vars(value)
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None  # JSON has no NaN
    return value
