"""The tokens of a beam search's best output, each as soon as no hypothesis that may still win has another one there."""

from collections.abc import Callable, Iterator

from torch import Tensor

from atento.decoding.beam.beam_search import beam_steps
from atento.decoding.beam.groups import BeamRequest
from atento.decoding.contract import Request, StateT, StepFunction
from atento.decoding.strategies import Beam
from atento.decoding.token_loop import Drawn, End


def beam_tokens(
    step_function: StepFunction[StateT],
    begin: Callable[[], StateT],
    first: Tensor,
    strategy: Beam,
    request: Request,
) -> Iterator[list[Drawn]]:
    """The tokens of the best output of a single row, EOS included; one token at a time.

    Of several end tokens of `request`, an output that ended by any of them gives the first.
    """
    asked, count = BeamRequest(strategy, request), 0
    for search in beam_steps(step_function, begin, first, asked, each=True):
        ids, log_probs = search.certain(asked) if asked.open else ([], [])
        for token, log_prob in zip(ids[count:], log_probs[count:]):
            count += 1
            yield [Drawn(0, 0, token, log_prob, None)]
    best = asked.results[0][0]
    ends_with_eos = len(best.token_scores) > len(best.ids)
    ids = [*best.ids, request.eos_ids[0]] if ends_with_eos else best.ids
    end: End | None = "limit" if len(ids) >= request.max_new_tokens[0] else None
    if best.finished:
        end = "eos" if ends_with_eos else "stop"
    for number in range(count, len(ids)):
        is_last = number == len(ids) - 1
        yield [Drawn(0, 0, ids[number], best.token_scores[number], end if is_last else None)]
