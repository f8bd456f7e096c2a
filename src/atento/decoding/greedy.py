"""Greedy search: the most probable token at every step, for all sentences at once; finished ones leave the batch.

See docs/notes.md#h1.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from atento.decoding.choosing import apply_rules, best_token, hypothesis, next_log_probs, rows_isin
from atento.decoding.contract import Request, StateT, StepFunction
from atento.decoding.hypothesis import Hypothesis
from atento.decoding.strategies import Greedy
from atento.decoding.trace import NOT_BEST


@dataclass(frozen=True)
class _Chosen:
    """The tokens of one step: which rows of the request they belong to (R), their ids (R,) and log-probabilities (R,).

    `possible` is False for rows whose tokens were all forbidden by the rules; None: there are no such rows.
    """

    rows: list[int]
    tokens: Tensor
    log_probs: Tensor
    possible: list[bool] | None


def greedy(
    step_function: StepFunction[StateT], state: StateT, first: Tensor, strategy: Greedy, request: Request
) -> list[list[Hypothesis]]:
    """One hypothesis a sentence.

    Rules change the logits before the choice; the returned scores are the model's own log-probabilities. A
    row for which the rules leave no token stops there, unfinished.

    Args:
        step_function: what gives the logits of the next token.
        state: its state after the sources or prompts (B rows).
        first: (B,) or (B,P), the tokens that the first step reads.
        strategy: has no options.
        request: limits, rules, stop function and trace.
    """
    if request.required is not None and any(request.required):
        raise ValueError("required words need a `Beam`: a single path cannot be sure to contain them")
    count, trace, stop = first.shape[0], request.trace, request.stop
    finished, chosen = [False] * count, list[_Chosen]()
    active, tokens = [row for row in range(count) if request.max_new_tokens[row] > 0], first
    if len(active) < count:
        rows = torch.tensor(active, dtype=torch.long, device=first.device)
        tokens, state = tokens[rows], state.select(rows)
    needs_written = bool(request.rules) or trace is not None or stop is not None
    written = torch.empty(len(active), 0, dtype=torch.long, device=first.device)
    if trace is not None:
        trace.begin("greedy", count)
    length = 0
    while active:
        logits, state = step_function.step(tokens, state)
        log_probs = next_log_probs(logits, active, length)  # (R,V)
        if trace is not None:
            trace.step(active, written, log_probs)
        scores = apply_rules(logits, request, active, written, length)
        best = best_token(scores)
        possible = None
        if request.rules:
            possible = (scores.gather(1, best.unsqueeze(1)).squeeze(1) > -torch.inf).tolist()
        chosen.append(_Chosen(active, best, log_probs.gather(1, best.unsqueeze(1)).squeeze(1), possible))
        length += 1
        if needs_written:
            written = torch.cat([written, best.unsqueeze(1)], dim=1)
        ends = rows_isin(best, request.eos_ids)
        if stop is not None:
            ends = [end or stop(ids) for end, ids in zip(ends or [False] * len(active), written.tolist())]
        if trace is not None:
            trace.choose(best, ends or [False] * len(active), NOT_BEST)
        remaining = _remaining(chosen[-1], ends, length, request, finished)
        if remaining is not None:
            index = torch.tensor(remaining, dtype=torch.long, device=best.device)
            active, best, written = [active[position] for position in remaining], best[index], written[index]
            state = state.select(index) if active else state
        tokens = best
    hypotheses = _hypotheses(chosen, finished, request)
    if trace is not None:
        trace.end(hypotheses)
    return hypotheses


def _remaining(
    step: _Chosen, ends: list[bool] | None, length: int, request: Request, finished: list[bool]
) -> list[int] | None:
    """The positions in `step` of the rows that continue, None if all do; sets `finished` of those that ended."""
    remaining = []
    for position, row in enumerate(step.rows):
        if step.possible is not None and not step.possible[position]:
            continue
        if ends is not None and ends[position]:
            finished[row] = True
        elif length < request.max_new_tokens[row]:
            remaining.append(position)
    return remaining if len(remaining) < len(step.rows) else None


def _hypotheses(steps: list[_Chosen], finished: list[bool], request: Request) -> list[list[Hypothesis]]:
    """The hypothesis of each row, from the tokens of all steps."""
    ids: list[list[int]] = [[] for _ in finished]
    scores: list[list[float]] = [[] for _ in finished]
    for step in steps:
        for position, (row, token, score) in enumerate(zip(step.rows, step.tokens.tolist(), step.log_probs.tolist())):
            if step.possible is None or step.possible[position]:
                ids[row].append(token)
                scores[row].append(score)
    for row, written in enumerate(ids):
        if finished[row] and written[-1] in request.eos_ids:
            written.pop()
    return [[hypothesis(ids[row], scores[row], done, 0.0)] for row, done in enumerate(finished)]
