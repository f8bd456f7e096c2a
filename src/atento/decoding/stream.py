"""Streaming: one output, token by token: as it is written, or as soon as all hypotheses of a beam agree on it."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from atento.decoding.beam.beam_search import beam_steps
from atento.decoding.beam.groups import BeamRequest
from atento.decoding.contract import Rule
from atento.decoding.draft_proposals import Draft
from atento.decoding.draft_verification import DraftedSearch
from atento.decoding.generate import Stop, draftable, prepare
from atento.decoding.source import Prepared, Source
from atento.decoding.strategies import Beam, Greedy, Sample
from atento.decoding.token_loop import Drawn, End, token_steps


@dataclass(frozen=True)
class Token:
    """One token: its id, log p by the model, and how the output ends with it, if it does.

    `end` is "eos", the token then being EOS itself; "stop", by `stop`; "limit", by `max_new_tokens`.
    """

    id: int
    log_prob: float
    end: End | None = None


def stream(
    network: Source,
    ids: Tensor,
    strategy: Greedy | Sample | Beam,
    *,
    max_new_tokens: int,
    min_new_tokens: int = 0,
    eos_id: int | tuple[int, ...] | None = None,
    token_mask: Tensor | None = None,
    prefix_ids: Tensor | None = None,
    rules: Sequence[Rule] = (),
    required: Sequence[Sequence[int]] = (),
    stop: Stop | None = None,
    seed: int | Sequence[int] | None = None,
    draft: Draft | None = None,
) -> Iterator[Token]:
    """The tokens that `generate` writes with the same arguments, each as soon as it is chosen, EOS included.

    The tokens of a beam come as soon as all hypotheses that may still be the best output begin with them. With a draft,
    several tokens are chosen at a time. The network runs only while tokens are taken from the iterator.

    Args:
        ids: (1,S). The others as in `generate`; `required` is that of the row.

    Raises ValueError: more rows than one, another strategy, several samples; and what `generate` refuses.
    """
    if not isinstance(strategy, Greedy | Sample | Beam):
        raise ValueError(f"only greedy search, sampling and a beam write token by token: got {type(strategy).__name__}")
    if ids.dim() != 2 or len(ids) != 1:
        raise ValueError(f"`ids` must be one row, of shape (1,S): got {tuple(ids.shape)}")
    if draft is not None:
        draftable(draft, strategy)
    if isinstance(strategy, Sample) and strategy.n != 1:
        raise ValueError(f"a stream is one output, `n` must be 1: got {strategy.n}")
    rows = [required] if required else None  # of all rows
    options = (max_new_tokens, min_new_tokens, eos_id, token_mask, prefix_ids, rules, rows, stop, None, seed)
    return tokens_of(prepare(network, ids, strategy, *options), strategy, draft)


@torch.inference_mode()
def tokens_of(prepared: Prepared, strategy: Greedy | Sample | Beam, draft: Draft | None = None) -> Iterator[Token]:
    """As `stream`, for a request that is prepared."""
    strategy = Sample(temperature=0.0) if isinstance(strategy, Greedy) else strategy
    if isinstance(strategy, Beam):
        steps = _beam_tokens(prepared, strategy)
    elif draft is None:
        steps = token_steps(prepared.step_function, prepared.begin(), prepared.first, strategy, prepared.request)
    else:
        steps = DraftedSearch(prepared, strategy, draft).steps()
    written: list[int] = []
    for step in steps:
        for token in step:
            written.append(token.id)
            yield Token(token.id, token.log_prob, token.end)
    prepared.show([written[:-1]])


def _beam_tokens(prepared: Prepared, strategy: Beam) -> Iterator[list[Drawn]]:
    """The tokens of the best output of a single row, EOS included; one token at a time.

    Of several end tokens of the request, an output that ended by any of them gives the first.
    """
    request, count = prepared.request, 0
    asked = BeamRequest(strategy, request)
    for search in beam_steps(prepared.step_function, prepared.begin, prepared.first, asked, each=True):
        ids, log_probs = search.certain(asked) if asked.open else ([], [])  # after the end there is no live hypothesis
        for token, log_prob in zip(ids[count:], log_probs[count:]):  # what no other hypothesis can change any more
            count += 1
            yield [Drawn(0, 0, token, log_prob, None)]
    best = asked.results[0][0]
    ends_with_eos = len(best.token_scores) > len(best.ids)  # EOS has a score and no place among the ids
    ids = [*best.ids, request.eos_ids[0]] if ends_with_eos else best.ids
    end: End | None = "limit" if len(ids) >= request.max_new_tokens[0] else None
    if best.finished:
        end = "eos" if ends_with_eos else "stop"
    for number in range(count, len(ids)):  # what could not be certain before the end
        yield [Drawn(0, 0, ids[number], best.token_scores[number], end if number == len(ids) - 1 else None)]
