"""`atento plan`: parameters, memory and computation of a recipe, before it is trained."""

import json
from typing import Annotated

import typer

from atento.cli import completion
from atento.cli.options import AsJson, Device, Threads, progress


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    app.command("plan", epilog="Example:  atento plan micro-world-en-pt training.batch_tokens=8192")(plan)


def plan(
    recipe: Annotated[
        str,
        typer.Argument(
            metavar="RECIPE", help="A YAML file, or the name of a shipped recipe.", autocompletion=completion.recipes
        ),
    ],
    overrides: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="key=value", help="Overrides, such as training.steps=1000.", autocompletion=completion.overrides
        ),
    ] = None,
    device: Device = "auto",
    threads: Threads = None,
    as_json: AsJson = False,
) -> None:
    """Print parameters, updates, memory by part and computation of a recipe, without training it.

    The data is read, and the tokenizer trained if the recipe names none. Activations are measured by one forward pass
    on random weights; the other parts follow from shapes. Temporary memory of operations comes on top.
    """
    import torch

    from atento.config.loading import load_recipe
    from atento.precision import resolve_device
    from atento.runs.plan import plan_run

    loaded = load_recipe(recipe, overrides or [])
    for warning in loaded.warnings:
        progress(f"warning: {warning}")
    made = plan_run(loaded, resolve_device(device), threads or torch.get_num_threads(), progress)
    if as_json:
        typer.echo(json.dumps(made.to_dict()))
        return
    typer.echo(f"parameters           {made.parameters:>15,}" + f"  ({made.trained:,} trained)")
    typer.echo(f"updates              {made.steps:>15,}  ({made.updates_per_epoch:,.0f} an epoch)")
    typer.echo(f"targets an update    {made.tokens_per_update:>15,}")
    typer.echo(f"computation an update{made.flops_per_update / 1e9:>15,.1f}  GFLOP")
    for name, size in [*made.memory.items(), ("memory in total", made.total)]:
        typer.echo(f"{name:<21}{size / 2**20:>15,.1f}  MiB")
