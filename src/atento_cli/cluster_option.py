"""`--cluster`: a command over a file of any size, by workers side by side, with parts of the output in a folder."""

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from atento.base.errors import UsageError
from atento_cli.cluster_run import Launch
from atento_cli.completion import words
from atento_cli.options import key_and_value, with_signature

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
            help="Columns of FILE, a table, by name or number (no header), in place of the line; several are joined by "
            "a tab. With --cluster: of a .jsonl, .tsv (by number) or .parquet file.",
        ),
    ],
    "reading": Annotated[
        list[str] | None,
        typer.Option(metavar="KEY=VALUE", help="How FILE is read: encoding; of a table also format, delimiter, sheet."),
    ],
}


def check_cluster(where: str | None) -> str | None:
    """Return the value of --cluster. Raises UsageError: there is no such cluster."""
    if where not in (None, "local", "ray") and not str(where).startswith("ray://"):
        raise UsageError(f"--cluster must be local, ray or ray://HOST:PORT: got {where!r}")
    return where


def with_cluster(command: Callable[..., None], usual: str | None = None) -> Callable[..., None]:
    """Return the command with the flags of `--cluster`; its parameter `cluster` is a Cluster, or None without it.

    Without it, `table` is the rows of --columns, or None. A command with an option --out of its own gets it as it is,
    but for None with --cluster. `usual` is the value of --cluster where it is not given.
    """
    signature = inspect.signature(command)
    own_out = "out" in signature.parameters
    flags = [name for name in _FLAGS if not ((name == "out" and own_out) or (name == "reading" and usual))]
    parameters = [parameter for name, parameter in signature.parameters.items() if name not in ("cluster", "table")]
    parameters += [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=_FLAGS[name]) for name in flags
    ]

    def run(**options: Any) -> None:
        values = {name: options.pop(name) for name in flags}
        values["cluster"] = values["cluster"] or usual
        reading = values.pop("reading", None)
        if reading and values["cluster"]:
            raise UsageError("--reading and --cluster exclude each other")
        if values["cluster"] is None:
            columns, table = values.pop("columns"), None
            if columns is not None or reading:
                from atento_cli.table_columns import table_rows

                names = [] if columns is None else columns.split(",")
                table = list(table_rows(options["file"], names, dict(map(key_and_value, reading or []))))
            for name, value in values.items():
                if value is not None:
                    raise UsageError(f"--{name.replace('_', '-')} has no effect without --cluster")
            command(cluster=None, table=table, **options)
            return
        if own_out:
            # the command itself writes to standard output, which a worker captures
            values["out"], options["out"] = options["out"], None
        check_cluster(values["cluster"])
        # the options with which each worker calls the command
        command(cluster=Launch(command.__name__, options, **values), **options)

    return with_signature(command, run, parameters)
