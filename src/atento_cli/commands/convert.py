"""`atento convert`: a model folder in another layout, or for another inference engine; older weight files in."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from atento.base.errors import UsageError
from atento.base.terminal import echo
from atento_cli.completion import words
from atento_cli.options import AsJson, Head, ModelArgument, Seed, Threads, running
from atento_cli.output_paths import output_folder

if TYPE_CHECKING:
    from atento_cli.convert.comparison import Comparison
    from atento_cli.convert.engines import Converted

_LAYOUTS = ("atento", "huggingface")
_ENGINES = ("ctranslate2", "onnx")
_NAMES = {"ctranslate2": "CTranslate2", "onnx": "ONNX Runtime"}


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    app.command("convert", epilog="Example:  atento convert downloads/bert --to atento --out bert")(convert)


def convert(
    model: ModelArgument,
    to: Annotated[
        str,
        typer.Option(
            "--to",
            help="atento or huggingface; ctranslate2 or onnx (ONNX Runtime) to use the model with that engine.",
            autocompletion=words(*_LAYOUTS, *_ENGINES),
        ),
    ],
    out: Annotated[Path, typer.Option(metavar="DIR", help="Output folder; must not exist, or be empty.")],
    precision: Annotated[
        str | None,
        typer.Option(
            help="float32, bfloat16, float16 or float64; the types of the file if not given. For ctranslate2 also "
            "int8, for onnx float32 or int8; float32 if not given. For atento also int8: a quarter of the size.",
            autocompletion=words("float32", "bfloat16", "float16", "float64", "int8"),
        ),
    ] = None,
    calibrate: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Texts, one a line, of the kind that the model will read: they fix the scales of int8 for atento.",
        ),
    ] = None,
    check: Annotated[
        bool,
        typer.Option(
            "--check/--no-check",
            help="Compare the outputs and the speed of ctranslate2 or onnx with Atento on random ids.",
        ),
    ] = True,
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
    head: Head = None,
    seed: Seed = 1,
    threads: Threads = None,
    as_json: AsJson = False,
) -> None:
    """Convert a model to another layout or for another engine. Only tensors are read from older weight files (.bin)."""
    output_folder(out, new=True)
    if to not in (*_LAYOUTS, *_ENGINES):
        raise UsageError(f"`--to` must be one of {', '.join((*_LAYOUTS, *_ENGINES))}: got {to!r}")
    flags: Any = {"allow_missing": allow_missing, "allow_unused": allow_unused, "head": head}
    if calibrate is not None:
        _check_texts(calibrate, to)
    if to in _LAYOUTS:
        from atento_cli.convert.layouts import convert as run

        load_report = run(
            model, out, to, precision=precision, calibrate=calibrate, max_shard_size=max_shard_size, **flags
        )
        echo(f"wrote {out}{f': {load_report}' if load_report else ''}", err=True)
        if as_json:
            echo(json.dumps({"wrote": str(out), "layout": to, "weights": load_report}, ensure_ascii=False))
        return
    from atento_cli.convert.engines import convert_for

    precision = precision or "float32"
    with running(seed, threads):
        converted = convert_for(model, out, to, precision=precision, check=check, seed=seed, **flags)
    echo(f"wrote {out}{f': {converted.load_report}' if converted.load_report else ''}", err=True)
    _print(converted, out, to, precision, as_json)


def _check_texts(calibrate: Path, to: str) -> None:
    """Warn of a table in place of texts. Raises UsageError: an engine takes none."""
    from atento_cli.lines import file_lines

    if to in _ENGINES:
        raise UsageError(f"`--calibrate` is for `--to atento --precision int8`: got `--to {to}`")
    file_lines(str(calibrate))


def _print(converted: "Converted", out: Path, to: str, precision: str, as_json: bool) -> None:
    comparison = converted.comparison
    if as_json:
        record: dict[str, object] = {
            "wrote": str(out),
            "engine": to,
            "precision": precision,
            "weights": converted.load_report,
        }
        record |= {"files": converted.files, "comparison": None if comparison is None else vars(comparison)}
        echo(json.dumps(record, ensure_ascii=False))
        return
    for name, size in converted.files.items():
        echo(f"{size:>14,} bytes  {name}")
    if comparison is not None:
        for line in _comparison_lines(comparison, to, precision):
            echo(line)


def _comparison_lines(comparison: "Comparison", to: str, precision: str) -> list[str]:
    share = f"{comparison.agreement:.1%} of the {comparison.choices} agree"
    if comparison.choices == "directions":
        share = f"least cosine of two vectors: {comparison.agreement:.6f}"
    if not comparison.before and not comparison.after:  # of random weights, for example
        share = f"every output ended at once, so no {comparison.choices} and no speed were compared"
        return [f"{comparison.compared}: largest difference {comparison.max_difference:.2g}", share]
    return [
        f"{comparison.compared}: largest difference {comparison.max_difference:.2g}",
        share,
        f"speed: Atento float32 {comparison.before:,.0f} tokens/s, {_NAMES[to]} {precision} {comparison.after:,.0f}"
        " tokens/s",
    ]
