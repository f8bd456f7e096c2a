"""Forced decoding: what a network thinks of outputs that it is given, token by token (docs/notes.md#h9, #h11)."""

from collections.abc import Sequence
from math import isnan
from typing import Any, Protocol

import torch
from torch import Tensor

from atento.decoding.contract import StepFunction
from atento.decoding.distribution import next_log_probs, no_distribution


class Steppable(Protocol):
    """A network that offers itself as a step function."""

    def steps(self) -> StepFunction:
        """The step function."""


def begun(
    network: Steppable | StepFunction, ids: Tensor, token_mask: Tensor | None = None, prefix_ids: Tensor | None = None
) -> tuple[StepFunction, Any, Tensor]:
    """The step function of a network, its state after ids (B,S), and what the first step reads: (B,) or (B,1+P)."""
    steps: Any = network.steps() if hasattr(network, "steps") else network
    if hasattr(steps, "first_tokens"):  # a language model goes on from its prompt
        first = steps.first_tokens(ids, token_mask)
    else:
        first = torch.full((ids.shape[0],), steps.start_id, dtype=torch.long, device=ids.device)
    if prefix_ids is not None:
        first = torch.cat([first.unsqueeze(1), prefix_ids], dim=1)
    return steps, steps.begin(ids, token_mask), first


@torch.inference_mode()
def forced_scores(
    network: Steppable | StepFunction,
    ids: Tensor,
    targets: Sequence[Sequence[int]],
    *,
    token_mask: Tensor | None = None,
    prefix_ids: Tensor | None = None,
    eos_id: int | None = None,
    finished: Sequence[bool] | bool = True,
) -> list[list[float]]:
    """log p of each token of given outputs, each token after those before it; their sum is log p of the output.

    See docs/notes.md#h11.

    Rows leave when their output is read. A step function may have `forced(tokens (R,T), state)` -> logits (R,T,V),
    what comes after each of the tokens; then all is read at once, padded on the right.

    Args:
        network: a network, or anything with `begin` and `step`.
        ids: (B,S), sources or prompts.
        targets: an output for each row, without EOS.
        token_mask: boolean (B,S), True = a real token.
        prefix_ids: (B,P) tokens that every output begins with; they are not scored.
        eos_id: None = the network's own.
        finished: whether EOS follows each output and is scored too; of `Hypothesis.ids` where it is `finished`.

    Returns:
        A list a row, of as many log-probabilities (nats) as tokens, EOS's last.

    Raises:
        AtentoError: logits that are NaN or infinite. ValueError: a token that is not in the vocabulary.
    """
    if len(targets) != ids.shape[0]:
        raise ValueError(f"`targets` gives one output a row: got {len(targets)} for {ids.shape[0]} rows")
    ended = [finished] * len(targets) if isinstance(finished, bool) else list(finished)
    if len(ended) != len(targets):
        raise ValueError(f"`finished` says it for each row: got {len(ended)} for {len(targets)} rows")
    steps, state, first = begun(network, ids, token_mask, prefix_ids)
    end = steps.eos_id if eos_id is None else eos_id
    wanted = [[*map(int, target), *([end] if over else [])] for target, over in zip(targets, ended)]
    scores: list[list[float]] = [[] for _ in wanted]
    rows = [row for row, one in enumerate(wanted) if one]
    if not rows:
        return scores
    if len(rows) < len(wanted):
        places = torch.tensor(rows, dtype=torch.long, device=ids.device)
        state, first = state.select(places), first[places]
    if hasattr(steps, "forced"):
        return _at_once(steps, state, first, wanted, rows)
    return _step_by_step(steps, state, first, wanted, rows)


def _step_by_step(
    steps: StepFunction, state: Any, tokens: Tensor, wanted: list[list[int]], rows: list[int]
) -> list[list[float]]:
    """A token of every row at a time."""
    scores: list[list[float]] = [[] for _ in wanted]
    length = 0
    while rows:
        logits, state = steps.step(tokens, state)
        tokens = torch.tensor([wanted[row][length] for row in rows], device=logits.device)
        _known(tokens, logits)
        found = next_log_probs(logits, rows, length).gather(1, tokens.unsqueeze(1)).squeeze(1)
        for row, score in zip(rows, found.tolist()):
            scores[row].append(score)
        length += 1
        stay = [place for place, row in enumerate(rows) if len(wanted[row]) > length]
        if len(stay) < len(rows):
            rows = [rows[place] for place in stay]
            places = torch.tensor(stay, dtype=torch.long, device=logits.device)
            tokens, state = tokens[places], state.select(places) if stay else state
    return scores


def _known(tokens: Tensor, logits: Tensor) -> None:
    """Raises ValueError: a token that is not of the vocabulary."""
    least, most = (int(end) for end in tokens.aminmax())
    if least < 0 or most >= logits.shape[-1]:
        wrong = least if least < 0 else most
        raise ValueError(f"`targets` hold ids from 0 to {logits.shape[-1] - 1}, the vocabulary: got {wrong}")


def _at_once(steps: Any, state: Any, first: Tensor, wanted: list[list[int]], rows: list[int]) -> list[list[float]]:
    """All tokens of every row in one call; those past a row's end read an end and are thrown away."""
    longest = max(len(wanted[row]) for row in rows)
    padded = torch.tensor([wanted[row] + [steps.eos_id] * (longest - len(wanted[row])) for row in rows])
    targets = padded.to(first.device)
    before = first if first.dim() == 2 else first.unsqueeze(1)
    logits = steps.forced(torch.cat([before, targets[:, :-1]], dim=1), state)[:, before.shape[1] - 1 :]
    _known(targets, logits)
    found = torch.log_softmax(logits, dim=-1).gather(2, targets.unsqueeze(2)).squeeze(2).tolist()
    scores: list[list[float]] = [[] for _ in wanted]
    for row, values in zip(rows, found):
        scores[row] = values[: len(wanted[row])]
        length = next((place for place, score in enumerate(scores[row]) if isnan(score)), None)
        if length is not None:
            raise no_distribution(row, length)
    return scores
