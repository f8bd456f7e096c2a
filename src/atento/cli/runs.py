"""`atento runs`: the runs in a folder, and one of them."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from atento.cli.options import AsJson


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    app.command("runs", epilog="Example:  atento runs show runs/demo")(runs)


def runs(
    words: Annotated[
        list[str] | None, typer.Argument(metavar="FOLDER | show RUN", help="Default: the folder runs.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """List the runs in a folder, or show one: its step, scores and checkpoints."""
    from atento.errors import UsageError

    words = words or ["runs"]
    if words[0] == "show":
        if len(words) != 2:
            raise UsageError("`atento runs show` takes one run folder")
        record = _summary(Path(words[1]))
        if record is None:
            raise UsageError(f"{words[1]} is not a run")
        typer.echo(json.dumps(record, ensure_ascii=False, indent=None if as_json else 2))
        return
    folder = Path(words[0])
    if len(words) > 1 or not folder.is_dir():
        raise UsageError(f"{' '.join(words)} is not a folder of runs")
    found = [record for path in sorted(folder.iterdir()) if path.is_dir() and (record := _summary(path))]
    if as_json:
        typer.echo(json.dumps(found, ensure_ascii=False))
        return
    for record in found:
        scores = " ".join(f"{name} {value:.2f}" for name, value in record["scores"].items())
        typer.echo(
            f"{record['run']}\tstep {record['step']}\t{'finished' if record['finished'] else 'unfinished'}\t{scores}"
        )


def _summary(path: Path) -> dict[str, Any] | None:
    from atento.training.journal import read_journal

    if not (path / "run.json").exists():
        return None
    events = read_journal(path / "metrics.jsonl") if (path / "metrics.jsonl").exists() else []
    valid = [event for event in events if event["event"] == "valid"]
    skip = ("event", "step", "seconds")
    return {
        "run": str(path),
        "step": max((int(event["step"]) for event in events), default=0),
        "finished": any(event["event"] == "end" for event in events),
        "scores": {} if not valid else {name: value for name, value in valid[-1].items() if name not in skip},
        "checkpoints": sorted(p.name for p in (path / "checkpoints").glob("step-*")),
    }
