"""The examples that one reads first: they run, and compute what the stack computes."""

import re
import runpy
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import atento_world
from atento.config import presets
from atento.networks import build_network
from atento_world import write

FILE = Path(__file__).parents[2] / "examples" / "one_file_transformer.py"


def test_the_transformer_in_one_file_has_the_numbers_of_the_stack() -> None:
    """Equal parameters by equal names: logits, the loss's gradients and greedy outputs."""
    torch.manual_seed(3)
    names = runpy.run_path(str(FILE))
    config = presets.transformer_tiny(vocab_size=23, d_model=16, d_ff=32, dropout=0.0)
    stack: Any = build_network(config).eval()
    one = names["Transformer"](23, 16, 32, 4, 2, 0.0).eval()
    one.load_state_dict(stack.state_dict())
    source = names["padded"]([[5, 6, 7, 3], [8, 9, 10, 11, 12, 3]])
    shifted = torch.tensor([[2, 13, 14, 15], [2, 16, 17, 18]])
    theirs = stack(source, shifted, source_token_mask=source != 0).logits
    ours = one(source, shifted)
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)
    for logits in (ours, theirs):
        logits.square().sum().backward()
    right = dict(stack.named_parameters())
    for name, parameter in one.named_parameters():
        torch.testing.assert_close(parameter.grad, right[name].grad, rtol=1e-4, atol=1e-4, msg=name)


def test_the_one_file_learns_and_translates(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its whole program, on a twentieth of its sentences."""
    monkeypatch.setattr(atento_world, "write", lambda split, count: write(split, count // 20))
    monkeypatch.setattr(sys, "argv", [str(FILE), "--steps", "15"])
    runpy.run_path(str(FILE), run_name="__main__")
    printed = capsys.readouterr().out
    first, last = map(float, re.findall(r"loss ([\d.]+)", printed))
    assert last < first - 0.3, printed
    assert len(re.findall(r"^  \w+", printed, flags=re.M)) == 5
