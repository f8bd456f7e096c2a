"""What a search may be given (a step function, a loaded model, a network), and what it begins and ends with.

It is the one file of decoding that knows of networks.
"""

from dataclasses import dataclass
from numbers import Integral
from typing import Protocol, cast, runtime_checkable

import torch
from torch import Tensor

from atento.decoding.contract import AnyStepFunction, ObservableStepFunction, PromptReader, Request, State
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
    eos_id = getattr(step_function, "eos_ids", step_function.eos_id) if eos_id is None else eos_id
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


@dataclass(frozen=True)
class Prepared:
    """A request whose arguments were checked, and what the step function reads first."""

    step_function: AnyStepFunction
    ids: Tensor  # (B,S)
    token_mask: Tensor | None  # (B,S)
    request: Request
    prefix_ids: Tensor | None = None  # (B,P)

    @property
    def first(self) -> Tensor:
        """The tokens of the first step, (B,) or (B,1+P)."""
        return first_tokens(self.step_function, self.ids, self.token_mask, self.prefix_ids)

    @property
    def prefixes(self) -> list[list[int]]:
        """`prefix_ids` of each row."""
        return cast(list[list[int]], [[]] * len(self.ids) if self.prefix_ids is None else self.prefix_ids.tolist())

    def begin(self) -> State:
        """A new state of all rows, as often as it is called."""
        return cast(State, self.step_function.begin(self.ids, self.token_mask))

    def show(self, read: list[list[int]]) -> None:
        """Show observers of the network what each row's best output read: all of its tokens but the last."""
        if isinstance(self.step_function, ObservableStepFunction):
            written = [[*before, *ids] for before, ids in zip(self.prefixes, read)]
            self.step_function.show(self.ids, self.token_mask, written)
