"""The ladder of long documents: readers from truncation to a hybrid, trained on the same documents for the same time.

A ladder is a YAML file (`recipes/ladders/micro-world.yaml`); each rung is a recipe that changes the common one.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import redirect_stderr
from importlib.resources import files
from io import StringIO
from pathlib import Path
from tempfile import TemporaryDirectory
from warnings import catch_warnings, simplefilter

import numpy as np

from atento.base.errors import RecipeError
from atento.config.reading.loading import load_recipe
from atento.config.tables.tasks import TASKS
from atento.data.records.memory import MemoryRecords
from atento.metrics import accuracy
from atento.model import load
from atento.networks import parameter_count
from atento.runs.prepare import read_data
from atento.runs.train import train
from atento_lab.studies.race import common_recipe, joined, plain, read_entrants
from atento_lab.studies.report import Report
from atento_lab.studies.seeds import Row
from atento_world import labelled

_LADDERS = files("atento.recipes") / "ladders"
_SENTENCES = 20  # of a document
_DOCUMENTS = {"train": 1000, "test": 300}
_SPLITS = {"train": "train", "test": "combinations"}  # words that the training text has, in other combinations


def documents(part: str, count: int) -> list[tuple[str, str]]:
    """`count` documents of the micro-world with a label: yes where one of the sentences, at any place, is a question.

    A word that only questions have would say it as well; what a rung has to do is to read that sentence at all.
    """
    examples = labelled("question", _SPLITS[part], 4 * count)
    asked, said = (
        [example["text"] for example in examples if example["label"] == name] for name in ("question", "statement")
    )
    draw = np.random.default_rng(1)
    made = []
    for number in range(count):
        sentences = [said[draw.integers(len(said))] for _ in range(_SENTENCES)]
        if number % 2:
            sentences[draw.integers(_SENTENCES)] = asked[draw.integers(len(asked))]
        made.append((". ".join(sentences) + ".", "yes" if number % 2 else "no"))
    return made


def read_ladder(path: str | Path | None = None) -> dict[str, dict[str, object]]:
    """Read a ladder: the recipe of each rung; None reads the shipped one on the micro-world.

    Raises:
        RecipeError, UsageError: the file is no ladder; the recipe of a rung is refused, or has no test data.
    """
    file = _LADDERS / "micro-world.yaml" if path is None else Path(path)
    content = plain(read_entrants(file, "ladder", ("base", "rungs")))
    base = common_recipe(content, Path() if path is None else Path(path).parent)
    rungs = {name: joined(base, changes or {}) for name, changes in content["rungs"].items()}
    for name, recipe in rungs.items():
        loaded = load_recipe(recipe, environment={}).recipe
        if "label" not in {field.name for field in TASKS[loaded.task].fields} or not loaded.data.test:
            raise RecipeError(f"{file.name}: a rung classifies texts and has `data.test`: see {name}")
    return rungs


def measure_ladder(
    seconds: float, *, ladder: str | Path | None = None, quick: bool = False, only: Sequence[str] = ()
) -> Iterator[dict[str, object]]:
    """Yield a row for each rung: its cost in training and in use, and the accuracy on the test documents.

    Every rung is trained for the same time; the first updates are timed, then the number of updates is fixed.

    Args:
        seconds: training time of each rung.
        ladder: a ladder file; None: the micro-world.
        quick: two updates on few documents, to try the command; its scores say nothing.
        only: names of rungs; empty: all.

    Raises:
        RecipeError, UsageError: as `read_ladder`.
    """
    rungs = read_ladder(ladder)
    memory: dict[str, MemoryRecords] = {}
    if ladder is None:
        memory = {part: documents(part, 20 if quick else count) for part, count in _DOCUMENTS.items()}
    budget: dict[str, object] = {"training.steps": 2} if quick else {"training.minutes": seconds / 60}
    with TemporaryDirectory(prefix="atento-ladder-") as name:
        for number, rung in enumerate(only or rungs):
            yield {"bench": "ladder", "rung": rung} | _row(rungs[rung], budget, memory, Path(name) / str(number))


def _row(
    recipe: Mapping[str, object], budget: dict[str, object], memory: dict[str, MemoryRecords], out: Path
) -> dict[str, object]:
    """Train a rung without its progress, score it, and say what both have cost in seconds of the processor."""
    start = time.process_time()
    with redirect_stderr(StringIO()):
        run = train(recipe, budget, data=memory or None, out=out)
    trained = time.process_time()
    model = load(run.folder)
    loaded = load_recipe(recipe, environment={}, memory=memory)
    test = read_data(loaded.recipe, loaded.folder, lambda line: None, memory).test
    assert test is not None
    before = time.process_time()
    with catch_warnings():
        simplefilter("ignore")  # of texts that are cut: this is what the rung is about
        labels = model.classify(list(test["text"]))
    used = time.process_time() - before
    score = accuracy([label.name for label in labels], list(test["label"]))
    return {
        "parameters": parameter_count(model.network),
        "updates": run.step,
        "training_seconds": round(trained - start, 1),
        "ms_a_document": round(1000 * used / len(test), 2),
        "documents": len(test),
        "accuracy": round(score.value, 4),
        "interval": [round(bound, 4) for bound in score.interval()],
    }


def report_ladder(rows: Sequence[Row]) -> Report:
    """Return the table of cost and quality as Markdown."""
    lines = [
        "| rung | parameters | updates | training, processor seconds | in use, ms a document | accuracy |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for row in rows:
        low, high = row["interval"]
        lines.append(
            f"| {row['rung']} | {row['parameters']:,} | {row['updates']:,} | {row['training_seconds']:.1f} "
            f"| {row['ms_a_document']:.2f} | {row['accuracy']:.3f} [{low:.3f}, {high:.3f}] |"
        )
    text = "\n".join(lines) + f"\n\n({rows[0]['documents']} test documents; 95 % bootstrap intervals)\n"
    return Report(text, {"ladder.md": text})
