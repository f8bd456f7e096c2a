"""Records a step of beam search in a trace: every candidate, and why it stayed in the beam or was dropped."""

from torch import Tensor, inf

from atento.decoding.beam.candidates import Candidates
from atento.decoding.trace import FINISHED, OUTSIDE, PLACE, STAGE, Trace


def record_step(
    trace: Trace, candidates: Candidates, ends: Tensor, chosen: Candidates, slots: list[int], fates: list[str]
) -> None:
    """Record the candidates (U,c), of which `ends` (U,c) finish an output and `chosen` (U,w) stay in the beam.

    Args:
        slots: how many slots each group had when the candidates were ranked.
        fates: of the chosen candidates of each group: kept, unless the group's search is over.
    """
    width = chosen.scores.shape[1]
    staying = [
        {pair for pair, score in zip(zip(parents, tokens), scores) if score > -inf}
        for parents, tokens, scores in zip(chosen.parents.tolist(), chosen.tokens.tolist(), chosen.scores.tolist())
    ]
    ranked = zip(candidates.scores.tolist(), candidates.parents.tolist(), candidates.tokens.tolist(), ends.tolist())
    for group, (scores, parents, tokens, group_ends) in enumerate(ranked):
        recorded: set[tuple[int, int]] = set()
        lowest = min(score for score in chosen.scores[group].tolist() if score > -inf) if staying[group] else inf
        live = 0  # how many candidates before this one could stay in the beam
        for rank, (score, parent, token, end) in enumerate(zip(scores, parents, tokens, group_ends)):
            if score == -inf:
                continue
            fate = OUTSIDE
            if end:
                fate = FINISHED if rank < min(width, slots[group]) else OUTSIDE
            elif (parent, token) in staying[group]:
                fate = fates[group]
            elif live < width:  # it is among the best, but the beam has shrunk
                fate = PLACE
            elif score > lowest:
                fate = STAGE
            live += not end
            recorded.add((parent, token))
            trace.candidate(group * width + parent, token, fate, total=score)
        _record_others(trace, group * width, width, recorded)


def _record_others(trace: Trace, start: int, width: int, recorded: set[tuple[int, int]]) -> None:
    """Record the most probable tokens after each live hypothesis that were not even candidates."""
    for parent in range(width):
        for token in trace.most_probable(start + parent):
            if (parent, token) not in recorded:
                trace.candidate(start + parent, token, trace.removal_fate(start + parent, token) or OUTSIDE)
