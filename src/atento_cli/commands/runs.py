"""`atento runs`: the runs in a folder; one of them shown; several compared or drawn. `atento average`: of weights."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from atento.base.errors import AtentoError, UsageError, counted
from atento.base.terminal import echo
from atento_cli import completion
from atento_cli.completion import runs_words
from atento_cli.options import AsJson
from atento_cli.output_paths import output_file

if TYPE_CHECKING:
    from atento.inspection.figures.curves import Panel
    from atento.runs.run_record import RunRecord

ENDINGS = (".svg", ".png", ".html")
_WIDEST = 32  # characters of a value in a table


def register(app: typer.Typer) -> None:
    """Add the commands to the application."""
    app.command("runs", epilog="Example:  atento runs show runs/demo; atento runs plot runs/a runs/b --out curves.svg")(
        runs
    )
    app.command("average", epilog="Example:  atento average runs/demo --last 5")(average)


def runs(
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="FOLDER | show RUN | compare RUN RUN ... | plot RUN ... | positions RUN",
            help="The folder `runs` if not given.",
            autocompletion=runs_words,
        ),
    ] = None,
    out: Annotated[str | None, typer.Option(metavar="FILE", help="For plot: FILE.svg, .png or .html.")] = None,
    as_json: AsJson = False,
) -> None:
    """List the runs in a folder, show one, compare several, or plot their curves.

    show prints task, sizes, checkpoint in use, scores, time and curves of a run. compare prints the differences of
    recipes, and scores side by side. plot draws loss, validation score and learning rate (needs matplotlib). positions
    prints how often training used each learned position, and the vectors it learned.
    """
    verb, arguments = (words[0], words[1:]) if words else ("", [])
    if out is not None and verb != "plot":
        raise UsageError("--out is an option of `atento runs plot` only")
    if verb == "show":
        if len(arguments) != 1:
            raise UsageError("`atento runs show` takes one run folder")
        from atento.runs.run_record import read_run

        record = read_run(Path(arguments[0]))
        if as_json:
            echo(json.dumps(record.to_dict(), ensure_ascii=False))
            return
        lines = list(_lines(record))
        width = max(len(name) for name, _ in lines) + 2
        echo(str(record.folder))
        for name, text in lines:
            echo(f"  {name:<{width}}{text}")
    elif verb == "compare":
        if len(arguments) < 2:
            raise UsageError(f"`atento runs compare` takes two or more run folders: got {len(arguments)}")
        _compare([Path(argument) for argument in arguments], as_json)
    elif verb == "positions":
        if len(arguments) != 1:
            raise UsageError("`atento runs positions` takes one run folder")
        from atento_cli.plans.position_report import position_report

        for table in position_report(Path(arguments[0])):
            echo(json.dumps(table.to_dict()) if as_json else str(table))
    elif verb == "plot":
        if not arguments or out is None:
            raise UsageError("`atento runs plot` takes run folders and --out FILE.svg, .png or .html")
        _plot([Path(argument) for argument in arguments], output_file(out, ENDINGS))
    else:
        folder = Path(words[0]) if words else Path("runs")
        if arguments or not folder.is_dir():
            raise UsageError(
                f"{' '.join(words or ['runs'])} is not a folder of runs; `atento train` makes the "
                "folder `runs`, and `atento runs FOLDER` lists another"
            )
        _list(folder, as_json)


def _list(folder: Path, as_json: bool) -> None:
    """Print one line for each run: folder, step, state, score of the checkpoint in use, test score."""
    from atento.runs.run_record import is_run, read_run

    records = []
    for path in sorted(path for path in folder.iterdir() if path.is_dir() and is_run(path)):
        try:
            records.append(read_run(path))
        except AtentoError as error:  # list the other runs if one is damaged
            echo(f"warning: {path}: {error}", err=True)
    if as_json:
        echo(json.dumps([record.to_dict() for record in records], ensure_ascii=False))
        return
    for record in records:
        used, name = record.in_use, record.metric
        score = ""
        if used is not None:
            value = "" if used.score is None else f"{name} {_number(used.score)}, "
            score = f"{value}{used.word} (step {used.step})"
        test = f"test {name} {_number(record.test[name])}" if name in record.test else ""
        state = "finished" if record.finished else "unfinished"
        echo("\t".join((str(record.folder), f"step {record.step}", state, score, test)).rstrip("\t"))


def _lines(record: "RunRecord") -> Iterator[tuple[str, str]]:
    from atento.inspection.figures.curves import sparkline
    from atento.training.progress import duration

    recipe, used, best = record.recipe, record.in_use, record.best
    yield "task", f"{', '.join(own.name for own in recipe.tasks) or recipe.task}, recipe {recipe.name}"
    of = "" if record.steps is None else f" of {record.steps:,}"
    time = "" if record.seconds is None else f" in {duration(record.seconds)}"
    yield "steps", f"{record.step:,}{of}, {'finished' if record.finished else 'unfinished'}{time}"
    sizes = {**vars(recipe.network), **record.network}  # those of the checkpoint in use
    kind, depth = sizes["architecture"], sizes["n_layers"]
    parts = [kind, f"{sizes['d_model']} wide"]
    if kind in ("encoder-decoder", "recurrent-seq2seq"):
        parts.append(f"{depth} + {sizes['n_decoder_layers'] or depth} layers")
    elif kind != "cbow":
        parts.append(counted(depth, "layer"))
    if isinstance(parameters := record.facts.get("parameters"), int):
        parts.append(f"{parameters:,} parameters")
    yield "network", ", ".join(parts)
    vocabulary = record.network.get("vocab_size")
    if isinstance(vocabulary, int):
        initial = recipe.init or recipe.network.features
        path = recipe.tokenizer.path if initial is None else initial.model
        yield "vocabulary", f"{vocabulary:,} pieces, {recipe.tokenizer.kind if path is None else f'that of {path}'}"
    if used is None:
        yield "in use", "no checkpoint yet"
    else:
        score = "not validated" if used.score is None else f"{record.metric} {_number(used.score)}"
        yield "in use", f"the {used.word} checkpoint, step {used.step:,}, {score} ({used.path})"
    if best is not None:
        count = counted(len(record.curve(record.metric, "valid")), "validation")
        yield "best", f"{record.metric} {_number(best.value)} at step {best.step:,}, of {count}"
    if record.test:
        yield "test", ", ".join(f"{name} {_number(value)}" for name, value in record.test.items() if name != "loss")
    curves = {"training loss": ("loss", "train"), "validation nll": ("nll", "valid")}
    # where the metric is nll, both have one name
    for label, (name, kind) in (curves | {f"validation {record.metric}": (record.metric, "valid")}).items():
        values = [value for _, value in record.curve(name, kind)]
        if values:
            yield label, f"{_number(values[0])} {sparkline(values)} {_number(values[-1])}"
    yield "checkpoints", ", ".join(record.checkpoints) or "none"
    if record.damaged:
        yield "damaged", ", ".join(record.damaged)


def _compare(folders: Sequence[Path], as_json: bool) -> None:
    """Print the recipe keys that differ, then scores, one column for each run."""
    from atento.config.reading.loading import recipe_values
    from atento.runs.run_record import read_run
    from atento.training.progress import duration

    records = [read_run(folder) for folder in folders]
    recipes = [recipe_values(record.recipe) for record in records]
    keys = [key for key in dict.fromkeys(key for recipe in recipes for key in recipe) if key not in ("name",)]
    differing = {
        key: [recipe.get(key) for recipe in recipes]
        for key in keys
        if len({recipe.get(key, "(absent)") for recipe in recipes}) > 1
    }
    if as_json:
        comparison = {"runs": [record.to_dict() for record in records], "differences": differing}
        echo(json.dumps(comparison, ensure_ascii=False))
        return
    rows = [("", [str(folder) for folder in folders])]
    rows += [(key, ["(absent)" if value is None else value for value in values]) for key, values in differing.items()]
    if not differing:
        echo("the recipes are the same", err=True)
    rows.append(("step", [f"{record.step:,}" for record in records]))
    counts = [record.facts.get("parameters") for record in records]
    rows.append(("parameters", [f"{count:,}" if isinstance(count, int) else "" for count in counts]))
    rows.append(("time", ["" if record.seconds is None else duration(record.seconds) for record in records]))
    rows.append(
        (
            "in use",
            ["" if used is None else f"{used.word}, {used.step:,}" for used in (record.in_use for record in records)],
        )
    )
    for split, tables in (
        ("validation", [record.scores for record in records]),
        ("test", [record.test for record in records]),
    ):
        for name in dict.fromkeys(name for table in tables for name in table if name != "loss"):
            rows.append((f"{split} {name}", [_number(table[name]) if name in table else "" for table in tables]))
    cut = [
        # the end of a path says more than its beginning
        (name, [value if len(value) <= _WIDEST else f"...{value[3 - _WIDEST :]}" for value in values])
        for name, values in rows
        if name == "" or any(values)
    ]
    first = max(len(name) for name, _ in cut)
    widths = [max(len(row[n]) for _, row in cut) for n in range(len(cut[0][1]))]
    for name, row in cut:
        cells = "  ".join(value.ljust(width) for value, width in zip(row, widths))
        echo(f"{name:<{first}}  {cells}".rstrip())


def _plot(folders: Sequence[Path], out: Path) -> None:
    from atento.inspection.figures.curves import curves_page, curves_picture
    from atento.runs.run_record import read_run
    from atento.storage.atomic_files import write_output

    panels = _panels([read_run(folder) for folder in folders])
    if not panels:
        raise UsageError(f"{', '.join(map(str, folders))}: no train or valid event yet, so there is no curve to draw")
    kind = out.suffix.lower().removeprefix(".")
    title = "Runs: " + ", ".join(folder.name for folder in folders)
    content = curves_page(panels, title) if kind == "html" else curves_picture(panels, kind)
    write_output(out, content)
    echo(f"wrote {out}", err=True)


def _panels(records: Sequence["RunRecord"]) -> "list[Panel]":
    from atento.inspection.figures.curves import Line, Panel

    def lines(name: str, kind: str, dashed: bool = False) -> list[Line]:
        curves = [(number, record, record.curve(name, kind)) for number, record in enumerate(records)]
        # the number is the colour of a run in all panels
        return [Line(str(record.folder), number, points, dashed) for number, record, points in curves if points]

    panels = [Panel("training loss\n(dashed: validation nll)", [*lines("loss", "train"), *lines("nll", "valid", True)])]
    for metric in dict.fromkeys(record.metric for record in records if record.metric != "nll"):
        panels.append(Panel(f"validation {metric}", lines(metric, "valid")))
    panels.append(Panel("learning rate", lines("learning_rate", "train")))
    return [panel for panel in panels if panel.lines]


def _number(value: Any) -> str:
    """A score with two decimals, or three significant digits if it is small."""
    return f"{value:.2f}" if abs(value) >= 0.1 or value == 0 else f"{value:.3g}"


def average(
    run: Annotated[str, typer.Argument(metavar="RUN", help="A run folder.", autocompletion=completion.runs)],
    last: Annotated[
        int | None, typer.Option(min=1, help="Number of checkpoints; 5, or all if there are fewer, if not given.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Average the weights of the last checkpoints of a run, and print the folder of the averaged model."""
    from atento.storage.average_weights import average_run

    averaged = average_run(Path(run), last or 5)
    if len(averaged.names) < (last or 2):  # the mean of one is that one, so also without --last
        asked = "" if last is None else f", and --last is {last:,}"
        echo(f"warning: {run} has {counted(len(averaged.names), 'checkpoint')} to average{asked}", err=True)
    echo(f"averaged {counted(len(averaged.names), 'checkpoint')}: {', '.join(averaged.names)}", err=True)
    if averaged.skipped:
        skipped = ", ".join(averaged.skipped)
        echo(
            f"left out, because the recipe does not schedule them or checkpoints after them are gone: {skipped}",
            err=True,
        )
    record = {"path": str(averaged.path), "checkpoints": averaged.names, "skipped": averaged.skipped}
    echo(json.dumps(record) if as_json else str(averaged.path))
