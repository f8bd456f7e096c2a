"""`tools/compare_pretraining.py`: both sides begin with the same weights and are asked for the same tokens."""

import importlib.util
import json
from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest
import torch

from atento.tasks.split_evaluation import mean_losses
from atento_world import write

_FILE = Path(__file__).parents[2] / "tools" / "compare_pretraining.py"
_SIZES = {"tokenizer.vocab_size": 400, "network.d_model": 32, "network.d_ff": 48, "network.n_layers": 2}
_SMALL = [f"{key}={value}" for key, value in (_SIZES | {"training.warmup": 3}).items()]


@pytest.fixture(scope="module")
def tool() -> Any:
    spec = importlib.util.spec_from_file_location("compare_pretraining", _FILE)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


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
