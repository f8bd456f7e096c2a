"""What a search may be given (a step function, a loaded model, a network), and what it begins and ends with.

It is the one file of decoding that knows of networks.
"""

from numbers import Integral
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from atento.decoding.contract import AnyStepFunction, PromptReader
from atento.inference.plain import PlainStepFunction, WritingNetwork


@runtime_checkable
class HasStepFunction(Protocol):
    """An object that has a step function, such as a loaded model."""

    def step_function(self) -> AnyStepFunction:
        """The step function."""


NetworkOrModel = WritingNetwork | HasStepFunction
Source = NetworkOrModel | AnyStepFunction


def step_function_of(network: Source) -> AnyStepFunction:
    """The step function of a network or a loaded model; a step function itself.
    Raises TypeError: it is none of these.
    """
    if isinstance(network, WritingNetwork):
        return PlainStepFunction(network)
    step_function = network.step_function() if isinstance(network, HasStepFunction) else network
    if not (hasattr(step_function, "begin") and hasattr(step_function, "step")):
        raise TypeError(f"`network` must be a network, or have `begin` and `step`: got {type(network).__name__}")
    return step_function


def ends_of(step_function: AnyStepFunction, eos_id: int | tuple[int, ...] | None) -> tuple[int, ...]:
    """The ids that end an output: those given, or for None the `eos_ids` of a step function or its only `eos_id`."""
    if eos_id is None:
        eos_id = getattr(step_function, "eos_ids", step_function.eos_id)
    return (int(eos_id),) if isinstance(eos_id, int | Integral) else tuple(eos_id)


def first_tokens(
    step_function: AnyStepFunction, ids: Tensor, token_mask: Tensor | None, prefix_ids: Tensor | None
) -> Tensor:
    """What the first step reads, (B,), or (B,1+P) where prefix_ids (B,P) are given."""
    if isinstance(step_function, PromptReader):
        first = step_function.first_tokens(ids, token_mask)
    else:
        first = torch.full((ids.shape[0],), step_function.start_id, dtype=torch.long, device=ids.device)
    return first if prefix_ids is None else torch.cat([first.unsqueeze(1), prefix_ids], dim=1)
