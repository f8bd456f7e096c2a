"""`atento launch`: the launch file of a run on several machines."""

import re
from typing import Annotated

import typer

from atento.cli import completion
from atento.cli.options import Overrides, recipe_of
from atento.errors import UsageError, nearest
from atento.terminal import echo


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    app.command("launch", epilog="Example:  atento launch slurm micro-world-en-pt --nodes 2 > train.sbatch")(launch)


def launch(
    system: Annotated[
        str,
        typer.Argument(
            metavar="slurm|kubernetes", help="The cluster.", autocompletion=completion.words("slurm", "kubernetes")
        ),
    ],
    recipe: Annotated[
        str,
        typer.Argument(
            metavar="RECIPE",
            help="A YAML file that all machines see under this path, or the name of a shipped recipe.",
            autocompletion=completion.recipes,
        ),
    ],
    overrides: Overrides = None,
    nodes: Annotated[int, typer.Option(metavar="N", min=1, max=100_000, help="Machines.")] = 1,
    nproc: Annotated[
        int, typer.Option(metavar="N", min=1, max=1024, help="Processes on each machine, one for each of its GPUs.")
    ] = 8,
    gpus: Annotated[bool, typer.Option("--gpus/--no-gpus", help="Whether each process has a GPU.")] = True,
    out: Annotated[str | None, typer.Option(metavar="RUN", help="The run folder, which all machines share.")] = None,
    name: Annotated[str | None, typer.Option(metavar="NAME", help="Name of the job; by default the recipe's.")] = None,
    hours: Annotated[int, typer.Option(metavar="N", min=1, help="Slurm: the longest time of the job.")] = 24,
    image: Annotated[str, typer.Option(metavar="IMAGE", help="Kubernetes: a container image with Atento.")] = "",
    claim: Annotated[
        str, typer.Option(metavar="NAME", help="Kubernetes: the persistent volume claim of the shared folder.")
    ] = "",
) -> None:
    """Print a Slurm script or a Kubernetes JobSet that trains a recipe on several machines.

    All machines share the run folder and the data. The same file continues a run that was stopped.
    """
    from atento.runs.launch_files import LAUNCHERS, Job

    if system not in LAUNCHERS:
        raise UsageError(f"there is no cluster {system!r}{nearest(system, list(LAUNCHERS))}")
    loaded = recipe_of(recipe, overrides)
    arguments = [recipe, *(overrides or []), "--out", out or f"runs/{loaded.recipe.name}"]
    arguments += [] if gpus else ["--device", "cpu"]
    plain = re.sub("[^a-z0-9]+", "-", loaded.recipe.name.lower()).strip("-")[:40]
    job = Job(name or plain, arguments, nodes, nproc, gpus, hours, image, claim)
    echo(LAUNCHERS[system](job), nl=False)
