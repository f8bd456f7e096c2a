"""Make models of real text again: gather, clean, train, release. What is there stays, so that it goes on where it was.

    python -m models.make [NAME ...] --data DATASETS [--work FOLDER]     `make models MODELS=NAME DATASETS=FOLDER`

Needs the registries of apt, pip and npm for the pairs, and for the translators `apertium` and `apertium-es-pt`.
"""

import argparse
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from models.release import ABOUT

HERE = Path(__file__).parent
FOLDER = HERE.parent / "src" / "atento_models" / "models"
TRANSLATORS = ("both-directions", "atento-en-pt", "atento-pt-en")  # the first is the teacher of the others
ENCODER = "atento-pt-encoder"  # which the taggers begin with
MADE = tuple(ABOUT)


def commands(names: Sequence[str], data: Path, work: Path) -> Iterator[tuple[Path, list[str | Path]]]:
    """The commands that make models, in order, each with what it writes; a folder is gone on with."""
    pairs, labels, runs = work / "pairs", work / "labels", work / "runs"
    python: list[str | Path] = [sys.executable, "-m"]
    if set(names) - {"atento-pt-lm"}:
        yield pairs / "train.tsv", [*python, "models.pairs", "--out", pairs, "--data", data]
    if set(names) & {*TRANSLATORS}:
        yield pairs / "spanish.tsv", [*python, "models.pivot", "--data", data, "--out", pairs / "spanish.tsv"]
        yield pairs / "world.tsv", [*python, "models.prepare", pairs]
    if set(names) - {*TRANSLATORS}:
        known: list[str | Path] = ["--pairs", pairs] if set(names) - {"atento-pt-lm"} else []
        yield labels / "stories-train.txt", [*python, "models.labels", "--out", labels, "--data", data, *known]
    for name in names:
        folder = pairs if name in TRANSLATORS else labels
        begun: list[str | Path] = []
        if name in ("atento-pt-entities", "atento-pt-tags"):
            begun = [f"init={runs / ENCODER}"]
            yield runs / ENCODER, _training(ENCODER, folder, runs)
        yield runs / name, [*_training(name, folder, runs), *begun]
        out = (HERE if name == "both-directions" else FOLDER) / name
        yield out, [*python, "models.release", runs / name, folder, "--out", out]


def _training(name: str, folder: Path, runs: Path) -> list[str | Path]:
    recipe = HERE / f"{name}.yaml"
    return [sys.executable, "-m", "atento", "train", recipe, f"data.folder={folder}", "--out", runs / name]


def main(arguments: Sequence[str] | None = None) -> None:
    """Read the command line and make the models."""
    parser = argparse.ArgumentParser(prog="python -m models.make", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("names", nargs="*", choices=[*MADE, []], metavar="NAME", help="default: all of them")
    parser.add_argument(
        "--data", type=Path, required=True, metavar="DATASETS", help="the data sets of models/README.md"
    )
    parser.add_argument("--work", type=Path, default=HERE.parent / "runs" / "models")
    values = parser.parse_args(arguments)
    for written, command in commands(values.names or MADE, values.data, values.work):
        if written.is_file():
            continue
        sys.stdout.write(f"{written}: {' '.join(map(str, command[2:]))}\n")
        sys.stdout.flush()
        subprocess.run(command, check=True, cwd=HERE.parent)


if __name__ == "__main__":
    main()
