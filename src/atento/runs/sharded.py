"""What a run of several processes cannot do, and one with sharded weights (`training.parallel.shard`)."""

from atento.base.errors import RecipeError, UsageError
from atento.config.recipe import Recipe
from atento.config.tables.objective import OBJECTIVES
from atento.config.tables.tasks import objectives_of
from atento.networks.interface import Network
from atento.runs.branch import BranchPoint
from atento.training.replica.sharded_weights import check_network

_OUTSIDE = "it reads weights outside of a pass of the network, for which they are gathered"


def check_sharded(recipe: Recipe, network: Network, branch: BranchPoint | None) -> None:
    """Check that the weights of a run can be sharded, if its recipe says so.

    All processes must gather the same weights in the same order, so every part of an update must run the same blocks.
    Raises RecipeError: they cannot; the message says why.
    """
    shards = recipe.training.parallel.shard
    if shards == 1:
        return
    kinds = [objective.kind for objective in objectives_of(recipe.task, recipe.objective)]
    init, objective = recipe.init, f"the objective {kinds[0]}"
    for what, used, why in (
        (
            "several objectives",
            len(kinds) > 1,
            "their parts train different heads, and all processes must sum the same",
        ),
        (objective, OBJECTIVES[kinds[0]].of_vectors, "its update is one part, which cannot be dealt out"),
        (objective, kinds[0] in ("replaced-token", "tsdae"), _OUTSIDE),
        ("`training.scheduled_sampling`", recipe.training.scheduled_sampling.share > 0, _OUTSIDE),
        ("`init.cache`", init is not None and init.cache is not None, "the frozen blocks are not computed"),
        ("`init.classifier`", init is not None and init.classifier is not None, "it is fitted by one process"),
        (
            "--from",
            branch is not None,
            "it saves a checkpoint before the processes train: begin with shard 1, then go on",
        ),
    ):
        if used:
            raise RecipeError(f"{what} cannot be used with `training.parallel.shard` {shards}: {why}")
    check_network(network)


def check_processes(recipe: Recipe, processes: int) -> None:
    """Check that so many processes can train a recipe. Raises UsageError: they cannot."""
    if processes > 1 and recipe.init is not None and recipe.init.classifier is not None:
        raise UsageError(f"`init.classifier` is fitted by one process: got {processes}")
