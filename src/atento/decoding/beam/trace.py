"""What a step of beam search tells a trace: each continuation that was weighed, and why it was dropped."""

import torch
from torch import Tensor

from atento.decoding.beam.candidates import Candidates
from atento.decoding.trace import FINISHED, OUTSIDE, PLACE, STAGE, Trace


def tell(
    trace: Trace, found: Candidates, ends: Tensor, chosen: Candidates, room: list[int], going_on: list[str]
) -> None:
    """Candidates `found` (U,c), of which `ends` end an output and `chosen` (U,w) go on.

    Args:
        room: how many places each search had when they were weighed.
        going_on: the fate of what goes on, for each search: kept, unless it ends here.
    """
    width = chosen.scores.shape[1]
    going = [
        {pair for pair, score in zip(zip(parents, tokens), scores) if score > -torch.inf}
        for parents, tokens, scores in zip(chosen.parents.tolist(), chosen.tokens.tolist(), chosen.scores.tolist())
    ]
    weighed = zip(found.scores.tolist(), found.parents.tolist(), found.tokens.tolist(), ends.tolist())
    for u, (scores, parents, tokens, over) in enumerate(weighed):
        told: set[tuple[int, int]] = set()
        least = min(score for score in chosen.scores[u].tolist() if score > -torch.inf) if going[u] else torch.inf
        live = 0  # how many before it could go on
        for rank, (score, parent, token, end) in enumerate(zip(scores, parents, tokens, over)):
            if score == -torch.inf:
                continue
            fate = OUTSIDE
            if end:
                fate = FINISHED if rank < min(width, room[u]) else OUTSIDE
            elif (parent, token) in going[u]:
                fate = going_on[u]
            elif live < width:  # it was in time, but the beam has shrunk
                fate = PLACE
            elif score > least:
                fate = STAGE
            live += not end
            told.add((parent, token))
            trace.candidate(u * width + parent, token, fate, total=score)
        _others(trace, u * width, width, told)


def _others(trace: Trace, start: int, width: int, told: set[tuple[int, int]]) -> None:
    """The most probable continuations of each beginning that did not even come that far."""
    for parent in range(width):
        for token in trace.most_probable(start + parent):
            if (parent, token) not in told:
                trace.candidate(start + parent, token, trace.taken_out(start + parent, token) or OUTSIDE)
