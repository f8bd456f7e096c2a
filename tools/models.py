"""Train the models that come with the package again, and write what they do into their table and docs/micro-world.md.

    python tools/models.py [NAME ...] [--runs FOLDER]     `make models`: all of them, 15 minutes on two quiet cores
    python tools/models.py --written [NAME ...]           the same weights in files, and with cards, of this version

Each model is its recipe of the same name with the keys of `MODELS` changed, saved in bfloat16. A finished run in
FOLDER is not trained again. On one machine the files come out the same, bit by bit.
"""

import argparse
import json
import shutil
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import atento
from atento.config.reading.loading import load_recipe
from atento.config.tables.tasks import TASKS, scored
from atento.model import Model
from atento.networks import parameter_count
from atento_world import write

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "src" / "atento_world" / "models"
TABLE, PAGE = FOLDER / "models.json", ROOT / "docs" / "micro-world.md"
HEAD = "| model | task | parameters | bytes | held-out combinations |\n"  # by which the page's table is found
THREADS = 2  # the same number gives the same bits
_SMALL = {"network.d_model": 64, "network.d_ff": 128, "tokenizer.vocab_size": 1000}
_WIDE = {"network.d_model": 96, "network.d_ff": 192, "tokenizer.vocab_size": 1000}
MODELS: dict[str, dict[str, Any]] = {  # name of model and recipe -> the keys of the recipe that are others here
    "micro-world-en-pt": {"network.d_model": 112, "network.d_ff": 256}
    | {"data.train.0.count": 150000, "tokenizer.vocab_size": 1800, "training.steps": 2400}
    | {"training.optimizer": "muon", "training.learning_rate": 4e-3, "training.weight_decay": 0.1},
    "micro-world-lm": {"network.d_model": 96, "network.d_ff": 192, "tokenizer.vocab_size": 1500},
    "micro-world-mlm": {"network.d_model": 96, "network.d_ff": 192}
    | {"data.train.0.count": 60000, "tokenizer.vocab_size": 1500, "training.steps": 2000},
    "micro-world-tense": _SMALL | {"data.train.0.count": 20000, "training.steps": 3000},
    "micro-world-entailment": _WIDE
    | {"data.train.0.count": 60000, "training.steps": 4000, "training.batch_tokens": 64},
    "micro-world-entities": _SMALL | {"training.steps": 900},
    "micro-world-answers": _WIDE | {"data.train.0.count": 40000, "training.steps": 4000},
}
CARD = """---
license: apache-2.0
language: [{languages}]
library_name: atento
---

# {name}

A small model that comes with Atento: it works at once, with nothing to train or fetch. It learned from sentences that a
grammar writes, the micro-world; no text of others was used. It knows the words of that grammar alone, and is for
lessons, tests and first steps, not for real text.

It was trained by the recipe of the same name with {changes}.

Measured on {measured}: {scores}.
"""


def measured(model: Model, name: str) -> dict[str, float]:
    """The scores of a model on the test split of its recipe: those of its task, or the perplexity of its texts."""
    recipe = load_recipe(name, environment={}).recipe
    (source,) = recipe.data.test
    if recipe.task in scored():
        found = atento.evaluate(model, source, recipe.task)
        return {metric: round(score.value, 3) for metric, score in found.items()}
    score = model.perplexity([pair.target for pair in write(str(source.world), int(source.count or 0))])
    return {score.name: round(score.value, 3)}


def train(name: str, runs: Path) -> dict[str, Any]:
    """Train a model, write its folder, and return its row of the table."""
    began = time.monotonic()
    run = atento.train(name, MODELS[name], out=runs / name, device="cpu", threads=THREADS)
    seconds = time.monotonic() - began
    with TemporaryDirectory() as place:
        saved = atento.load(run.folder, device="cpu").save(Path(place) / name, precision="bfloat16")
        model = atento.load(saved, device="cpu")
        scores = measured(model, name)
        model.path = Path(place)  # whose card `save` keeps
        (model.path / "README.md").write_text(card_of(name, scores), encoding="utf-8")
        shutil.rmtree(FOLDER / name, ignore_errors=True)
        model.save(FOLDER / name)
    size = sum(file.stat().st_size for file in (FOLDER / name).iterdir())
    row = {"task": run.task, "parameters": parameter_count(model.network), "bytes": size, "scores": scores}
    print(f"{name}: trained in {seconds:.0f} s, {row}", flush=True)
    return row


def written(name: str, row: dict[str, Any]) -> dict[str, Any]:
    """Write the folder of a model again with this version, and return its row of the table."""
    weights = (FOLDER / name / "model.safetensors").read_bytes()
    with TemporaryDirectory() as place:
        saved = atento.load(FOLDER / name, device="cpu").save(Path(place) / name, precision="bfloat16")
        if (saved / "model.safetensors").read_bytes() != weights:
            raise SystemExit(f"{name}: the weights would be others")
        for file in saved.iterdir():
            shutil.copy(file, FOLDER / name / file.name)
    return row | {"bytes": sum(file.stat().st_size for file in (FOLDER / name).iterdir())}


def card_of(name: str, scores: dict[str, float]) -> str:
    """The text of a model's card before what `save` adds."""
    recipe = load_recipe(name, environment={}).recipe
    (source,) = recipe.data.test
    return CARD.format(
        name=name,
        languages="en, pt" if TASKS[recipe.task].records == "pairs" else "pt",
        changes=", ".join(f"`{key}={value}`" for key, value in MODELS[name].items()),
        measured=f"{source.count} examples with {source.world} of words that the training data never have together",
        scores=said(scores),
    )


def said(scores: dict[str, float]) -> str:
    """Scores in words."""
    return ", ".join(f"{metric} {value:.3g}" for metric, value in scores.items())


def section(table: dict[str, Any]) -> str:
    """The table of docs/micro-world.md."""
    rows = [
        f"| `{name}` | {row['task']} | {row['parameters']:,} | {row['bytes']:,} | {said(row['scores'])} |"
        for name, row in table.items()
    ]
    return HEAD + "\n".join(["| --- |" + " --- |" * 4, *rows, ""])


def main() -> None:
    """Train what was named, or all, and write the table after each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", choices=[*MODELS, []], metavar="NAME")
    parser.add_argument("--runs", type=Path, default=ROOT / "runs" / "models")
    parser.add_argument("--written", action="store_true", help="train nothing: write the files again")
    given = parser.parse_args()
    given.runs.mkdir(parents=True, exist_ok=True)
    FOLDER.mkdir(exist_ok=True)
    table = json.loads(TABLE.read_text(encoding="utf-8")) if TABLE.exists() else {}
    for name in given.names or MODELS:
        table[name] = written(name, table[name]) if given.written else train(name, given.runs)
        table = {known: table[known] for known in MODELS if known in table}
        TABLE.write_text(json.dumps(table, indent=2) + "\n", encoding="utf-8")
        before, _, rest = PAGE.read_text(encoding="utf-8").partition(HEAD)
        PAGE.write_text(before + section(table) + "\n" + rest.partition("\n\n")[2], encoding="utf-8")


if __name__ == "__main__":
    main()
