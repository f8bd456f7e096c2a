"""Greedy decoding: the most probable token at every step, all sentences at once, finished ones leaving (H1)."""

from typing import Any

import torch
from torch import Tensor

from atento.decoding.hypothesis import Greedy, Hypothesis, Limits, Steps


def greedy(steps: Steps, state: Any, first: Tensor, strategy: Greedy, limits: Limits) -> list[list[Hypothesis]]:
    """first (B,) or (B,P) tokens to start from -> one hypothesis a sentence."""
    count = first.shape[0]
    ids: list[list[int]] = [[] for _ in range(count)]
    scores: list[list[float]] = [[] for _ in range(count)]
    finished = [False] * count
    active = [row for row in range(count) if limits.most[row] > 0]
    tokens = first
    if len(active) < count:
        rows = torch.tensor(active, dtype=torch.long, device=first.device)
        tokens, state = tokens[rows], state.select(rows)
    length = 0
    while active:
        logits, state = steps.step(tokens, state)
        log_probs = torch.log_softmax(logits, dim=-1)  # (R,V)
        choice = log_probs
        if length < limits.least:
            choice = forbid(log_probs, limits.eos_ids)
        best = choice.argmax(dim=-1)
        chosen = log_probs.gather(1, best.unsqueeze(1)).squeeze(1).tolist()
        length += 1
        stay = []
        for place, (row, token, score) in enumerate(zip(active, best.tolist(), chosen)):
            scores[row].append(score)
            if token in limits.eos_ids:
                finished[row] = True
                continue
            ids[row].append(token)
            if length < limits.most[row]:
                stay.append(place)
        if len(stay) < len(active):
            rows = torch.tensor(stay, dtype=torch.long, device=best.device)
            active, best = [active[place] for place in stay], best[rows]
            if active:
                state = state.select(rows)
        tokens = best
    return [[hypothesis(ids[row], scores[row], finished[row], 0.0)] for row in range(count)]


def forbid(log_probs: Tensor, ids: tuple[int, ...]) -> Tensor:
    """A copy in which those ids cannot be chosen."""
    out = log_probs.clone()
    out[:, list(ids)] = float("-inf")
    return out


def hypothesis(ids: list[int], token_scores: list[float], finished: bool, length_penalty: float) -> Hypothesis:
    """With its score: log_prob / length ** length_penalty, EOS counted in the length."""
    log_prob = float(sum(token_scores))
    return Hypothesis(ids, log_prob / max(1, len(token_scores)) ** length_penalty, log_prob, token_scores, finished)
