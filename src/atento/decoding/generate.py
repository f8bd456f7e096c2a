"""The one entry to decoding: a network, ids and a strategy in; n-best lists of hypotheses out."""

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from atento.decoding.beam import beam
from atento.decoding.greedy import greedy
from atento.decoding.hypothesis import Beam, Greedy, Hypothesis, Limits, Steps
from atento.errors import nearest

STRATEGIES: dict[type, Callable[..., list[list[Hypothesis]]]] = {Greedy: greedy, Beam: beam}


class Steppable(Protocol):
    """A network that offers itself as a step function."""

    def steps(self) -> Steps:
        """The step function."""


@torch.inference_mode()
def generate(
    network: Steppable | Steps,
    ids: Tensor,
    strategy: Greedy | Beam,
    *,
    max_new_tokens: int | Sequence[int],
    min_new_tokens: int = 0,
    eos_id: int | tuple[int, ...] | None = None,
    padding_mask: Tensor | None = None,
    prefix_ids: Tensor | None = None,
) -> list[list[Hypothesis]]:
    """Write an output for each row of `ids`.

    Args:
        network: a network, or anything with `begin` and `step` (a toy, say).
        ids: (B,S), the source of an encoder-decoder, whose output begins at the network's start token; or the prompt
            of a language model, which is not repeated in the output.
        max_new_tokens: at most so many tokens, EOS counted; one number, or one a row.
        eos_id: None = the network's own, () = none.
        padding_mask: boolean (B,S), True = a real token.
        prefix_ids: (B,P) tokens that every output begins with; they are not repeated in it.

    Returns:
        A list a row of hypotheses, best first.
    """
    steps: Any = network.steps() if hasattr(network, "steps") else network
    if type(strategy) not in STRATEGIES:
        raise ValueError(
            f"unknown strategy {type(strategy).__name__!r}"
            f"{nearest(type(strategy).__name__, [kind.__name__ for kind in STRATEGIES])}"
        )
    count = ids.shape[0]
    most = [max_new_tokens] * count if isinstance(max_new_tokens, int) else list(max_new_tokens)
    if len(most) != count:
        raise ValueError(f"`max_new_tokens` gives one number a row: got {len(most)} for {count} rows")
    eos_ids = (steps.eos_id,) if eos_id is None else (eos_id,) if isinstance(eos_id, int) else tuple(eos_id)
    if hasattr(steps, "first_tokens"):  # a language model goes on from its prompt
        first = steps.first_tokens(ids, padding_mask)
    else:
        first = torch.full((count,), steps.start_id, dtype=torch.long, device=ids.device)
    if prefix_ids is not None:
        first = torch.cat([first.unsqueeze(1), prefix_ids], dim=1)
    state = steps.begin(ids, padding_mask)
    found = STRATEGIES[type(strategy)](steps, state, first, strategy, Limits(most, min_new_tokens, eos_ids))
    if hasattr(steps, "end"):  # a network may want to show the way that was taken
        begun = [[]] * count if prefix_ids is None else prefix_ids.tolist()
        last = [best[0].ids if best[0].finished else best[0].ids[:-1] for best in found]  # what was read to write them
        steps.end([[*before, *ids] for before, ids in zip(begun, last)])
    return found
