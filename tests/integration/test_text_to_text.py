"""Text to text (F9): one model learns three tasks, and the prefix of a text says which is wanted."""

import json
from pathlib import Path
from typing import Any

import pytest

import atento
from atento.base.errors import CapabilityError, RecipeError
from atento.config.reading.loading import load_recipe
from atento.config.tables.tasks import TASKS
from atento.data.records.reader import read_records
from atento.runs.prepare import read_data
from atento.runs.train import TrainedRun
from conftest import ForkServer
from failing import fails
from runs import events

LETTERS = "abcdef"
TASK = "text-to-text"


def pairs(name: str) -> list[tuple[str, str]]:
    """Words of three letters: repeated, reversed, or their last letter."""
    words = [f"{a} {b} {c}" for a in LETTERS for b in LETTERS for c in LETTERS]
    what = {"copy": lambda word: word, "reverse": lambda word: word[::-1], "last": lambda word: word[-1]}[name]
    return [(word, what(word)) for word in words]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> TrainedRun:
    here = tmp_path_factory.mktemp("tasks")
    sources = []
    for name in ("copy", "reverse", "last"):
        lines = "".join(f"{source}\t{target}\n" for source, target in pairs(name))
        (here / f"{name}.tsv").write_text(lines, encoding="utf-8")
        sources.append({"file": f"{name}.tsv", "source": 0, "target": 1, "prefix": f"{name}: "})
    recipe: dict[str, Any] = {
        "task": TASK,
        "data": {"train": sources, "valid": sources},
        "tokenizer": {"kind": "word", "vocab_size": 60},
        "network": {"d_model": 48, "d_ff": 96, "n_heads": 4, "n_layers": 1, "dropout": 0.0},
        "training": {"batch_tokens": 256, "precision": "float32", "learning_rate": 5e-3, "label_smoothing": 0.0}
        | {"warmup": 20, **dict.fromkeys(("steps", "validate_every", "checkpoint_every"), 160)},
    }
    recipe["network"]["preset"] = "transformer-tiny"
    (here / "recipe.json").write_text(json.dumps(recipe), encoding="utf-8")
    return atento.train(here / "recipe.json", out=here / "run", threads=1)


def test_f9_the_prefix_picks_the_task(run: TrainedRun, server: ForkServer) -> None:
    model = atento.load(run.folder)
    texts = ["copy: a b c", "reverse: a b c", "last: a b c"]
    assert model.generate(texts) == ["a b c", "c b a", "c"]
    done = server.run("generate", "run", cwd=run.folder.parent, stdin="".join(f"{text}\n" for text in texts))
    assert done.stdout.splitlines() == ["a b c", "c b a", "c"]
    assert model.translate("reverse: d e f") == "f e d"  # the verb does not matter, the prefix does
    assert "".join(model.stream("last: d e f")) == "f"
    assert atento.evaluate(model, [("copy: f e d", "f e d"), ("last: f e d", "d")])["exact-match"].value == 100


def test_f9_each_prefix_has_its_own_scores(run: TrainedRun, server: ForkServer) -> None:
    (valid,) = events(run.folder, "valid")
    parts = [valid[f"exact-match[{name}:]"] for name in ("copy", "reverse", "last")]
    assert valid["exact-match"] == pytest.approx(sum(parts) / 3)  # as many records each
    model = atento.load(run.folder)
    data = [("copy: f e d", "f e d"), ("copy: a b c", "wrong"), ("last: f e d", "d")]
    scores = atento.evaluate(model, data, metrics="exact-match")
    values = {name: score.value for name, score in scores.items()}
    assert values == pytest.approx({"exact-match": 200 / 3, "exact-match[copy:]": 50, "exact-match[last:]": 100})
    assert list(atento.evaluate(model, data[:2], metrics="exact-match")) == ["exact-match"]  # one prefix alone
    here = run.folder.parent
    (here / "some.tsv").write_text("".join(f"{a}\t{b}\n" for a, b in data), encoding="utf-8")
    lines = server.run("evaluate", "run", "some.tsv", "--metrics", "exact-match", cwd=here).stdout.splitlines()
    assert len(lines) == 3 and lines[1].startswith("copy: ") and lines[2].startswith("last: ")


def test_f9_a_prefix_stands_before_each_source(tmp_path: Path) -> None:
    (tmp_path / "copy.tsv").write_text("a\tb\n", encoding="utf-8")
    source = {"file": str(tmp_path / "copy.tsv"), "source": 0, "target": 1}
    prints = []
    for prefix in ("", "copy: "):
        loaded = load_recipe({"task": TASK, "data": {"train": {**source, "prefix": prefix}}})
        data = read_data(loaded.recipe, loaded.folder, print)
        assert data.train["source"] == [f"{prefix}a"] and data.train["target"] == ["b"]
        prints.append(data.train.fingerprint)
    assert prints[0] != prints[1]  # a resumed run tells them apart
    world = {"world": "train", "count": 3, "prefix": "pt: "}
    loaded = load_recipe({"task": "language-modeling", "data": {"train": world}})
    assert all(text.startswith("pt: ") for text in read_data(loaded.recipe, loaded.folder, print).train["text"])
    tags = {"file": "tags.conll", "prefix": "x"}
    (tmp_path / "tags.conll").write_text("a O\n", encoding="utf-8")
    (config,) = load_recipe({"task": "tagging", "data": {"train": tags}}).recipe.data.train
    said = "`prefix` is for data with `source` or `text`: got tokens and tags"
    fails(RecipeError, said, read_records, config, TASKS["tagging"].fields, tmp_path)


def test_a_translator_does_not_generate(trained: Path) -> None:
    fails(CapabilityError, "cannot continue a text", atento.load(trained).generate, "a")
