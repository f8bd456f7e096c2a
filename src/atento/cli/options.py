"""Options that all commands with a network share, and the context in which such a command runs."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from atento.cli.completion import models, words
from atento.errors import UsageError
from atento.terminal import echo

SEED_LIMIT = 2**63


def check_seed(seed: int | None) -> int | None:
    """Check that a seed is valid for every random generator; None if it was not given.

    Raises:
        UsageError: the seed is below 0, or 2**63 or more.
    """
    if seed is not None and not 0 <= seed < SEED_LIMIT:
        raise UsageError(f"--seed must lie between 0 and {SEED_LIMIT - 1}: got {seed}")
    return seed


Device = Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.", autocompletion=words("auto", "cpu", "cuda"))]
Precision = Annotated[
    str,
    typer.Option(
        help="float32, bfloat16, int8 (on the CPU) or float64.",
        autocompletion=words("float32", "bfloat16", "int8", "float64"),
    ),
]
Seed = Annotated[int, typer.Option(metavar="SEED", callback=check_seed, help="Random seed, 0 or more.")]
TrainingPrecision = Annotated[
    str | None,
    typer.Option(help="auto, float32 or bfloat16.", autocompletion=words("auto", "float32", "bfloat16")),
]
TrainingSeed = Annotated[
    int | None, typer.Option(metavar="SEED", callback=check_seed, help="Random seed; the recipe's if not given.")
]
Threads = Annotated[int | None, typer.Option(min=1, max=1024, help="Number of CPU threads; all cores if not given.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
ModelArgument = Annotated[
    str,
    typer.Argument(metavar="MODEL", help="A run folder, a model folder or a hub name.", autocompletion=models),
]


def check_order(model: str, *files: str) -> None:
    """Check that the model comes before the files it reads.

    Raises:
        UsageError: the first argument is a file and a later one is a folder.
    """
    folder = next((name for name in files if Path(name).is_dir()), None)
    if folder is not None and Path(model).is_file():
        raise UsageError(f"the first argument must be the model, followed by its input: got {model} before {folder}")


@contextmanager
def running(seed: int, threads: int | None) -> Iterator[None]:
    """Set the random seed and the number of threads; print warnings as lines on standard error."""
    import torch

    from atento.cli.warned import warnings_as_lines
    from atento.precision import threads as thread_scope

    torch.manual_seed(seed)
    with thread_scope(threads), warnings_as_lines():
        yield


def progress(text: str) -> None:
    """Print a line to standard error."""
    echo(text, err=True)
