"""`atento plan`: parameters, memory and computation of a recipe, before it is trained."""

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated

import typer

from atento.base.errors import UsageError
from atento.base.terminal import echo
from atento_cli import completion
from atento_cli.options import AsJson, Overrides, RecipeArgument, Threads, progress, recipe_of

if TYPE_CHECKING:
    from atento.runs.run_plan import Plan
    from atento_cli.plans.parallel_plan import WorldPlan


_BELIEVED = 1e-3  # seconds of an update, below which the peak of a GPU says nothing


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    app.command("plan", epilog="Example:  atento plan micro-world-en-pt training.batch_tokens=8192")(plan)


def plan(
    recipe: RecipeArgument,
    overrides: Overrides = None,
    world: Annotated[
        int | None, typer.Option(metavar="N", min=1, max=1_000_000, help="Plan for so many processes, one a GPU.")
    ] = None,
    device: Annotated[
        str,
        typer.Option(
            help="auto, cpu or cuda; with --world, the GPU to plan for: a100, h100 or h200.",
            autocompletion=completion.words("auto", "cpu", "cuda", "a100", "h100", "h200"),
        ),
    ] = "auto",
    threads: Threads = None,
    as_json: AsJson = False,
) -> None:
    """Print parameters, updates, memory by part, computation and time of a recipe, without training it.

    The data is read, and the tokenizer trained if the recipe names none. The memory of activations and the time are
    measured by a forward and a backward pass of one part of an update, on random weights; the rest follows from shapes.

    With --world, also print what each process sends in an update and how long the run takes, estimated by data
    sheets.
    """
    import torch

    from atento.base.precision import resolve_device
    from atento.base.precision import threads as thread_scope
    from atento.runs.run_plan import plan_recipe
    from atento.training.progress import duration
    from atento_cli.plans.parallel_plan import ACCELERATORS, plan_world

    loaded = recipe_of(recipe, overrides).one_task("atento plan")
    if world is None and device in ACCELERATORS:
        raise UsageError(
            f"--device {device} is the GPU of a plan for several processes: give their number too, such as --world 8"
        )
    if world is not None:
        estimate = plan_world(loaded, device, world, progress)
        echo(json.dumps(estimate.to_dict()) if as_json else _world_table(estimate))
        return
    shards = loaded.recipe.training.parallel.shard
    if shards > 1:
        progress(f"warning: this is the plan of whole weights in one process; --world {shards} plans sharded ones")
    with thread_scope(threads):
        made = plan_recipe(loaded, resolve_device(device), torch.get_num_threads(), progress)
    if as_json:
        echo(json.dumps(made.to_dict()))
        return
    seconds = made.seconds_per_update
    time = f"time an update       {seconds:>15,.2f}  s  ({duration(seconds * made.steps)} in all)"
    echo("\n".join([*_sizes(made), time, *_memory(made.memory)]))


def _sizes(plan: "Plan") -> list[str]:
    return [
        f"parameters           {plan.parameters:>15,}  ({plan.trained:,} trained)",
        f"updates              {plan.steps:>15,}  ({plan.updates_per_epoch:,.0f} an epoch)",
        f"targets an update    {plan.tokens_per_update:>15,}",
        f"computation an update{plan.flops_per_update / 1e9:>15,.1f}  GFLOP",
    ]


def _memory(parts: Mapping[str, int]) -> list[str]:
    sizes = [*parts.items(), ("memory in total", sum(parts.values()))]
    return [f"{name:<21}{size / 2**20:>15,.1f}  MiB" for name, size in sizes]


def _world_table(estimate: "WorldPlan") -> str:
    from atento.training.progress import duration

    lines = [
        *_sizes(estimate.plan),
        f"parts an update      {estimate.plan.parts:>15,}",
        "",
        f"estimates for each of {estimate.processes:,} processes on {estimate.device}:",
        *_memory(estimate.memory),
        f"sharded over all     {estimate.sharded / 2**20:>15,.1f}  MiB with shard={estimate.processes}",
        f"sent an update       {estimate.sent / 2**20:>15,.1f}  MiB",
        f"computation          {estimate.computation * 1e3:>15,.2f}  ms an update, at 40 % of the peak",
        f"communication        {estimate.communication * 1e3:>15,.2f}  ms an update",
        f"training             {duration(estimate.seconds):>15}  without validations and checkpoints",
    ]
    if estimate.computation < _BELIEVED:
        lines.append("times below a millisecond are not to be believed: starting the kernels takes longer")
    if not estimate.fits:
        lines.append("this does not fit into the memory of the GPU")
    if estimate.plan.parts < estimate.processes:
        lines.append("an update has fewer parts than processes: raise `training.batch_tokens`")
    return "\n".join(lines)
