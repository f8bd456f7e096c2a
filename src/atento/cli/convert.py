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
    out: Annotated[Path, typer.Option(metavar="DIR", help="Where to write; must not exist, or be empty.")],
    precision: Annotated[
        str | None,
        typer.Option(help="float32, bfloat16, float16 or float64 for every tensor; the types of the file by default."),
    ] = None,
    max_shard_size: Annotated[
        str, typer.Option(metavar="SIZE", help="Largest weight file, such as 5GB or 200MB; more is written in shards.")
    ] = "5GB",
    allow_missing: Annotated[
        bool, typer.Option("--allow-missing", help="Weights that the file lacks begin anew.")
    ] = False,
    allow_unused: Annotated[
        bool, typer.Option("--allow-unused", help="Weights that have no place here are left out.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Write a model in another layout. Older weight files (.bin) are read for their weights alone."""
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
