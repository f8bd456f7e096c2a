"""`atento convert`: a model folder in another layout; older weight files in."""

import json
from pathlib import Path
from typing import Annotated

import typer

from atento.cli.completion import words
from atento.cli.options import AsJson, ModelArgument
from atento.cli.outputs import output_folder


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    example = "Example:  atento convert downloads/bert --to atento --out bert"
    app.command("convert", epilog=example)(convert)


def convert(
    model: ModelArgument,
    to: Annotated[
        str, typer.Option("--to", help="atento or huggingface.", autocompletion=words("atento", "huggingface"))
    ],
    out: Annotated[Path, typer.Option(metavar="DIR", help="Output folder; must not exist, or be empty.")],
    precision: Annotated[
        str | None,
        typer.Option(help="float32, bfloat16, float16 or float64; the types of the file if not given."),
    ] = None,
    max_shard_size: Annotated[
        str,
        typer.Option(
            metavar="SIZE",
            help="Maximum size of a weight file, such as 5GB or 200MB; larger weights are written in shards.",
        ),
    ] = "5GB",
    allow_missing: Annotated[
        bool, typer.Option("--allow-missing", help="Initialise weights that are missing in the file.")
    ] = False,
    allow_unused: Annotated[
        bool, typer.Option("--allow-unused", help="Ignore weights of the file that the model does not have.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Convert a model to another layout. Only tensors are read from older weight files (.bin)."""
    from atento.convert.layouts import convert as run

    output_folder(out, new=True)
    load_report = run(
        model,
        out,
        to,
        precision=precision,
        max_shard_size=max_shard_size,
        allow_missing=allow_missing,
        allow_unused=allow_unused,
    )
    typer.echo(f"wrote {out}{f': {load_report}' if load_report else ''}", err=True)
    if as_json:
        typer.echo(json.dumps({"wrote": str(out), "layout": to, "weights": load_report}, ensure_ascii=False))
