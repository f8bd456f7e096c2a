"""Greedy decoding: the most probable token at every step, all sentences at once, finished ones leaving.

See docs/notes.md#h1.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from atento.decoding.contract import Request, StateT, StepFunction, Written
from atento.decoding.distribution import next_log_probs
from atento.decoding.hypothesis import Hypothesis
from atento.decoding.strategies import Greedy
from atento.decoding.trace import NOT_BEST, rule_name


def greedy(
    step_function: StepFunction[StateT], state: StateT, first: Tensor, strategy: Greedy, request: Request
) -> list[list[Hypothesis]]:
    """first (B,) or (B,P) tokens to start from -> one hypothesis a sentence.

    Rules change the logits before the choice; the scores that are handed out are the model's own log-probabilities. A
    row for which the rules leave nothing to choose stops there, unfinished.
    """
    if request.required is not None and any(request.required):
        raise ValueError("required words need a `Beam`: a single path cannot be sure to fit them in")
    count, trace, stop = first.shape[0], request.trace, request.stop
    finished, taken = [False] * count, []
    active, tokens = [row for row in range(count) if request.max_new_tokens[row] > 0], first
    if len(active) < count:
        rows = torch.tensor(active, dtype=torch.long, device=first.device)
        tokens, state = tokens[rows], state.select(rows)
    told = bool(request.rules) or trace is not None or stop is not None  # who needs to know what is written
    written = torch.empty(len(active), 0, dtype=torch.long, device=first.device)
    if trace is not None:
        trace.begin("greedy", count)
    length = 0
    while active:
        logits, state = step_function.step(tokens, state)
        log_probs = next_log_probs(logits, active, length)  # (R,V)
        if trace is not None:
            trace.step(active, written, log_probs)
        scores = ruled(logits, request, active, written, length)
        best = best_token(scores)
        possible = None
        if request.rules:
            possible = (scores.gather(1, best.unsqueeze(1)).squeeze(1) > -torch.inf).tolist()
        taken.append((active, best, log_probs.gather(1, best.unsqueeze(1)).squeeze(1), possible))
        length += 1
        if told:
            written = torch.cat([written, best.unsqueeze(1)], dim=1)
        ends = one_of(best, request.eos_ids)
        if stop is not None:
            ends = [end or stop(ids) for end, ids in zip(ends or [False] * len(active), written.tolist())]
        if trace is not None:
            trace.choose(best, ends or [False] * len(active), NOT_BEST)
        stay = _staying(active, ends, possible, length, request, finished)
        if stay is not None:
            rows = torch.tensor(stay, dtype=torch.long, device=best.device)
            active, best, written = [active[place] for place in stay], best[rows], written[rows]
            state = state.select(rows) if active else state
        tokens = best
    found = _gathered(taken, finished, request)
    if trace is not None:
        trace.end(found)
    return found


def _staying(
    active: list[int],
    ends: list[bool] | None,
    possible: list[bool] | None,
    length: int,
    request: Request,
    finished: list[bool],
) -> list[int] | None:
    """The places of rows that go on, None if all do; marks those that have ended."""
    stay = []
    for place, row in enumerate(active):
        if possible is not None and not possible[place]:
            continue
        if ends is not None and ends[place]:
            finished[row] = True
        elif length < request.max_new_tokens[row]:
            stay.append(place)
    return stay if len(stay) < len(active) else None


def _gathered(
    taken: list[tuple[list[int], Tensor, Tensor, list[bool] | None]], finished: list[bool], request: Request
) -> list[list[Hypothesis]]:
    """What was taken at each step, put together row by row."""
    ids: list[list[int]] = [[] for _ in finished]
    scores: list[list[float]] = [[] for _ in finished]
    for active, best, chosen, possible in taken:
        for place, (row, token, score) in enumerate(zip(active, best.tolist(), chosen.tolist())):
            if possible is None or possible[place]:
                ids[row].append(token)
                scores[row].append(score)
    for row, written in enumerate(ids):
        if finished[row] and written[-1] in request.eos_ids:
            written.pop()
    return [[hypothesis(ids[row], scores[row], done, 0.0)] for row, done in enumerate(finished)]


BLOCK = 128  # tokens whose maximum is found first: as many as processors like to read at once
WIDE = 4096  # a vocabulary from which on that pays


def best_token(scores: Tensor) -> Tensor:
    """scores (R,V) -> the first of the highest (R,): argmax, but that argmax reads slowly on a CPU and amax fast."""
    vocab_size = scores.shape[1]
    blocks = vocab_size // BLOCK
    if vocab_size < WIDE or scores.is_cuda:
        return scores.argmax(dim=1)
    parts = scores[:, : blocks * BLOCK].unflatten(1, (blocks, BLOCK))
    block = parts.amax(dim=2).argmax(dim=1, keepdim=True)  # (R,1)
    inside = parts.gather(1, block.unsqueeze(2).expand(-1, -1, BLOCK)).squeeze(1)
    best = block * BLOCK + inside.argmax(dim=1, keepdim=True)
    if vocab_size > blocks * BLOCK:  # what makes no whole block
        score, last = scores[:, blocks * BLOCK :].max(dim=1, keepdim=True)
        best = torch.where(score > scores.gather(1, best), last + blocks * BLOCK, best)
    found: Tensor = best.squeeze(1)
    return found


def one_of(tokens: Tensor, ids: Sequence[int]) -> list[bool] | None:
    """Which of tokens (R,) are among `ids`; None if none is, which is the common case and asks the device once."""
    if not ids:
        return None
    found = among(tokens, ids)
    return found.tolist() if bool(found.any()) else None


def among(tokens: Tensor, ids: Sequence[int]) -> Tensor:
    """Whether each token is one of a few `ids`: booleans of the same shape."""
    found = tokens == ids[0] if ids else torch.zeros_like(tokens, dtype=torch.bool)
    for other in ids[1:]:
        found = found | (tokens == other)
    return found


def ruled(scores: Tensor, request: Request, rows: Sequence[int], written: Tensor, length: int) -> Tensor:
    """Scores (R,V) after the request's least length and its rules, in their order; themselves if it has none.

    Args:
        rows: the request's row that each belongs to.
        written: (R,t) what each has written; only looked at by rules.
        length: t.
    """
    trace = request.trace
    if length < request.min_new_tokens and request.eos_ids:
        scores = forbid(scores, request.eos_ids)
        if trace is not None:
            trace.filter("min_new_tokens", scores)
    if request.rules:
        behind = Written(written, rows, request.prompts)
        for rule in request.rules:
            scores = rule(scores, behind)
            if trace is not None:
                trace.filter(rule_name(rule), scores)
    return scores


def forbid(log_probs: Tensor, ids: tuple[int, ...]) -> Tensor:
    """A copy in which those ids cannot be chosen."""
    out = log_probs.clone()
    out[:, list(ids)] = float("-inf")
    return out


def hypothesis(ids: list[int], token_scores: list[float], finished: bool, length_penalty: float) -> Hypothesis:
    """With its score: log_prob / length ** length_penalty, EOS counted in the length."""
    log_prob = float(sum(token_scores))
    return Hypothesis(ids, log_prob / max(1, len(token_scores)) ** length_penalty, log_prob, token_scores, finished)
