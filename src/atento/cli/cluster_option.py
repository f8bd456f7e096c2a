"""`--cluster`: a command over a file of any size, by workers side by side, with parts of the output in a folder."""

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from atento.cli.cluster_run import Launch
from atento.cli.completion import words
from atento.cli.options import with_signature
from atento.errors import UsageError

_PANEL = "Files of any size"
_FLAGS: dict[str, object] = {
    "cluster": Annotated[
        str | None,
        typer.Option(
            metavar="WHERE",
            help="Answer FILE by workers side by side: local, ray, or ray://HOST:PORT. Needs --out.",
            autocompletion=words("local", "ray", "ray://"),
            rich_help_panel=_PANEL,
        ),
    ],
    "out": Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Folder of the parts; the same command makes those that are missing. `atento collect` joins them.",
            rich_help_panel=_PANEL,
        ),
    ],
    "workers": Annotated[
        int | None,
        typer.Option(
            min=1,
            max=65536,
            help="Number of workers, each with the model and --threads threads; one for each GPU, or for two cores.",
            rich_help_panel=_PANEL,
        ),
    ],
    "block_lines": Annotated[
        int | None,
        typer.Option(min=1, metavar="N", help="Lines of a part; 1024 up to 10 million lines.", rich_help_panel=_PANEL),
    ],
    "columns": Annotated[
        str | None,
        typer.Option(
            metavar="NAME,NAME",
            help="Keys of a .jsonl file, numbers of a .tsv file or columns of a .parquet file, in place of the line.",
            rich_help_panel=_PANEL,
        ),
    ],
}


def check_cluster(where: str | None) -> str | None:
    """Return the value of --cluster. Raises UsageError: there is no such cluster."""
    if where not in (None, "local", "ray") and not str(where).startswith("ray://"):
        raise UsageError(f"--cluster must be local, ray or ray://HOST:PORT: got {where!r}")
    return where


def with_cluster(command: Callable[..., None], usual: str | None = None) -> Callable[..., None]:
    """Return the command with the flags of `--cluster`; its parameter `cluster` is a Cluster, or None without it.

    A command with an option --out of its own gets it as it is, but for None with --cluster. `usual` is the value of
    --cluster where it is not given.
    """
    signature = inspect.signature(command)
    own_out = "out" in signature.parameters
    flags = [name for name in _FLAGS if name != "out" or not own_out]
    parameters = [parameter for name, parameter in signature.parameters.items() if name != "cluster"]
    parameters += [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=_FLAGS[name]) for name in flags
    ]

    def run(**options: Any) -> None:
        values = {name: options.pop(name) for name in flags}
        values["cluster"] = values["cluster"] or usual
        if values["cluster"] is None:
            for name, value in values.items():
                if value is not None:
                    raise UsageError(f"--{name.replace('_', '-')} has no effect without --cluster")
            command(cluster=None, **options)
            return
        if own_out:
            # the command itself writes to standard output, which a worker captures
            values["out"], options["out"] = options["out"], None
        check_cluster(values["cluster"])
        # the options with which each worker calls the command
        command(cluster=Launch(command.__name__, options, **values), **options)

    return with_signature(command, run, parameters)
