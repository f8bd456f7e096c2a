"""Sampling: tokens drawn from a filtered distribution, for all rows and samples at once; finished ones leave.

See docs/notes.md#h2 to #h5.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Literal

import torch
from torch import Tensor

from atento.decoding.choosing import hypothesis, next_log_probs, rule_stages
from atento.decoding.contract import Request, StateT, StepFunction
from atento.decoding.filters import best, shaped, stages
from atento.decoding.hypothesis import Hypothesis
from atento.decoding.seeds import stream_key, uniform
from atento.decoding.strategies import Sample
from atento.decoding.trace import MODEL, Trace
from atento.errors import AtentoError

End = Literal["eos", "stop", "limit"]


@dataclass(frozen=True)
class Drawn:
    """One token of one output, and how that output ended with it, if it did."""

    row: int
    number: int  # the number of the sample in its row
    id: int
    log_prob: float  # by the model, before any rule or filter
    end: End | None
    top: tuple[tuple[int, float], ...] = ()  # the most probable tokens at this place, where they are asked for


def sample(
    step_function: StepFunction[StateT], state: StateT, first: Tensor, strategy: Sample, request: Request
) -> list[list[Hypothesis]]:
    """The n samples of each row, in the order drawn.

    They are not sorted by score: the first one is a sample like the others, and the first ones do not depend on n. A
    row's samples are a function of its seed, `strategy` and the network's scores, whatever else is in the batch. An
    output for which the rules leave no token ends there, unfinished.

    Args:
        step_function: what gives the logits of the next token.
        state: its state after the sources or prompts (B rows).
        first: (B,) or (B,P), the tokens that the first step reads.
        strategy: filters, and the number of samples.
        request: limits, rules, seeds, stop function and trace.
    """
    ids: list[list[list[int]]] = [[[] for _ in range(strategy.n)] for _ in range(first.shape[0])]
    scores: list[list[list[float]]] = [[[] for _ in range(strategy.n)] for _ in range(first.shape[0])]
    finished = [[False] * strategy.n for _ in range(first.shape[0])]
    if request.trace is not None:
        request.trace.begin("sample", first.shape[0])
    for tokens in draws(step_function, state, first, strategy, request):
        for token in tokens:
            scores[token.row][token.number].append(token.log_prob)
            finished[token.row][token.number] = token.end in ("eos", "stop")
            if token.end != "eos":
                ids[token.row][token.number].append(token.id)
    hypotheses = [
        [hypothesis(ids[row][number], scores[row][number], finished[row][number], 0.0) for number in range(strategy.n)]
        for row in range(first.shape[0])
    ]
    if request.trace is not None:
        request.trace.end(hypotheses)
    return hypotheses


@dataclass
class _Live:
    """The R unfinished outputs: the row of each, the start of its random numbers, and its ids."""

    rows: list[int]
    numbers: list[int]
    keys: Tensor  # (R,) int64
    ids: Tensor  # (R,t), which rules and traces alone read
    length: int = 0
    id_lists: list[list[int]] = field(default_factory=list)  # `ids` as lists, for `Request.stop`

    def select(self, outputs: list[int]) -> "_Live":
        """These outputs alone."""
        index = torch.tensor(outputs, dtype=torch.long, device=self.keys.device)
        return _Live(
            [self.rows[output] for output in outputs],
            [self.numbers[output] for output in outputs],
            self.keys[index],
            self.ids[index],
            self.length,
            [self.id_lists[output] for output in outputs],
        )


def draws(
    step_function: StepFunction[StateT], state: StateT, first: Tensor, strategy: Sample, request: Request
) -> Iterator[list[Drawn]]:
    """The tokens drawn in each step, EOS included."""
    live = _begin(first, strategy, request)
    if not live.rows:
        return
    needs_written = bool(request.rules) or request.trace is not None
    index = torch.tensor(live.rows, dtype=torch.long, device=first.device)
    tokens, state = first[index], state.select(index)
    while True:
        logits, state = step_function.step(tokens, state)
        changed = list(rule_stages(logits, request, live.rows, live.ids, live.length))
        allowed = changed[-1][1] if changed else logits
        if changed and bool((no_token := allowed.amax(dim=-1) == float("-inf")).any()):
            index = (~no_token).nonzero().flatten()
            live, state = live.select(index.tolist()), state.select(index)
            if not live.rows:
                return
            logits, allowed = logits[index], allowed[index]
            changed = [(name, scores[index]) for name, scores in changed]
        log_probs = next_log_probs(logits, live.rows, live.length)  # (R,V)
        tokens = draw(allowed, strategy, live.keys, live.length)
        drawn = _drawn_tokens(live, tokens, log_probs, request)
        if request.trace is not None:
            _record_step(request.trace, live, log_probs, [*changed, *stages(allowed, strategy)], drawn)
        yield drawn
        remaining = [output for output, token in enumerate(drawn) if token.end is None]
        if not remaining:
            return
        if needs_written:
            live.ids = torch.cat([live.ids, tokens.unsqueeze(1)], dim=1)
        live.length += 1
        if len(remaining) < len(live.rows):
            index = torch.tensor(remaining, dtype=torch.long, device=tokens.device)
            live, state, tokens = live.select(remaining), state.select(index), tokens[index]


def draw(scores: Tensor, strategy: Sample, keys: Tensor, position: int | Tensor) -> Tensor:
    """A token a row (R,), drawn from scores (R,V) by the inverse of the cumulative sum.

    Args:
        scores: (R,V), logits or log-probabilities.
        strategy: with the filters.
        keys: (R,) the streams of random numbers.
        position: of the number in each stream; one for all, or (R,).

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
    # below the total, so that a token of probability 0 is never drawn
    point = uniform(keys, position).unsqueeze(1) * cumulative[:, -1:]
    return torch.searchsorted(cumulative, point, right=True).squeeze(1)


def _begin(first: Tensor, strategy: Sample, request: Request) -> _Live:
    """All outputs before their first token; a row that may write none has none."""
    outputs = [
        (row, number)
        for row in range(first.shape[0])
        if request.max_new_tokens[row] > 0
        for number in range(strategy.n)
    ]
    keys = [stream_key(request.seeds[row], number) for row, number in outputs]
    return _Live(
        [row for row, _ in outputs],
        [number for _, number in outputs],
        torch.tensor(keys, dtype=torch.long, device=first.device),
        torch.empty(len(outputs), 0, dtype=torch.long, device=first.device),
        id_lists=[[] for _ in outputs],
    )


def _drawn_tokens(live: _Live, tokens: Tensor, log_probs: Tensor, request: Request) -> list[Drawn]:
    """The tokens (R,) that were drawn, each with how its output ends, if it does."""
    scores = log_probs.gather(1, tokens.unsqueeze(1)).squeeze(1).tolist()
    drawn = []
    for output, (token, score) in enumerate(zip(tokens.tolist(), scores)):
        limit = request.max_new_tokens[live.rows[output]]
        end = end_of(token, live.id_lists[output], live.length + 1, limit, request)
        drawn.append(Drawn(live.rows[output], live.numbers[output], token, score, end))
    return drawn


def end_of(token: int, ids: list[int], length: int, limit: int, request: Request) -> End | None:
    """How an output ends with this token, if it does.

    Args:
        token: its last token.
        ids: the tokens before it, for `Request.stop`, if there is one; gets this token.
        length: the number of its tokens with this one.
        limit: the most that it may have.
        request: with EOS and the stop function.
    """
    if token in request.eos_ids:
        return "eos"
    if request.stop is not None:
        ids.append(token)
        if request.stop(ids):
            return "stop"
    return "limit" if length >= limit else None


def _record_step(
    trace: Trace, live: _Live, log_probs: Tensor, changed: list[tuple[str, Tensor]], drawn: list[Drawn]
) -> None:
    """Record one step in a trace: the distribution after every rule and filter, and the drawn tokens."""
    trace.step(live.rows, live.ids, log_probs)
    for name, scores in changed:
        if name != MODEL:
            trace.filter(name, scores)
    trace.choose(torch.tensor([token.id for token in drawn]), [token.end in ("eos", "stop") for token in drawn])
