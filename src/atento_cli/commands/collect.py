"""`atento collect`: the parts of a command with --cluster as one output."""

import codecs
import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from atento.base.errors import UsageError, counted
from atento.base.terminal import echo, write
from atento_cli.options import AsJson, progress
from atento_cli.output_paths import output_file


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    app.command("collect", epilog="Example:  atento collect parts --out translated.txt")(collect)


def collect(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The --out folder of a command with --cluster.")],
    out: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write a file instead, which is replaced when all of it is there."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Print the parts of a finished run in the order of its input: line N of the output answers line N of the input.

    The parts are verified by their hashes first. Vectors (.npy) are joined to one array and need --out.
    """
    from atento_cli.scale.collect_output import collectable, contents, write_joined

    if out is not None:
        output_file(out)
    finished = collectable(folder)
    if out is None and as_json:
        raise UsageError("--json prints what was written to --out FILE: it needs that option")
    if out is None and finished.ending == ".npy":
        raise UsageError("vectors need --out FILE.npy: they are no text")
    if out is not None and finished.ending == ".npy":
        output_file(out, (".npy",))
    if out is None:
        if sys.stdout.isatty():
            for text in codecs.iterdecode(contents(finished), "utf-8", "replace"):  # a chunk may end within a character
                write(text)
        else:
            sys.stdout.buffer.writelines(contents(finished))
        sys.stdout.flush()
        return
    write_joined(finished, out)
    lines = sum(block.lines for block in finished.blocks)
    if as_json:
        echo(json.dumps({"out": str(out), "parts": len(finished.blocks), "lines": lines}))
        return
    progress(f"wrote {out}: {counted(len(finished.blocks), 'part')} for {counted(lines, 'line')}")
