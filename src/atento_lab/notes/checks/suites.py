"""Checks of a search for hyper-parameters, of summaries and of GLUE's table (docs/notes.md#f11, #g7, #g9)."""

import io
import itertools
import json
import math
import warnings
from contextlib import redirect_stderr
from fractions import Fraction
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from atento.config.tables.tasks import task_with
from atento.metrics import rouge
from atento.training.metrics_log import read_journal
from atento_cli.search.result import Trial
from atento_cli.search.run_search import search
from atento_cli.search.search_strategies import rungs_of, trials_of
from atento_cli.search.space import read_space
from atento_cli.suites.scores import Result, SuiteResult, TaskResult
from atento_cli.suites.suite_table import suite_named
from atento_lab.notes.checks.transfer_learning import trained_model
from atento_lab.notes.finding import AtMost, Finding, compare

_RATES, _WIDTHS = [1e-4, 1e-2], [8, 16]
_LOW, _HIGH = 1e-5, 1e-1


def hyper_parameters() -> Finding:
    """F11: grids have every combination; random rates are uniform in the logarithm; successive halving keeps a third
    of the trials for three times the steps; the lowest validation loss wins.
    """
    choices = {"training.learning_rate": _RATES, "network.d_model": _WIDTHS}
    grid = trials_of("grid", read_space(choices), None, seed=1)
    dimensions = read_space({"training.learning_rate": {"low": _LOW, "high": _HIGH, "log": True}})
    drawn = [float(values["training.learning_rate"].value) for values in trials_of("random", dimensions, 400, seed=1)]
    ranks = np.sort((np.log(drawn) - math.log(_LOW)) / math.log(_HIGH / _LOW))
    away = float(np.abs(ranks - (np.arange(400) + 0.5) / 400).max())  # Kolmogorov's distance, about
    with TemporaryDirectory() as name, redirect_stderr(io.StringIO()):
        folder = Path(name)
        lines = [json.dumps({"text": f"um gato e {word} gatos"}) + "\n" for word in ("dois", "três", "cinco")]
        (folder / "texts.jsonl").write_text("".join(lines * 8), encoding="utf-8", newline="\n")
        source = {"file": str(folder / "texts.jsonl"), "text": "text"}
        recipe: dict[str, object] = {
            "task": task_with("generate"),
            "data": {"train": source, "valid": source},
            "tokenizer": {"kind": "word", "vocab_size": 40},
            "network": {"n_layers": 1, "d_model": 8, "d_ff": 16, "n_heads": 2},
            "training": {"steps": 12, "batch_tokens": 60, "warmup": 0, "validate_every": 12, "precision": "float32"},
        }
        found = search(recipe, choices, strategy="grid", out=folder / "search", device="cpu", threads=1)
        losses = [_last_loss(folder / "search" / trial.name) for trial in found.trials]
        best = found.trials[int(np.argmin(losses))]
    return compare(
        {
            "grid": [[node.value for node in values.values()] for values in grid],
            "rungs": [[rung.n_trials, str(rung.share)] for rung in rungs_of("halving", 27, 3)],
            "random rates, away from uniform": away,
            "best trial": None if found.best is None else _of(found.best),
        },
        {
            "grid": [list(pair) for pair in itertools.product(_RATES, _WIDTHS)],
            "rungs": [[27 // 3**k, str(Fraction(1, 3 ** (3 - k)))] for k in range(4)],
            "random rates, away from uniform": AtMost(1.63 / 20),  # of 400 draws, passed by 1 of 100 (Kolmogorov)
            "best trial": _of(best),
        },
        drawing="\n".join(f"{_of(trial)}  loss {loss:.3f}" for trial, loss in zip(found.trials, losses)),
    )


def _of(trial: Trial) -> str:
    return f"rate {trial.values['training.learning_rate']}, width {trial.values['network.d_model']}"


def _last_loss(run: Path) -> float:
    return float([record for record in read_journal(run / "metrics.jsonl") if record["event"] == "valid"][-1]["nll"])


def summaries() -> Finding:
    """G7: by ROUGE; relative positions also read a text longer than all of the training."""
    filler = ["ontem", "choveu", "muito", "na", "cidade"]
    animals, verbs = ("gato", "cão", "pato", "lobo"), ("dorme", "pula", "come")
    records = [
        {"source": f"o {animal} {verb} {' '.join(filler * (number % 5))}", "target": f"{animal} {verb}"}
        for number, (animal, verb) in enumerate(itertools.product(animals, verbs))
    ]
    sizes = {"n_layers": 1, "d_model": 32, "d_ff": 64, "n_heads": 2, "dropout": 0.0}
    training = {"steps": 250, "batch_tokens": 60, "learning_rate": 5e-3, "warmup": 20, "precision": "float32"}
    model = trained_model(
        task_with("summarize"),
        records,
        network={"preset": "t5-small", "attention": {"d_head": 16}, **sizes},
        training=training | {"label_smoothing": 0.0},
    )
    written = model.summarize([record["source"] for record in records])
    long = records[5]["source"] + " " + " ".join(filler * 8)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it is longer than those of training
        of_long = model.summarize(long)
    score = rouge(written, [record["target"] for record in records])
    return compare(
        {
            "summaries": written[:3],
            "ROUGE-1, ROUGE-2, ROUGE-L": [round(score.parts[f"rouge{n}_f"], 6) for n in "12L"],
            "of a text of 63 words": of_long,
        },
        {
            "summaries": [record["target"] for record in records[:3]],
            "ROUGE-1, ROUGE-2, ROUGE-L": [100.0, 100.0, 100.0],
            "of a text of 63 words": records[5]["target"],
        },
    )


_GLUE = {  # Wang et al. 2019, table 1
    "CoLA": ["Matthews"],
    "SST-2": ["accuracy"],
    "MRPC": ["accuracy", "F1"],
    "STS-B": ["Pearson", "Spearman"],
    "QQP": ["accuracy", "F1"],
    "MNLI": ["accuracy"],
    "QNLI": ["accuracy"],
    "RTE": ["accuracy"],
    "WNLI": ["accuracy"],
}


def glue_table() -> Finding:
    """G9: nine tasks with the paper's scores; a task's two scores, or MNLI's two parts, count with their mean."""
    suite, made, means = suite_named("glue"), [], []
    for number, row in enumerate(suite.rows):
        parts = [part for part in row.scored if part.valid]
        pairs = [(part, measure) for part in parts for measure in row.measures]
        values = [50.0 + 4 * number + at for at in range(len(pairs))]  # any that differ
        results = tuple(
            Result(part.name, measure.label, value, (value, value), {1: value}, 10)
            for (part, measure), value in zip(pairs, values)
        )
        made.append(TaskResult(row, "dev", results, {1: None}, {1: Path()}))
        means.append(sum(values) / len(values))
    total = SuiteResult(suite, Path(), (1,), tuple(made), {}, ())
    return compare(
        {
            "scores": {row.name: [measure.label for measure in row.measures] for row in suite.rows},
            "parts of MNLI": [part.name for part in suite.rows[5].scored],
            "average": total.average,
            "without WNLI": total.average_without,
        },
        {
            "scores": _GLUE,
            "parts of MNLI": ["MNLI-m", "MNLI-mm", "AX"],
            "average": sum(means) / 9,
            "without WNLI": sum(means[:8]) / 8,  # the last row
        },
    )
