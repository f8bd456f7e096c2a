"""`atento attend`: attention maps of any layer and head, as one file."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from atento.base.errors import DataError, counted
from atento.base.terminal import echo
from atento_cli.command_progress import announce_stdin
from atento_cli.completion import words
from atento_cli.options import ModelArgument, ModelOptions, with_options
from atento_cli.output_paths import output_file

ENDINGS = (".html", ".svg", ".png", ".json")


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    app.command("attend", epilog="Example:  atento attend runs/demo 'The red house is big.' --out page.html")(attend)


@with_options()
def attend(
    model: ModelArgument,
    text: Annotated[
        str, typer.Argument(metavar="TEXT", help="The input text; - is standard input, one text per line.")
    ],
    out: Annotated[str, typer.Option(metavar="FILE", help="FILE.html, .svg, .png or .json; replaced if it exists.")],
    shared: ModelOptions,
    target: Annotated[str | None, typer.Option(help="The output text; decoded by the model if not given.")] = None,
    layer: Annotated[int, typer.Option(help="Layer to draw, from 0; -1 is the last. A page begins with it.")] = -1,
    head: Annotated[
        str,
        typer.Option(
            help="Head to draw: a number, mean or max. A page begins with it.", autocompletion=words("mean", "max")
        ),
    ] = "mean",
    kind: Annotated[
        str | None,
        typer.Option(
            help="Attention to draw: encoder, decoder or cross.", autocompletion=words("encoder", "decoder", "cross")
        ),
    ] = None,
    words: Annotated[bool, typer.Option("--words", help="Merge subwords into words; not with .json.")] = False,
) -> None:
    """Draw the attention weights of any layer and head: encoder, decoder or cross-attention."""
    from atento.inspection.attention_record import check_view
    from atento.inspection.page import attention_page
    from atento.storage.atomic_files import write_output

    head_choice: object = int(head) if head.removeprefix("-").isdecimal() else head
    view: dict[str, Any] = {"layer": layer, "head": head_choice, "kind": kind, "words": words}
    check_view(output_file(out, ENDINGS), **view)  # before the model is loaded, which takes seconds
    texts = [text]
    if text == "-":  # a line that is not blank, or several for a page
        from atento.data.files.source_lines import read_lines

        announce_stdin("-")
        texts = [line for line in read_lines("-") if line.strip()]
        if not texts or (len(texts) > 1 and (target is not None or Path(out).suffix.lower() != ".html")):
            only = "" if not texts else "; a page (.html) takes several, without --target"
            raise DataError(
                f"standard input must have one text on one line: got {counted(len(texts), 'line')} with text{only}"
            )
    with shared.loaded(model) as loaded:
        records = [loaded.attend(text, target) for text in texts]
    if len(records) == 1:
        records[0].save(out, **view)
    else:
        write_output(Path(out), attention_page(records, **view))  # one page for all texts
    echo(f"wrote {out}", err=True)
    if shared.as_json:
        for record in records:
            echo(json.dumps({"wrote": out, "tokens": record.tokens, "source_tokens": record.source_tokens}))
