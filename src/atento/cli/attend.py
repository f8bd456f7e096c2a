"""`atento attend`: attention maps of any layer and head, as one file."""

import json
from typing import Annotated

import typer

from atento.cli.completion import words
from atento.cli.options import AsJson, Device, ModelArgument, Precision, Seed, Threads, running
from atento.cli.outputs import output_file

ENDINGS = (".html", ".svg", ".png", ".json")


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    app.command("attend", epilog="Example:  atento attend runs/demo 'The red house is big.' --out page.html")(attend)


def attend(
    model: ModelArgument,
    text: Annotated[str, typer.Argument(help="The text to read.")],
    out: Annotated[str, typer.Option(metavar="FILE", help="FILE.html, .svg, .png or .json; replaced if it exists.")],
    target: Annotated[str | None, typer.Option(help="The output to look at; the model's own if not given.")] = None,
    layer: Annotated[int, typer.Option(help="Layer shown first; from 0, -1 is the last.")] = -1,
    head: Annotated[
        str, typer.Option(help="Head shown first: a number, mean or max.", autocompletion=words("mean", "max"))
    ] = "mean",
    kind: Annotated[
        str | None, typer.Option(help="encoder, decoder or cross.", autocompletion=words("encoder", "decoder", "cross"))
    ] = None,
    words: Annotated[bool, typer.Option("--words", help="Merge subwords into words.")] = False,
    device: Device = "auto",
    precision: Precision = "float32",
    seed: Seed = 1,
    threads: Threads = None,
    as_json: AsJson = False,
) -> None:
    """Draw where a model looks: encoder self-attention, masked decoder self-attention and cross-attention."""
    from atento.model import load

    output_file(out, ENDINGS)
    with running(seed, threads):
        record = load(model, device=device, precision=precision).attend(text, target)
    which = int(head) if head.lstrip("-").isdigit() else head
    record.save(out, layer=layer, head=which, kind=kind, words=words)  # type: ignore[arg-type]  # checked there
    typer.echo(f"wrote {out}", err=True)
    if as_json:
        typer.echo(json.dumps({"wrote": out, "tokens": record.tokens, "source_tokens": record.source_tokens}))
