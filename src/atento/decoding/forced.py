"""Forced decoding: log-probabilities of given outputs, token by token (docs/notes.md#h9, #h11)."""

from collections.abc import Sequence

import torch
from torch import Tensor

from atento.decoding.choosing import most_probable, next_log_probs
from atento.decoding.contract import State
from atento.decoding.source import Source, first_tokens, step_function_of

Top = tuple[tuple[int, float], ...]
"""The most probable tokens at one place with their log-probabilities, best first."""


@torch.inference_mode()
def forced_scores(
    network: Source,
    ids: Tensor,
    targets: Sequence[Sequence[int]],
    *,
    token_mask: Tensor | None = None,
    prefix_ids: Tensor | None = None,
    eos_id: int | None = None,
    finished: Sequence[bool] | bool = True,
) -> list[list[float]]:
    """log p of each token of given outputs, given those before it; their sum is log p of the output.

    See docs/notes.md#h11.

    Rows leave the batch when their output is read.

    Args:
        network: a network, a loaded model, or anything with `begin` and `step`.
        ids: (B,S), sources or prompts.
        targets: an output for each row, without EOS.
        token_mask: boolean (B,S), True = a real token.
        prefix_ids: (B,P) tokens that every output begins with; they are not scored.
        eos_id: None = the network's own.
        finished: whether EOS follows each output and is scored too; of `Hypothesis.ids` where it is `finished`.

    Returns:
        For each row a list of log-probabilities (nats), one for each token, that of EOS last.

    Raises AtentoError: logits that are NaN or infinite. ValueError: a token that is not in the vocabulary.
    """
    return forced_tokens(
        network, ids, targets, token_mask=token_mask, prefix_ids=prefix_ids, eos_id=eos_id, finished=finished
    )[0]


@torch.inference_mode()
def forced_tokens(
    network: Source,
    ids: Tensor,
    targets: Sequence[Sequence[int]],
    *,
    token_mask: Tensor | None = None,
    prefix_ids: Tensor | None = None,
    eos_id: int | None = None,
    finished: Sequence[bool] | bool = True,
    top: int = 0,
) -> tuple[list[list[float]], list[list[Top]]]:
    """As `forced_scores`, and beside each log-probability the `top` most probable tokens at its place."""
    if len(targets) != ids.shape[0]:
        raise ValueError(f"`targets` gives one output a row: got {len(targets)} for {ids.shape[0]} rows")
    ended = [finished] * len(targets) if isinstance(finished, bool) else list(finished)
    if len(ended) != len(targets):
        raise ValueError(f"`finished` must give one value a row: got {len(ended)} for {len(targets)} rows")
    step_function = step_function_of(network)
    state: State = step_function.begin(ids, token_mask)
    tokens = first_tokens(step_function, ids, token_mask, prefix_ids)
    end = step_function.eos_id if eos_id is None else eos_id
    scored_ids = [[*map(int, target), *([end] if ends else [])] for target, ends in zip(targets, ended)]
    rows = [row for row, token_ids in enumerate(scored_ids) if token_ids]
    if rows and len(rows) < len(scored_ids):
        row_index = torch.tensor(rows, dtype=torch.long, device=ids.device)
        state, tokens = state.select(row_index), tokens[row_index]  # rows without a token read nothing
    scores: list[list[float]] = [[] for _ in scored_ids]
    tops: list[list[Top]] = [[] for _ in scored_ids]
    length = 0
    while rows:
        logits, state = step_function.step(tokens, state)
        tokens = torch.tensor([scored_ids[row][length] for row in rows], device=logits.device)  # (rows still open,)
        lowest, highest = (int(extreme) for extreme in tokens.aminmax())
        if lowest < 0 or highest >= logits.shape[-1]:
            wrong = lowest if lowest < 0 else highest
            raise ValueError(f"`targets` hold ids from 0 to {logits.shape[-1] - 1}, the vocabulary: got {wrong}")
        log_probs = next_log_probs(logits, rows, length)
        token_log_probs = log_probs.gather(1, tokens.unsqueeze(1)).squeeze(1)  # (rows still open)
        for index, (row, score) in enumerate(zip(rows, token_log_probs.tolist())):
            scores[row].append(score)
            tops[row] += [most_probable(log_probs[index], top)] if top else []
        length += 1
        remaining = [index for index, row in enumerate(rows) if len(scored_ids[row]) > length]
        if len(remaining) < len(rows):  # rows that are scored to their end leave the batch
            rows = [rows[index] for index in remaining]
            kept_index = torch.tensor(remaining, dtype=torch.long, device=logits.device)
            tokens, state = tokens[kept_index], state.select(kept_index) if remaining else state
    return scores, tops
