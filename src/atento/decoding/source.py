"""What a search may be given: a step function, a loaded model, or a network, whose plain step function is made here.

It is the one file of decoding that knows of networks.
"""

from typing import Protocol, runtime_checkable

from atento.decoding.contract import AnyStepFunction
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

    Raises:
        TypeError: it is none of these.
    """
    if isinstance(network, WritingNetwork):
        return PlainStepFunction(network)
    step_function = network.step_function() if isinstance(network, HasStepFunction) else network
    if not (hasattr(step_function, "begin") and hasattr(step_function, "step")):
        raise TypeError(f"`network` must be a network, or have `begin` and `step`: got {type(network).__name__}")
    return step_function
