"""Gain of transfer: each task of the micro-world with few examples, from random weights and from a pretrained BERT."""

import json
import math
from collections.abc import Iterator, Sequence
from contextlib import redirect_stderr
from io import StringIO
from pathlib import Path
from tempfile import TemporaryDirectory

from atento.base.errors import UsageError
from atento.config.reading.loading import load_recipe
from atento.config.tables.formats import LABELLINGS
from atento.config.tables.tasks import TASKS
from atento.runs.train import train
from atento_lab.studies.report import Report
from atento_lab.studies.seeds import Row
from atento_world import labelled

PRETRAINING = "micro-world-mlm"
EXAMPLES = 100
STARTS = ("scratch", "pretrained")
_SEEDS = (1, 2, 3)
_STEPS = 200
_PRETRAINING_STEPS = 1000
_SIZES = ("d_model", "d_ff", "n_heads", "n_layers", "max_len", "norm")


def measure_transfer(
    seconds: float, *, model: str | None = None, quick: bool = False, labels: Sequence[str] = tuple(LABELLINGS)
) -> Iterator[dict[str, object]]:
    """Yield a row for each task, start and seed, and at the end a row for each task with the difference.

    Both starts have the same network, tokenizer, examples, updates and rates; held-out combinations are scored.

    Args:
        seconds: 30 gives the usual number of updates, 60 twice as many.
        model: the run of a masked language model; None trains `micro-world-mlm`.
        quick: few updates and one seed, to try the command; its scores say nothing.
        labels: the tasks, by their labels.

    Raises:
        UsageError: `model` is no run of a masked language model.
    """
    steps = max(2, round((_STEPS if not quick else 10) * seconds / 30))
    with TemporaryDirectory(prefix="atento-transfer-") as name:
        folder = Path(name)
        if model is None:
            pretraining = max(2, round((_PRETRAINING_STEPS if not quick else 10) * seconds / 30))
            counts = ["data.train.0.count=300"] if quick else []
            _train(PRETRAINING, [f"training.steps={pretraining}", "~data.valid", "~data.test", *counts], folder / "mlm")
            model = str(folder / "mlm")
        sizes = _sizes(model)
        rows: list[dict[str, object]] = []
        for label in labels:
            for start in STARTS:
                for seed in _SEEDS[:1] if quick else _SEEDS:
                    given = [f"init={json.dumps(str(Path(model).resolve()))}"] if start == "pretrained" else sizes
                    rows.append(_row(label, start, seed, steps, given, folder, 30 if quick else 300))
                    yield rows[-1]
        yield from _differences(rows)


def _sizes(model: str) -> list[str]:
    """Return the keys that give a network from random weights the sizes and the tokenizer of a model."""
    recipe = load_recipe(model, environment={}).recipe if Path(model).is_dir() else None
    if recipe is None or TASKS[recipe.task].objective != "masked":
        got = "no run folder" if recipe is None else f"a run of task {recipe.task}"
        raise UsageError(f"transfer starts from the run folder of a masked language model: {model!r} is {got}")
    tokenizer = Path(model).resolve() / "tokenizer"
    sizes = [f"network.{size}={getattr(recipe.network, size)}" for size in _SIZES]
    return [*sizes, f"tokenizer.path={json.dumps(str(tokenizer))}"]


def _row(
    label: str, start: str, seed: int, steps: int, given: list[str], folder: Path, tested: int
) -> dict[str, object]:
    """Train a task once and return its score."""
    overrides = [
        f"data.train.0.count={EXAMPLES}",
        f"data.train.0.seed={_seed_with_all_labels(label, seed, tested)}",
        f"data.test.0.count={tested}",
        "data.max_len=64",
        "~data.valid",
        f"training.steps={steps}",
        f"training.warmup={steps // 10}",
        f"training.checkpoint_every={steps}",
        f"training.seed={seed}",
        "training.learning_rate=5e-4",
        *given,
    ]
    scores = _train(f"micro-world-{label}", overrides, folder / f"{label}-{start}-{seed}")
    metric, score = next((name, value) for name, value in scores.items() if name not in ("loss", "nll"))
    return {
        "bench": "transfer",
        "task": label,
        "start": start,
        "seed": seed,
        "examples": EXAMPLES,
        "steps": steps,
        "metric": metric,
        "score": round(score, 4),
    }


def _seed_with_all_labels(label: str, seed: int, tested: int) -> int:
    """Return the first of seed, seed + 100 ... whose training examples have every label or tag of the test examples."""

    def names(split: str, count: int, seed: int) -> set[str]:
        examples = labelled(label, split, count, seed)
        return {name for example in examples for name in example.get("tags", [example.get("label", "")])}

    needed = names("combinations", tested, 1)
    while not needed <= names("train", EXAMPLES, seed):
        seed += 100
    return seed


def _train(recipe: str, overrides: list[str], out: Path) -> dict[str, float]:
    """Train a shipped recipe without its progress, and return its test scores."""
    with redirect_stderr(StringIO()):
        return train(recipe, overrides, out=out).test or {}


def _differences(rows: Sequence[Row]) -> Iterator[dict[str, object]]:
    """Yield for each task the mean scores of both starts, and their difference with its standard error over seeds."""
    for label in dict.fromkeys(row["task"] for row in rows):
        of_task = [row for row in rows if row["task"] == label]
        scratch, pretrained = ([row["score"] for row in of_task if row["start"] == start] for start in STARTS)
        gains = [after - before for before, after in zip(scratch, pretrained, strict=True)]
        mean = sum(gains) / len(gains)
        error = math.sqrt(sum((gain - mean) ** 2 for gain in gains) / (len(gains) - 1) / len(gains)) if gains[1:] else 0
        yield {
            "bench": "transfer",
            "task": label,
            "metric": of_task[0]["metric"],
            "scratch": round(sum(scratch) / len(scratch), 4),
            "pretrained": round(sum(pretrained) / len(pretrained), 4),
            "difference": round(mean, 4),
            "standard_error": round(error, 4),
            "seeds": len(gains),
        }


def report_transfer(rows: Sequence[dict[str, object]]) -> Report:
    """Return the table of scores by task, from random weights and from the pretrained model."""
    lines = ["| task | metric | from scratch | pretrained | difference |", "| --- | --- | --- | --- | --- |"]
    for row in rows:
        if "difference" in row:
            digits = 1 if row["metric"] == "squad" else 3  # scores of 100
            lines.append(
                f"| {row['task']} | {row['metric']} | {row['scratch']:.{digits}f} | {row['pretrained']:.{digits}f} "
                f"| {row['difference']:+.{digits}f} ± {row['standard_error']:.{digits}f} |"
            )
    trained = next((row for row in rows if "steps" in row), None)
    about = ""
    if trained is not None:
        seeds = len({row["seed"] for row in rows if "seed" in row})
        about = (
            f"\n({trained['examples']} examples, {trained['steps']} updates, mean of {seeds} "
            f"{'seed' if seeds == 1 else 'seeds'} ± standard error; held-out combinations)\n"
        )
    text = "\n".join(lines) + "\n" + about
    return Report(text, {"transfer.md": text})
