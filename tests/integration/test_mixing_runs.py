"""Runs on mixed sources: the preview before training, and a run that is extended reads what a longer one would."""

import json
from pathlib import Path

import pytest

from conftest import ForkServer
from runs import last, tensors


def test_the_preview_and_the_run_agree_and_a_run_that_goes_on_is_the_same(server: ForkServer, tmp_path: Path) -> None:
    for name, count in (("long", 200), ("short", 20)):
        lines = (f"{name} text number {number % 17} ." for number in range(count))
        (tmp_path / f"{name}.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    mixing = {"kind": "temperature", "temperature": 2}
    recipe = {
        "task": "language-modeling",
        "data": {"train": [{"file": "long.txt"}, {"file": "short.txt"}], "mixing": mixing},
        "tokenizer": {"kind": "word", "vocab_size": 40},
        "network": {"architecture": "decoder", "d_model": 8, "d_ff": 16, "n_heads": 2, "n_layers": 1},
        "training": {"steps": 8, "batch_tokens": 64, "precision": "float32", "schedule": "constant"},
    }
    (tmp_path / "recipe.yaml").write_text(json.dumps(recipe), encoding="utf-8")
    plan = json.loads(server.good("data", "stats", "recipe.yaml", "--json", cwd=tmp_path).stdout)[0]["mixing"]
    assert [row["source"] for row in plan] == ["long.txt", "short.txt"]
    roots = [row["targets"] ** 0.5 for row in plan]
    assert [row["share"] for row in plan] == pytest.approx([root / sum(roots) for root in roots], rel=0.1)
    train = ["train", "recipe.yaml", "--threads", "1"]
    whole = server.good(*train, "--out", "whole", cwd=tmp_path)
    shown = [line for line in whole.stderr.splitlines() if line.startswith("mixing: ")]
    lines = server.run("data", "stats", "recipe.yaml", cwd=tmp_path).stdout.splitlines()
    assert shown == [line.strip() for line in lines if "mixing: " in line]
    assert f"mixing: long.txt: {plan[0]['share']:.1%} of the target tokens" in shown[0]
    for steps in (3, 8):
        server.good(*train, f"training.steps={steps}", "--out", "parts", cwd=tmp_path)
    files = [tensors(last(tmp_path / run) / "model.safetensors") for run in ("whole", "parts")]
    assert files[0] == files[1]
