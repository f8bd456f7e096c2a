"""`tools/compare_*.py`: both sides begin with the same weights, learn from the same records, are asked for the same."""

import json
import runpy
import sys
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from atento.base.precision import threads
from atento.tasks.split_evaluation import mean_losses
from atento_world import write
from test_fine_tuning_parity import as_tsv, labelled, tiny_bert

TOOLS = Path(__file__).parents[2] / "tools"
_SIZES = {"tokenizer.vocab_size": 400, "network.d_model": 32, "network.d_ff": 48, "network.n_layers": 2}
_SMALL = [f"{key}={value}" for key, value in (_SIZES | {"training.warmup": 3}).items()]


@pytest.fixture(scope="module")
def tool() -> Any:
    return SimpleNamespace(**runpy.run_path(str(TOOLS / "compare_pretraining.py")))


@pytest.fixture
def text(tmp_path: Path) -> Path:
    """Three sentences a line, so that a sentence has a next one."""
    sentences = [pair.target for pair in write("train", 300)]
    lines = [" ".join(sentences[at : at + 3]) for at in range(0, len(sentences), 3)]
    (tmp_path / "text.txt").write_text("\n".join(lines), encoding="utf-8")
    return tmp_path / "text.txt"


def asked(text: Path, objective: str, side: str) -> Namespace:
    changes = [*_SMALL, "data.max_len=24", *([] if objective in ("span", "elmo") else ["network.max_len=24"])]
    if objective == "elmo":
        changes += ["network.elmo.d_cell=48"]
    if objective == "span":
        changes += ["network.n_decoder_layers=2", "network.attention.d_head=8"]
    return Namespace(text=text, changes=changes, objective=objective, side=side, paragraphs=False, tokens=400, seed=1)


@pytest.mark.parametrize("objective", ["masked-next", "causal", "span", "elmo", "bert", "modern"])
def test_the_class_of_transformers_has_the_loss_that_atento_computes(tool: Any, text: Path, objective: str) -> None:
    side, valid = tool.made(asked(text, objective, "transformers"))
    batches = next(iter(valid.values()))
    side.model.eval()
    batch = batches[len(batches) // 2]
    with torch.no_grad():
        theirs = float(side.model(**tool.arguments(batch, objective == "causal")).loss)
    assert theirs == pytest.approx(sum(mean_losses(side.weights().eval(), [batch]).values()), abs=2e-5)


@pytest.mark.parametrize(
    "objective", ["masked-next", *(pytest.param(name, marks=pytest.mark.slow) for name in ("span", "elmo"))]
)
def test_both_sides_begin_alike_and_learn(tool: Any, text: Path, objective: str) -> None:
    rows = {}
    for name in ("atento", "transformers"):
        side, valid = tool.made(asked(text, objective, name))
        rows[name] = list(tool.measured(side, valid, seconds=1.0, every=1000))
        json.dumps(rows[name])
    ours, theirs = rows["atento"], rows["transformers"]
    assert ours[0]["loss"] == pytest.approx(theirs[0]["loss"], abs=2e-4)
    for first, *_, last in (ours, theirs):
        assert (first["updates"], first["seconds"]) == (0, 0.0) and last["seconds"] >= 1.0
        assert last["loss"] < first["loss"] - 0.05 and last["tokens"] / last["updates"] == pytest.approx(400, rel=0.2)
    # a slow machine takes few updates in the second, and the share of one of them alone is above that of all
    assert ours[-1]["padding"] < (0.4 if objective == "elmo" else 0.15) and theirs[-1]["padding"] < 0.5


Tune = Callable[[str, str], dict[str, Any]]


@pytest.fixture
def tune(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Tune:
    """The line that one side prints of a recipe, by this process, which has its libraries already."""
    monkeypatch.chdir(tmp_path)

    def result(recipe: str, side: str) -> dict[str, Any]:
        Path("recipe.yaml").write_text(recipe, encoding="utf-8")
        monkeypatch.setattr(sys, "argv", ["compare_finetuning.py", "recipe.yaml", "--side", side, "training.seed=3"])
        with threads(1):
            runpy.run_path(str(TOOLS / "compare_finetuning.py"), run_name="__main__")
        found: dict[str, Any] = json.loads(capsys.readouterr().out.splitlines()[-1])
        assert (found["side"], found["seed"]) == (side, 3) and found["seconds"] > 0 and found["peak_mib"] > 100
        return found

    return result


def written(folder: Path, count: int) -> list[str]:
    """`train.tsv` of so many texts with labels, and a BERT that reads them; the texts."""
    records = labelled("train", count)
    as_tsv(folder / "train.tsv", records)
    tiny_bert(folder / "bert", [text for text, _ in records])
    return [text for text, _ in records]


@pytest.mark.parametrize("side", ["atento", "transformers"])
def test_a_side_learns_what_is_easy(side: str, tune: Tune, tmp_path: Path) -> None:
    """Negated sentences: a rate that ends after the warm-up, or other labels of the test, would leave half wrong."""
    written(tmp_path, 400)
    recipe = "task: classification\ndata: {train: {file: train.tsv, text: 0, label: 1}, held_out: 40, max_len: 48}\n"
    steps = "steps: 60, batch_tokens: 16, learning_rate: 3e-3, warmup: 6, validate_every: 60, checkpoint_every: 60"
    found = tune(f"{recipe}init: bert\ntraining: {{{steps}}}\n", side)
    assert found["records"] == 40 and found["scores"]["accuracy"][0] > 0.85


def test_a_linear_classifier_on_frozen_vectors_is_that_of_both_sides(tune: Tune, tmp_path: Path) -> None:
    """Texts and words: the same features, the same classifier, so the same scores."""
    texts = written(tmp_path, 300)
    rows = ["\n".join(f"{word} {'LONG' if len(word) > 4 else 'O'}" for word in text.split()) for text in texts]
    (tmp_path / "train.conll").write_text("\n\n".join(rows) + "\n", encoding="utf-8")
    frozen = "\ninit: {model: bert, train: head, classifier: {kind: logistic}}"
    for task, file in (("classification", "file: train.tsv, text: 0, label: 1"), ("tagging", "file: train.conll")):
        recipe = f"task: {task}\ndata: {{train: {{{file}}}, held_out: 30, max_len: 48}}"
        given = recipe + frozen + "\nmetrics: [" + {"tagging": "tag-accuracy"}.get(task, "accuracy") + "]"
        ours, theirs = (tune(given, side) for side in ("atento", "transformers"))
        assert {name: ours["scores"][name] for name in theirs["scores"]} == theirs["scores"] and ours["records"] == 30
