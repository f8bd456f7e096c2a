"""What all searches share: next-token distribution, rules applied to it, best token, draws, hypotheses, live rows."""

from collections.abc import Iterator, Sequence
from math import isnan

import torch
from torch import Tensor

from atento.base.errors import AtentoError
from atento.base.splitmix import INCREMENT, as_uniform, mix, mix_, signed
from atento.decoding.contract import Keeping, Request, StateT, Written
from atento.decoding.hypothesis import Hypothesis
from atento.decoding.trace import rule_name

BLOCK = 128  # tokens in a block whose maximum is computed first; a size that processors read efficiently
FEW = 1 << 16  # so many scores, or fewer: blocks are not faster


def next_log_probs(logits: Tensor, rows: Sequence[int], length: int) -> Tensor:
    """Log-probabilities (R,V) of the next token, from logits (R,V).

    A row of logits with a NaN or +inf, or of nothing but -inf, has NaN as every log-probability. So the check
    reads the first column alone, R numbers.

    Args:
        logits: (R,V).
        rows: the row of the batch that each belongs to, for the message.
        length: how many tokens were written before, for the message.

    Raises AtentoError: some row of logits is no distribution.
    """
    log_probs = torch.log_softmax(logits, dim=-1)
    first = log_probs[:, 0]  # (R,)
    if isnan(float(first.sum())):  # no log-probability is +inf, so only a NaN makes the sum NaN
        raise no_distribution(rows[int(first.isnan().nonzero()[0])], length)
    return log_probs


def no_distribution(row: int, length: int) -> AtentoError:
    """The error for logits that are not numbers, in row `row` of the batch after `length` tokens."""
    return AtentoError(
        f"the network gave no distribution over token {length + 1} of output {row + 1} of the batch: a logit is NaN or "
        "infinite; its weights are damaged, or too large for this precision"
    )


def rule_stages(
    scores: Tensor, request: Request, rows: Sequence[int], written: Tensor, length: int
) -> Iterator[tuple[str, Tensor]]:
    """The scores (R,V) after the minimum length and after each rule of a request, each with its name.

    Args:
        scores: (R,V), logits or log-probabilities.
        request: with the rules.
        rows: the row of the request that each belongs to.
        written: (R,t) the tokens of each; only rules read them.
        length: t.
    """
    if length < request.min_new_tokens and request.eos_ids:
        scores = forbid(scores, request.eos_ids)
        yield "min_new_tokens", scores
    if request.rules:
        outputs = Written(written, rows, request.prompts)
        for rule in request.rules:
            scores = rule(scores, outputs)
            yield rule_name(rule), scores


def apply_rules(scores: Tensor, request: Request, rows: Sequence[int], written: Tensor, length: int) -> Tensor:
    """The scores (R,V) after the last of `rule_stages`, each of which the trace records."""
    for name, changed in rule_stages(scores, request, rows, written, length):
        scores = changed
        if request.trace is not None:
            request.trace.filter(name, scores)
    return scores


def forbid(scores: Tensor, ids: tuple[int, ...]) -> Tensor:
    """A copy of scores (R,V) in which those ids are -inf."""
    out = scores.clone()  # a rule may not change its input
    out[:, list(ids)] = float("-inf")
    return out


def best_token(scores: Tensor) -> Tensor:
    """The token with the highest of scores (R,V), the first of equals: (R,).

    As `argmax`, but faster on a CPU, where `amax` over blocks reads memory at full speed and `argmax` does not; `max`
    takes a third to a half of its time.
    """
    vocab_size = scores.shape[1]
    blocks = vocab_size // BLOCK
    if scores.numel() <= FEW or not blocks or scores.is_cuda:
        return scores.max(dim=1).indices
    full_blocks = scores[:, : blocks * BLOCK].unflatten(1, (blocks, BLOCK))  # (R,blocks,BLOCK)
    block = full_blocks.amax(dim=2).argmax(dim=1, keepdim=True)  # (R,1)
    inside = full_blocks.gather(1, block.unsqueeze(2).expand(-1, -1, BLOCK)).squeeze(1)  # (R,BLOCK)
    best = block * BLOCK + inside.argmax(dim=1, keepdim=True)  # (R,1)
    if vocab_size > blocks * BLOCK:  # the tokens after the last full block
        score, last = scores[:, blocks * BLOCK :].max(dim=1, keepdim=True)  # (R,1) each
        best = torch.where(score > scores.gather(1, best), last + blocks * BLOCK, best)
    tokens: Tensor = best.squeeze(1)
    return tokens


def most_probable(log_probs: Tensor, count: int) -> tuple[tuple[int, float], ...]:
    """The `count` most probable tokens of log_probs (V,) with their log-probabilities, best first."""
    values, ids = log_probs.topk(min(count, len(log_probs)))
    return tuple(zip(ids.tolist(), values.tolist()))


def isin(tokens: Tensor, ids: Sequence[int]) -> Tensor:
    """Whether each token is one of a few `ids`: booleans of the shape of `tokens`."""
    is_in = tokens == ids[0] if ids else torch.zeros_like(tokens, dtype=torch.bool)
    for token_id in ids[1:]:
        is_in = is_in | (tokens == token_id)
    return is_in


def hypothesis(ids: list[int], token_scores: list[float], finished: bool, length_penalty: float) -> Hypothesis:
    """A hypothesis with its score, log_prob / length ** length_penalty; EOS counts in the length."""
    log_prob = float(sum(token_scores))
    return Hypothesis(ids, log_prob / max(1, len(token_scores)) ** length_penalty, log_prob, token_scores, finished)


_ROWS, _STREAMS = 1, 2  # the purpose of a hash: a seed of a row is never the key of a stream too


def row_seed(seed: int, row: int) -> int:
    """The seed of a row, from one for all: `generate(seed=s)` gives row i `row_seed(s, i)`.

    With `row_seed(seed, N)` for line N, a file gives the same outputs whatever the batches. Seeds are whole numbers;
    those that agree in their lowest 64 bits are the same. Different rows get different seeds.
    """
    return mix(_ROWS, seed, row)


def stream_key(seed: int, sample: int, *use: int) -> int:
    """The start of the stream of one sample of a row, as a signed 64-bit number; each further use has its own."""
    return signed(mix(_STREAMS, seed, sample, *use))


def uniform(keys: Tensor, position: int | Tensor) -> Tensor:
    """The number at `position` of each stream: keys (R,) int64 -> (R,) in [0, 1), multiples of 2 ** -53, float64.

    `position` is one number for all streams, or (R,) int64. A row's draws do not depend on the rest of the batch.
    """
    if isinstance(position, int):
        return as_uniform(mix_(keys + signed((position + 1) * INCREMENT)))
    return as_uniform(mix_(keys + (position + 1) * signed(INCREMENT)))  # modulo 2 ** 64, as above


def moved_up(live: Sequence[bool]) -> list[int]:
    """The numbers of the live rows, in an order in which the last ones take the places of those that have ended."""
    rows = [row for row, is_live in enumerate(live) if is_live]
    last = iter(row for row in reversed(rows) if row >= len(rows))
    return [row if live[row] else next(last) for row in range(len(rows))]  # holes filled from behind


def kept(state: StateT, rows: Tensor) -> StateT:
    """The state of those batch rows, in that order; the one before must not be used again."""
    return state.keep(rows) if isinstance(state, Keeping) else state.select(rows)
