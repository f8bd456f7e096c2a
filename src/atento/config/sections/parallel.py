"""The section `training.parallel` of a recipe: several processes that train one network together."""

from dataclasses import dataclass
from typing import Literal

from atento.errors import RecipeError


@dataclass(frozen=True)
class ParallelConfig:
    """How several processes (`atento train --nproc`, torchrun) train one network together.

    Each process has a copy of the network, or a shard of one, and computes its share of the parts of every update.
    Gradients are summed over all processes and divided once by the number of real targets, so the update does not
    depend on their number.
    """

    replicate: Literal["auto"] | int = "auto"
    """Copies of the network. [auto, or at least 1; auto: as many as the processes that were started allow, each with
    `shard` of them] Give a number to make sure that a run starts with that many.
    """
    shard: int = 1
    """Processes that the weights, gradients and optimizer state of one copy are divided among. [at least 1; 1: each
    process has a whole copy] Raise it where a copy does not fit into the memory of a device. It sends more: the weights
    of each block, before it computes.
    """
    exact: bool = False
    """Sum the gradients of the parts of an update in a fixed order, one CPU thread a process, so that any number of
    processes gives the same bits. It is slower. Set it to compare runs, or to look for a fault of a machine.
    """
    timeout: float = 300.0
    """Seconds that a process waits in an update for the others before the run ends with an error. [above 0] Raise it
    where updates take minutes, or processes are of different speed.
    """

    def __post_init__(self) -> None:
        section = "training.parallel"
        if self.replicate != "auto" and (not isinstance(self.replicate, int) or self.replicate < 1):
            raise RecipeError(f"`{section}.replicate` must be auto or at least 1: got {self.replicate}")
        if self.shard < 1:
            raise RecipeError(f"`{section}.shard` must be at least 1: got {self.shard}")
        if self.shard > 1 and self.exact:
            raise RecipeError(
                f"`{section}.exact` fixes the order of sums, and with `{section}.shard` {self.shard} they are summed "
                "where each shard is: use one of the two"
            )
        if not 0 < self.timeout < float("inf"):
            raise RecipeError(f"`{section}.timeout` must be finite and above 0: got {self.timeout}")
