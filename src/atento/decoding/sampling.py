"""Sampling: tokens drawn from a shaped distribution, all rows and samples at once, finished ones leaving.

See docs/notes.md#h2 to #h5.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Literal

import torch
from torch import Tensor

from atento.decoding.contract import Request, StateT, StepFunction, Written
from atento.decoding.distribution import next_log_probs
from atento.decoding.filters import best, shaped, stages
from atento.decoding.greedy import forbid, hypothesis
from atento.decoding.hypothesis import Hypothesis
from atento.decoding.seeds import stream_key, uniform
from atento.decoding.strategies import Sample
from atento.decoding.trace import MODEL, Trace, rule_name
from atento.errors import AtentoError

End = Literal["eos", "stop", "limit"]


@dataclass(frozen=True)
class Drawn:
    """One token of one output, and how that output ended with it, if it did."""

    row: int
    number: int  # which of the row's samples
    id: int
    log_prob: float  # by the model, before any rule or filter
    end: End | None


def sample(
    step_function: StepFunction[StateT], state: StateT, first: Tensor, strategy: Sample, request: Request
) -> list[list[Hypothesis]]:
    """first (B,) or (B,P) tokens to start from -> the n samples of each row, in the order drawn.

    Not sorted by score: the first one is a sample like the others, and the first ones do not depend on n. A row's
    samples are a function of its seed, `strategy` and the network's scores, whatever else is in the batch. An output to
    which the rules leave no token ends there, unfinished.
    """
    ids: list[list[list[int]]] = [[[] for _ in range(strategy.n)] for _ in range(first.shape[0])]
    scores: list[list[list[float]]] = [[[] for _ in range(strategy.n)] for _ in range(first.shape[0])]
    finished = [[False] * strategy.n for _ in range(first.shape[0])]
    if request.trace is not None:
        request.trace.begin("sample", first.shape[0])
    for tokens in draws(step_function, state, first, strategy, request):
        for one in tokens:
            scores[one.row][one.number].append(one.log_prob)
            finished[one.row][one.number] = one.end in ("eos", "stop")
            if one.end != "eos":
                ids[one.row][one.number].append(one.id)
    found = [
        [hypothesis(ids[row][number], scores[row][number], finished[row][number], 0.0) for number in range(strategy.n)]
        for row in range(first.shape[0])
    ]
    if request.trace is not None:
        request.trace.end(found)
    return found


@dataclass
class _Live:
    """The outputs that go on, R places: whose each is, where its random numbers come from, what it has written."""

    rows: list[int]
    numbers: list[int]
    keys: Tensor  # (R,) int64
    ids: Tensor  # (R,t), for rules and trace alone
    length: int = 0
    read: list[list[int]] = field(default_factory=list)  # `ids` as lists, for `Request.stop`

    def select(self, places: list[int]) -> "_Live":
        """Those alone."""
        at = torch.tensor(places, dtype=torch.long, device=self.keys.device)
        return _Live(
            [self.rows[place] for place in places],
            [self.numbers[place] for place in places],
            self.keys[at],
            self.ids[at],
            self.length,
            [self.read[place] for place in places],
        )


def draws(
    step_function: StepFunction[StateT], state: StateT, first: Tensor, strategy: Sample, request: Request
) -> Iterator[list[Drawn]]:
    """Step after step, the tokens that were drawn, EOS included."""
    live = _begin(first, strategy, request)
    if not live.rows:
        return
    told = bool(request.rules) or request.trace is not None  # who needs to know what is written
    at = torch.tensor(live.rows, dtype=torch.long, device=first.device)
    tokens, state = first[at], state.select(at)
    while True:
        logits, state = step_function.step(tokens, state)
        shapes = _obeying(logits, live, request)
        allowed = shapes[-1][1] if shapes else logits
        if shapes and bool((dead := allowed.amax(dim=-1) == float("-inf")).any()):
            at = (~dead).nonzero().flatten()
            live, state = live.select(at.tolist()), state.select(at)
            if not live.rows:
                return
            logits, allowed, shapes = logits[at], allowed[at], [(name, scores[at]) for name, scores in shapes]
        log_probs = next_log_probs(logits, live.rows, live.length)  # (R,V)
        chosen = draw(allowed, strategy, live.keys, live.length)
        drawn, stay = _settle(live, chosen, log_probs, request)
        if request.trace is not None:
            _tell(request.trace, live, log_probs, [*shapes, *stages(allowed, strategy)], drawn)
        yield drawn
        if not stay:
            return
        if told:
            live.ids = torch.cat([live.ids, chosen.unsqueeze(1)], dim=1)
        live.length, tokens = live.length + 1, chosen
        if len(stay) < len(live.rows):
            at = torch.tensor(stay, dtype=torch.long, device=chosen.device)
            live, state, tokens = live.select(stay), state.select(at), chosen[at]


def draw(scores: Tensor, strategy: Sample, keys: Tensor, position: int) -> Tensor:
    """scores (R,V) and the streams (R,) of random numbers -> a token a row (R,), by the inverse of the cumulative sum.

    Raises:
        AtentoError: the scores are not numbers.
    """
    if strategy.temperature == 0:
        return scores.argmax(dim=-1)
    if not bool(scores.amax(dim=-1).isfinite().all()):
        raise AtentoError("the network gave no distribution to draw from: a score is NaN or infinite")
    if 0 < strategy.top_k < scores.shape[-1]:  # temperature changes no order, so the best may be taken out first
        scores, ids = best(scores, strategy.top_k)
        return ids.gather(1, draw(scores, replace(strategy, top_k=0), keys, position).unsqueeze(1)).squeeze(1)
    cumulative = shaped(scores, strategy).exp_().double().cumsum_(dim=-1)  # in place: fresh memory is what costs here
    point = uniform(keys, position).unsqueeze(1) * cumulative[:, -1:]  # below all of it: what has no share is not met
    return torch.searchsorted(cumulative, point, right=True).squeeze(1)


def _begin(first: Tensor, strategy: Sample, request: Request) -> _Live:
    places = [
        (row, number)
        for row in range(first.shape[0])
        if request.max_new_tokens[row] > 0
        for number in range(strategy.n)
    ]
    keys = [stream_key(request.seeds[row], number) for row, number in places]
    return _Live(
        [row for row, _ in places],
        [number for _, number in places],
        torch.tensor(keys, dtype=torch.long, device=first.device),
        torch.empty(len(places), 0, dtype=torch.long, device=first.device),
        read=[[] for _ in places],
    )


def _obeying(logits: Tensor, live: _Live, request: Request) -> list[tuple[str, Tensor]]:
    """The logits (R,V) after each rule and after the least length, with its name; nothing where there is none."""
    shapes = []
    for rule in request.rules:
        logits = rule(logits, Written(live.ids, live.rows, request.prompts))
        shapes.append((rule_name(rule), logits))
    if live.length < request.min_new_tokens and request.eos_ids:
        shapes.append(("min_new_tokens", forbid(logits, request.eos_ids)))
    return shapes


def _settle(live: _Live, chosen: Tensor, log_probs: Tensor, request: Request) -> tuple[list[Drawn], list[int]]:
    """The tokens drawn, with how each output ends if it does; and the places that go on."""
    scores = log_probs.gather(1, chosen.unsqueeze(1)).squeeze(1).tolist()
    drawn, stay = [], []
    for place, (token, score) in enumerate(zip(chosen.tolist(), scores)):
        end: End | None = None
        if token in request.eos_ids:
            end = "eos"
        elif request.stop is not None:
            live.read[place].append(token)
            end = "stop" if request.stop(live.read[place]) else None
        if end is None and live.length + 1 >= request.max_new_tokens[live.rows[place]]:
            end = "limit"
        drawn.append(Drawn(live.rows[place], live.numbers[place], token, score, end))
        if end is None:
            stay.append(place)
    return drawn, stay


def _tell(trace: Trace, live: _Live, log_probs: Tensor, shapes: list[tuple[str, Tensor]], drawn: list[Drawn]) -> None:
    """One step for the trace: the distribution after every rule and filter, and what was drawn."""
    trace.step(live.rows, live.ids, log_probs)
    for name, scores in shapes:
        if name != MODEL:
            trace.filter(name, scores)
    trace.choose(torch.tensor([one.id for one in drawn]), [one.end in ("eos", "stop") for one in drawn])
