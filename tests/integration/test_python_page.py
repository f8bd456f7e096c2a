"""docs/python.md: its blocks are run in their order, as one program, with fewer steps and smaller networks."""

import re
from pathlib import Path
from typing import Any

import pytest
import torch

from atento.errors import UsageError

pytestmark = pytest.mark.integration
PAGE = Path(__file__).parents[2] / "docs" / "python.md"
SMALLER = {
    "TRAINING__BATCH_TOKENS": "256",
    "TRAINING__VALIDATE_EVERY": "2",
    "TRAINING__CHECKPOINT_EVERY": "2",
    "NETWORK__D_MODEL": "16",
    "NETWORK__D_FF": "32",
    "NETWORK__N_HEADS": "2",
    "DECODING__MAX_NEW_TOKENS": "8",
}


def blocks() -> list[str]:
    return re.findall(r"^```python\n(.*?)^```", PAGE.read_text(encoding="utf-8"), flags=re.M | re.S)


def test_the_blocks_run_in_their_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, value in SMALLER.items():
        monkeypatch.setenv(f"ATENTO_{name}", value)
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    seen: dict[str, Any] = {}
    try:
        for number, text in enumerate(blocks()):
            shorter = re.sub(r'"(steps|training\.steps)": (\d+)00', r'"\1": \2', text)
            shorter = shorter.replace('write("train", 2000)', 'write("train", 200)').replace("100)]", "12)]")
            exec(compile(shorter, f"python.md, block {number}", "exec"), seen)
    finally:
        torch.set_num_threads(before)
    assert seen["run"].folder == Path("runs/first") and seen["run"].step == 3
    assert repr(seen["run"]).startswith("TrainedRun('runs/first', step 3")
    assert seen["model"].precision == "float32" and (tmp_path / "first" / "model.safetensors").exists()
    assert seen["vectors"].shape == (2, 16) and set(seen["scores"]) == {"bleu", "chrf"}
    assert (tmp_path / "page.html").stat().st_size > 10_000 and "iframe" in seen["trace"]._repr_html_()
    assert len(seen["given"].tokens) == len(seen["given"].log_probs)
    said = capsys.readouterr().out
    assert "unknown decoding option 'lenght_penalty'; did you mean 'length_penalty'?" in said
    assert "lenght_penalty" in blocks()[-1] and isinstance(seen["atento"].AtentoError, type)
    assert issubclass(UsageError, seen["atento"].AtentoError)
