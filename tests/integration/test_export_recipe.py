"""The shipped masked model is a BERT: trained, exported and read by stock transformers (Messages, W3)."""

import json
from pathlib import Path

import pytest

import atento
from conftest import ForkServer

transformers = pytest.importorskip("transformers", reason="transformers is not installed (extra dev)")


def test_w3_micro_world_mlm_is_exported_as_bert(server: ForkServer, tmp_path: Path) -> None:
    short = ["training.steps=2", "training.precision=float32", "training.batch_tokens=64"]
    short += ["data.train.count=300", "data.valid.count=20"]
    server.good("train", "micro-world-mlm", *short, "--out", "run", "--threads", "1", cwd=tmp_path)
    server.good("convert", "run", "--to", "huggingface", "--out", "bert", cwd=tmp_path)
    folder = tmp_path / "bert"
    assert json.loads((folder / "config.json").read_text())["architectures"] == ["BertForMaskedLM"]
    model = atento.load(tmp_path / "run")
    fill = transformers.pipeline("fill-mask", model=str(folder), top_k=2)
    assert len(fill("o gato <mask> alto.")) == 2
    ids = [model.tokenizer.bos_id, *model.tokenizer.encode("o gato pulou."), model.tokenizer.eos_id]
    assert fill.tokenizer("o gato pulou.")["input_ids"] == ids
    assert atento.load(folder).config["task"] == "masked-language-modeling"
