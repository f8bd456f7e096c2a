"""The examples that one reads first: they run, and compute what the stack computes."""

import re
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch

from atento.config import presets
from atento.networks import build_network

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


def test_the_transformer_in_one_file_learns_and_translates() -> None:
    done = subprocess.run(
        [sys.executable, str(FILE), "--steps", "15"], capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == 0, done.stderr
    first, last = map(float, re.findall(r"loss ([\d.]+)", done.stdout))
    assert last < first - 0.3, done.stdout
    assert len(re.findall(r"^  \w+", done.stdout, flags=re.M)) == 5
