"""`training.compile`: the blocks of a network with `torch.compile`, and what that needs."""

import os
import shutil
from importlib.util import find_spec

from atento.base.errors import RecipeError, UsageError
from atento.networks.interface import Network, stacks_of

_COMPILERS = ("g++", "clang++", "c++")


def compile_blocks(network: Network) -> None:
    """Let every stack of a network run its blocks with `torch.compile` while it trains.
    Raises RecipeError: the network has no stack of blocks. UsageError: this machine cannot compile.
    """
    if next(network.parameters()).device.type != "cpu" and find_spec("triton") is None:
        raise UsageError("`training.compile` needs the package triton on a GPU: pip install triton, or set it to false")
    named = os.environ.get("CXX")
    if not any(shutil.which(name) for name in ([named] if named else _COMPILERS)):
        raise UsageError(
            f"`training.compile` needs a C++ compiler: there is no {named or ' or '.join(_COMPILERS)} on this machine; "
            "install one, or set it to false"
        )
    stacks = stacks_of(network)
    if not stacks:
        raise RecipeError(f"`training.compile` needs a Transformer: got architecture {network.config.architecture!r}")
    for stack in stacks:
        stack.compiled = True
