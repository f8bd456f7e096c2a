"""The options that every command running a network shares, and the context they work in."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from atento.cli.completion import models, words
from atento.errors import UsageError

MOST_SEEDS = 2**63


def check_seed(seed: int | None) -> int | None:
    """A seed that every generator takes; None where it was not given and the recipe says it.

    Raises:
        UsageError: below 0, or 2**63 and more.
    """
    if seed is not None and not 0 <= seed < MOST_SEEDS:
        raise UsageError(f"--seed must lie between 0 and {MOST_SEEDS - 1}: got {seed}")
    return seed


Device = Annotated[str, typer.Option(help="auto, cpu, cuda ...", autocompletion=words("auto", "cpu", "cuda"))]
Precision = Annotated[
    str,
    typer.Option(
        help="float32, bfloat16, int8 (to write) or float64.",
        autocompletion=words("float32", "bfloat16", "int8", "float64"),
    ),
]
Seed = Annotated[
    int, typer.Option(metavar="SEED", callback=check_seed, help="Seed of whatever is drawn: a whole number from 0 up.")
]
TrainingPrecision = Annotated[
    str | None,
    typer.Option(help="auto, float32 or bfloat16.", autocompletion=words("auto", "float32", "bfloat16")),
]
TrainingSeed = Annotated[
    int | None, typer.Option(metavar="SEED", callback=check_seed, help="Seed of everything that is drawn.")
]
Threads = Annotated[int | None, typer.Option(min=1, max=1024, help="Processor threads; all cores if not given.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
ModelArgument = Annotated[
    str, typer.Argument(metavar="MODEL", help="A run folder, a model folder or a hub name.", autocompletion=models)
]


def check_order(model: str, *files: str) -> None:
    """The model stands first, then what it reads.

    Raises:
        UsageError: a file stands first and a folder behind it.
    """
    folder = next((name for name in files if Path(name).is_dir()), None)
    if folder is not None and Path(model).is_file():
        raise UsageError(f"the first argument is the model, then comes what it reads: got {model} before {folder}")


@contextmanager
def running(seed: int, threads: int | None) -> Iterator[None]:
    """Seeded, with that many threads; warnings as lines on standard error."""
    import torch

    from atento.cli.warned import warnings_told
    from atento.precision import threads as thread_scope

    torch.manual_seed(seed)
    with thread_scope(threads), warnings_told():
        yield


def progress(text: str) -> None:
    """A line for a person, on standard error."""
    typer.echo(text, err=True)
