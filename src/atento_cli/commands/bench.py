"""`atento bench`: measurements of Atento and of other libraries, with ratios last."""

import json
import os
import sys
from collections.abc import Iterable
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any

import typer

from atento.base.errors import UsageError, nearest
from atento.base.terminal import echo
from atento_cli.completion import measurements, models, words
from atento_cli.measurements import MEASUREMENTS, ON_DEVICES
from atento_cli.options import AsJson, Threads, progress
from atento_cli.output_paths import output_folder


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    app.command("bench", epilog="Example:  atento bench training --seconds 60")(bench)


Workloads = Annotated[
    list[str] | None,
    typer.Option(metavar="NAME", help="For serving and sizing: one of its workloads; repeatable. All if not given."),
]
PeersPython = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="For serving: the interpreter of an environment that has further servers."),
]

Race = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="For race and ladder: the file of the entrants, instead of the shipped one."),
]

Quick = Annotated[
    bool,
    typer.Option(
        "--quick",
        help="To try the command: few steps and one seed of transfer or ladder, for one with --device a tiny network.",
    ),
]
MeasuredDevice = Annotated[
    str,
    typer.Option(
        help="auto, cpu or cuda: for training, pretraining, finetuning, decoding, generation, encoding, graphs.",
        autocompletion=words("auto", "cpu", "cuda"),
    ),
]


def bench(
    name: Annotated[
        str | None,
        typer.Argument(metavar="NAME", help="The measurement; list them if not given.", autocompletion=measurements),
    ] = None,
    names_only: Annotated[
        bool, typer.Option("--list", help="List the measurements, with the minutes that each takes.")
    ] = False,
    run_all: Annotated[bool, typer.Option("--all", help="Run all measurements except agreement; takes hours.")] = False,
    seconds: Annotated[
        float,
        typer.Option(
            min=1,
            help="Seconds to measure each library or train each entrant; 30 gives the usual steps of positions, "
            "exposure, transfer.",
        ),
    ] = 30.0,
    out: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Also write rows, tables and figures to this folder.")
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(
            help="For agreement and serving: a trained translation model. For transfer: a run of micro-world-mlm, "
            "instead of training one.",
            autocompletion=models,
        ),
    ] = None,
    sources: Annotated[
        Path | None, typer.Option(metavar="FILE", help="For agreement and serving: sentences to translate.")
    ] = None,
    references: Annotated[
        Path | None, typer.Option(metavar="FILE", help="For agreement: reference translations.")
    ] = None,
    quick: Quick = False,
    device: MeasuredDevice = "auto",
    race: Race = None,
    workload: Workloads = None,
    peers_python: PeersPython = None,
    threads: Threads = None,
    as_json: AsJson = False,
) -> None:
    """Measure Atento and other libraries in the same run. On a shared machine, trust ratios more than times.

    Without a name, list the measurements.
    """
    from atento.base.precision import threads as thread_scope

    if name is not None and name not in MEASUREMENTS:
        raise UsageError(f"unknown measurement {name!r}{nearest(name, list(MEASUREMENTS))}")
    if name is not None and run_all:
        raise UsageError(f"--all runs every measurement: got the name {name!r} as well")
    if names_only or (name is None and not run_all):
        _list(as_json)
        return
    if out is not None:
        output_folder(out).mkdir(parents=True, exist_ok=True)
    if name == "agreement":
        if model is None or sources is None or references is None:
            raise UsageError(
                "agreement compares the precisions of a trained model: give --model, --sources, --references"
            )
    elif device != "auto" and name is not None and name not in ON_DEVICES:  # with --all, the others ignore it
        raise UsageError(f"--device is for {', '.join(ON_DEVICES)}: got it for {name}")
    options: dict[str, dict[str, object]] = {
        **{each: {"device": device, **({"size": "tiny"} if quick else {})} for each in ON_DEVICES},
        "transfer": {"model": model, "quick": quick},
        "race": {"race": race},
        "ladder": {"ladder": race, "quick": quick},
        "serving": {"workloads": workload, "peers_python": peers_python, "model": model, "sources": sources},
        "sizing": {"workloads": workload},
    }
    names = [name] if name else [measurement for measurement in MEASUREMENTS if measurement != "agreement"]
    for each in names:
        measure = _code(each).BENCHES[each]
        with thread_scope(threads):
            given = (model, sources, references) if each == "agreement" else (seconds,)
            show(each, measure(*given, **options.get(each, {})), out, as_json)


def _list(as_json: bool) -> None:
    """Print the measurements; print how to run them on standard error."""
    for name, measurement in MEASUREMENTS.items():
        record = {"name": name, "about": measurement.about, "minutes": measurement.minutes}
        echo(json.dumps(record) if as_json else f"{name:<12} {measurement.minutes:>4} min  {measurement.about}")
    hours = sum(measurement.minutes for name, measurement in MEASUREMENTS.items() if name != "agreement") / 60
    progress(f"run one: atento bench NAME; run all, about {hours:.0f} hours: atento bench --all")


def _code(name: str) -> ModuleType:
    """The package with the code of a measurement: the studies, or the benchmarks, which only a clone has.
    Raises UsageError: Atento was not installed from a clone.
    """
    if MEASUREMENTS[name].study:
        return import_module("atento_lab.studies")
    clone = Path(__file__).parents[3]
    if not (clone / "benchmarks" / "__init__.py").is_file():
        studies = ", ".join(name for name, measurement in MEASUREMENTS.items() if measurement.study)
        raise UsageError(
            f"{name} is measured from a clone of the project, which has the folder benchmarks; without one: {studies}"
        )
    if str(clone) not in sys.path:
        sys.path.insert(0, str(clone))
        paths = [str(clone), *filter(None, [os.environ.get("PYTHONPATH")])]
        os.environ["PYTHONPATH"] = os.pathsep.join(paths)  # for the processes that measure
    return import_module("benchmarks")


def show(name: str, measured: Iterable[dict[str, object]], out: Path | None, as_json: bool) -> None:
    """Print the rows of a measurement as they arrive, or its report at the end; write the files to `out`."""
    rows: list[dict[str, object]] = []
    try:
        for row in measured:
            rows.append(row)
            _show_row(name, row, as_json)
    except BaseException:
        if out is not None and rows:  # what was measured before the error
            _write(out, {f"{name}.jsonl": _lines(rows)})
        raise
    files = {f"{name}.jsonl": _lines(rows)}
    reports = _code(name).REPORTS
    if name in reports:
        report = reports[name](rows)
        files |= report.files
        if not as_json:
            echo(report.text, nl=False)
    if out is not None:
        _write(out, files)


def _show_row(name: str, row: dict[str, Any], as_json: bool) -> None:
    if as_json:
        echo(json.dumps(row, ensure_ascii=False))
    elif name not in _code(name).REPORTS:
        echo("\t".join(f"{k} {v}" for k, v in row.items()))
    elif "scheme" in row:
        progress(f"{name}: {row['task']}, {row['scheme']}")
    elif "training" in row:
        progress(f"{name}: {row['network']}, {row['training']}: gap {row['gap']['mean']} nats a token")
    elif "entrant" in row:
        progress(f"{name}: {row['entrant']}, {row['seconds']:.0f} s: {row['scores']}")
    elif "start" in row:
        progress(f"{name}: {row['task']}, {row['start']}, seed {row['seed']}: {row['metric']} {row['score']}")


def _lines(rows: list[dict[str, object]]) -> str:
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)


def _write(folder: Path, files: dict[str, str]) -> None:
    from atento.storage.atomic_files import write_output

    for name, text in files.items():
        write_output(folder / name, text)
