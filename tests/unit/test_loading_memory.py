"""Loading a released folder holds the model in memory once: the peak of a process of its own beside the file."""

import json
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import pytest
import torch

from atento.model import Model
from atento.networks import build_network, presets

PROGRAM = """
import json, sys
from pathlib import Path
import atento, torch
from atento.model import load
modules, state = len(sys.modules), torch.get_rng_state()
load(sys.argv[2])  # once, small: whatever loading brings with it is there
assert torch.equal(state, torch.get_rng_state())
modules = len(sys.modules) - modules

def kibibytes(name):
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(name))
    return int(line.split()[1])

Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
before = kibibytes("VmRSS")
model = load(sys.argv[1])
parameters = sum(p.numel() for p in model.network.parameters())
print(json.dumps({"peak": kibibytes("VmHWM") - before, "parameters": parameters, "modules": modules}))
"""


def written(folder: Path, **sizes: int) -> Path:
    ids = dict.fromkeys(("pad", "bos", "eos", "unk", "start"), 0)
    config = presets.gpt2(vocab_size=20000, n_heads=8, max_len=64, ids=ids, **sizes)
    torch.manual_seed(0)
    model = Model(build_network(config), None, {"name": "x", "network": asdict(config)}, None)
    return model.save(folder, layout="huggingface")


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="needs Linux's account of memory")
def test_c16_loading_takes_a_tenth_more_than_the_file_at_most(tmp_path: Path) -> None:
    """GPT-2's layout is the hardest: its matrices are turned round on the way, and heads stand stacked."""
    small = written(tmp_path / "small", d_model=8, d_ff=8, n_layers=1)
    large = written(tmp_path / "large", d_model=512, d_ff=2048, n_layers=12)
    command = [sys.executable, "-c", PROGRAM, str(large), str(small)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    found = json.loads(done.stdout)
    size = (large / "model.safetensors").stat().st_size
    assert found["parameters"] * 4 == pytest.approx(size, rel=0.01)
    assert found["peak"] * 1024 <= 1.1 * size
    assert found["modules"] < 100  # 800 of PyTorch, which take a second, where initial values are drawn for nothing
