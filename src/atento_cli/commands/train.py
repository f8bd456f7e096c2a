"""`atento train`: a recipe in, a run folder out; `atento launch`: the launch file of several machines."""

import json
import os
import re
import shlex
import signal
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from atento.base.errors import UsageError, nearest
from atento.base.terminal import echo
from atento_cli import completion
from atento_cli.options import AsJson, Device, Overrides, Threads, TrainingPrecision, TrainingSeed, progress, recipe_of

if TYPE_CHECKING:
    from atento.runs.train import TrainedRun

Processes = Annotated[
    int | None, typer.Option(metavar="N", min=1, max=1024, help="Processes on this machine that train together.")
]


def register(app: typer.Typer) -> None:
    """Add the commands to the application."""
    app.command("train", epilog="Example:  atento train micro-world-en-pt training.steps=500 --out runs/first")(train)
    app.command("launch", epilog="Example:  atento launch slurm micro-world-en-pt --nodes 2 > train.sbatch")(launch)


def train(
    recipe: Annotated[
        str,
        typer.Argument(
            metavar="RECIPE",
            help="A YAML file, the name of a shipped recipe, or a run folder to resume.",
            autocompletion=completion.recipes,
        ),
    ],
    overrides: Overrides = None,
    out: Annotated[str | None, typer.Option(metavar="RUN", help="The run folder; runs/NAME if not given.")] = None,
    from_: Annotated[
        str | None,
        typer.Option("--from", metavar="RUN@STEP", help="Begin at a checkpoint of another run: a step, best or last."),
    ] = None,
    folds: Annotated[
        int | None,
        typer.Option(metavar="N", min=2, help="Cross-validation: train N runs, each tested on a part of the data."),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Move an existing run folder aside.")] = False,
    device: Device = "auto",
    precision: TrainingPrecision = None,
    seed: TrainingSeed = None,
    threads: Threads = None,
    nproc: Processes = None,
    as_json: AsJson = False,
) -> None:
    """Train a recipe. An unfinished run is resumed exactly where it stopped.

    Ctrl-C, SIGTERM and SIGUSR1 save a checkpoint after the current step and exit with status 75. Run the same command
    to resume.
    """
    from atento.config.reading.loading import load_recipe
    from atento.training.replica import environment

    processes = environment.world_size() if environment.launched() else nproc or 1
    if folds is not None and processes > 1:
        raise UsageError("--nproc trains one run in several processes, --folds several runs: give one of the two")
    if processes > 1 and not environment.launched():
        if recipe == "-":
            raise UsageError("each process of --nproc reads the recipe: give a file or a name, not -")
        load_recipe(recipe, overrides or [])  # refuses mistakes once
        _launch(processes)
    from atento.runs.train import train as run  # with torch

    options: dict[str, Any] = {"out": out, "force": force, "device": device, "precision": precision}
    options |= {"seed": seed, "threads": threads}
    if folds is not None:
        from atento_cli.search.cross_validation import cross_validate

        if from_ is not None:
            alone = "--from begins one run at a checkpoint, and --folds trains several runs"
            raise UsageError(f"{alone}: give one of the two")
        scores = cross_validate(recipe, overrides or [], folds=folds, **options)
        echo(json.dumps(scores.to_dict(), ensure_ascii=False) if as_json else str(scores))
        return
    result = run(recipe, overrides or [], from_=from_, **options)
    if environment.rank() == 0:
        _print(result, as_json)


def _print(result: "TrainedRun", as_json: bool) -> None:
    """Print the result as JSON if asked for, and what can be done with it; the first of several processes does."""
    from atento.base.limits import read_plain
    from atento.config.tables.tasks import verb_of
    from atento.config.tables.verbs import VERBS
    from atento.models.card import fitting
    from atento.models.model_folder import find_model

    if as_json:
        echo(json.dumps(asdict(result) | {"folder": str(result.folder)}, ensure_ascii=False))
    if result.already_finished:
        return
    best = "" if result.best is None else f", best validation score {result.best:.2f} at step {result.best_step}"
    echo(f"finished {result.folder} at step {result.step}{best}", err=True)
    run = shlex.quote(str(result.folder))
    config = json.loads(read_plain(find_model(result.folder) / "config.json"))
    lines = []
    for head, own in config.get("tasks", {"": {"task": result.task}}).items():  # of several heads, each by its name
        verb, named = verb_of(own["task"]), f" --head {head}" if head else ""
        words = [fitting(verb, words, (config | own).get("pairs")) for words in (VERBS[verb].next if verb else ())]
        lines += [f"  atento {each.format(run=run)}{named}" for each in words]
    echo("\n".join(["next:", *lines, f"  atento runs show {run}"]), err=True)


def _launch(processes: int) -> None:
    """Run this command in several processes, which see in their environment that they train together."""

    def stop(number: int, frame: object) -> None:  # until the launcher has handlers of its own
        progress(f"stopped by {signal.Signals(number).name} before training began")
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1):
        signal.signal(number, stop)
    from atento.training.replica.launcher import launch  # with torch

    raise typer.Exit(launch(processes, "atento_cli.start", sys.argv[1:], progress))


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
    from atento_cli.plans.launch_files import LAUNCHERS, Job

    if system not in LAUNCHERS:
        raise UsageError(f"there is no cluster {system!r}{nearest(system, list(LAUNCHERS))}")
    loaded = recipe_of(recipe, overrides)
    arguments = [recipe, *(overrides or []), "--out", out or f"runs/{loaded.recipe.name}"]
    arguments += [] if gpus else ["--device", "cpu"]
    plain = re.sub("[^a-z0-9]+", "-", loaded.recipe.name.lower()).strip("-")[:40]
    job = Job(name or plain, arguments, nodes, nproc, gpus, hours, image, claim)
    echo(LAUNCHERS[system](job), nl=False)
