"""`training.compile`: the same training within rounding, and few variants whatever the lengths."""

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

import atento
from atento.attention.dropout import Randomness, add_dropout, dropout_mask
from atento.base.errors import RecipeError, UsageError
from failing import fails
from runs import events

NETWORK = {"d_model": 32, "d_ff": 64, "n_heads": 2, "n_layers": 2, "dropout": 0.1, "attention": {"dropout": 0.1}}
DATA = {"train": {"world": "train", "count": 300}, "valid": {"world": "valid", "count": 6}, "max_len": 48}
TRAINING = {"steps": 6, "batch_tokens": 600, "warmup": 2, "learning_rate": 1e-2, "precision": "float32"}
TRAINING |= {"validate_every": 6, "checkpoint_every": 6, "log_every": 1}


def train(task: str, folder: Path, **changes: Any) -> Path:
    recipe = {"task": task, "data": DATA, "network": NETWORK, "training": TRAINING, "metrics": []}
    recipe |= {"tokenizer": {"kind": "word", "vocab_size": 400}}
    return atento.train(recipe, changes, out=folder, threads=1).folder


@pytest.mark.slow
@pytest.mark.parametrize("task", ["language-modeling", "masked-language-modeling", "translation"])
def test_compiled_training_has_the_losses_of_training(task: str, tmp_path: Path) -> None:
    if not any(shutil.which(name) for name in ("g++", "clang++", "c++")):
        pytest.skip("no C++ compiler")
    counters = torch._dynamo.utils.counters
    torch._dynamo.reset()
    counters.clear()
    plain = train(task, tmp_path / "plain")
    compiled = train(task, tmp_path / "compiled", **{"training.compile": True})
    losses = [[event["loss"] for event in events(run, "train")] for run in (compiled, plain)]
    assert losses[0][0] == pytest.approx(losses[1][0], rel=1e-6)  # other masks of dropout would change it by a percent
    # Adam divides gradients that are nearly 0, such as those of key biases, by their size, and so enlarges rounding
    assert losses[0] == pytest.approx(losses[1], rel=5e-4)
    valid = [events(run, "valid")[0]["nll"] for run in (compiled, plain)]
    assert valid[0] == pytest.approx(valid[1], rel=1e-3)
    assert not counters["graph_break"], counters["graph_break"]
    assert counters["stats"]["unique_graphs"] <= 8


def test_compiled_code_draws_the_same_dropout() -> None:
    """Keys as tensors are the keys as numbers, and so are the masks."""
    plain, x = Randomness(7, step=3, slot=2, use=5), torch.ones(3, 5, 8)
    traced = plain.as_tensor(x.device)
    for _ in range(4):
        number, tensor = plain.key(), traced.key()
        assert isinstance(tensor, torch.Tensor) and int(tensor) == number
        assert torch.equal(dropout_mask(x.shape, 0.3, number, x), dropout_mask(x.shape, 0.3, tensor, x))
    expected = add_dropout(x, x, 0.5, Randomness(7, step=3, slot=2, use=9))
    assert torch.equal(add_dropout(x, x, 0.5, traced), expected)


def test_what_cannot_be_compiled_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compile = {"training.compile": True}
    other = compile | {"network.architecture": "recurrent-lm"}
    said = "`training.compile` needs a Transformer: got architecture 'recurrent-lm'"
    fails(RecipeError, said, train, "language-modeling", tmp_path / "a", **other)
    monkeypatch.setenv("CXX", "no-such-compiler")
    said = r"needs a C\+\+ compiler: there is no no-such-compiler on this machine"
    fails(UsageError, said, train, "language-modeling", tmp_path / "b", **compile)
