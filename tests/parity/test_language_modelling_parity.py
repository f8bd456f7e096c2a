"""Language modelling from a released decoder without BOS (Qwen): loss, perplexity and texts beside `transformers`."""

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

import atento
from atento.training.metrics_log import read_journal
from released_folders import _SMALL, _byte_level, randomised

TEXTS = ["o gato pulou alto", "a menina viu o cão", "ação, coração e avó!", "é", "os gatos não dormem"] * 6
DATA = {"train": TEXTS, "valid": TEXTS}
TINY = {"d_model": 16, "d_ff": 32, "n_heads": 2, "n_layers": 1}


@pytest.fixture
def qwen(tmp_path: Path) -> Path:
    end = "<|endoftext|>"
    peer = transformers.Qwen2TokenizerFast(**_byte_level([end]), pad_token=end, eos_token=end, unk_token=None)
    peer.save_pretrained(tmp_path / "qwen")
    torch.manual_seed(2)
    ids = dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id"), peer.eos_token_id)
    config = transformers.Qwen2Config(vocab_size=len(peer), num_key_value_heads=1, **_SMALL, **ids)
    randomised(transformers.Qwen2ForCausalLM(config), 0.4).save_pretrained(tmp_path / "qwen")
    assert peer.bos_token is None
    return tmp_path / "qwen"


def recipe(folder: Path, **keys: Any) -> dict[str, Any]:
    data = {"max_len": 48}
    training = {"steps": 1, "batch_tokens": 4096, "learning_rate": 0.0, "validate_every": 1, "precision": "float32"}
    return {"task": "language-modeling", "init": str(folder), "data": data, "training": training | keys}


@torch.no_grad()
def their_nll(folder: Path, texts: list[str]) -> tuple[float, int]:
    """The negative log-likelihood of texts and their ends, each token but the first from those before it."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    network = transformers.AutoModelForCausalLM.from_pretrained(folder).eval()
    total, count = 0.0, 0
    for text in texts:
        ids = torch.tensor([[*tokenizer(text)["input_ids"], tokenizer.eos_token_id]])
        targets = ids.shape[1] - 1
        total, count = total + float(network(ids, labels=ids).loss) * targets, count + targets
    return total, count


@pytest.mark.parametrize("pack", ["none", "isolated"])
def test_f7_a_decoder_without_bos_learns_each_token_but_the_first(qwen: Path, tmp_path: Path, pack: str) -> None:
    given = recipe(qwen)
    given["data"]["pack"] = pack
    texts = TEXTS if pack == "none" else ["o gato pulou", "é", "a menina"]  # one row
    run = atento.train(given, data={"train": texts, "valid": texts}, out=tmp_path / "run", threads=1)
    total, count = their_nll(qwen, texts)
    valid = [record for record in read_journal(tmp_path / "run" / "metrics.jsonl") if record["event"] == "valid"]
    assert valid[-1]["nll"] == pytest.approx(total / count, rel=1e-5)
    model = atento.load(run.folder)
    assert model.perplexity(texts).value == pytest.approx(float(torch.tensor(total / count).exp()), rel=1e-4)
    tokenizer = transformers.AutoTokenizer.from_pretrained(qwen)
    peer = transformers.AutoModelForCausalLM.from_pretrained(qwen).eval()
    for text in TEXTS[:3]:
        ids = torch.tensor([tokenizer(text)["input_ids"]])
        theirs = peer.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=8, do_sample=False)[0]
        assert model.generate([text], max_new_tokens=8)[0] == tokenizer.decode(theirs[ids.shape[1] :], True)


def test_f7_one_that_has_learned_is_read_by_transformers(qwen: Path, tmp_path: Path) -> None:
    run = atento.train(
        recipe(qwen, steps=20, warmup=2, learning_rate=1e-2, validate_every=20), data=DATA, out=tmp_path / "run"
    )
    model = atento.load(run.folder)
    total, count = their_nll(model.save(tmp_path / "out", layout="huggingface"), TEXTS)
    assert model.perplexity(TEXTS).value == pytest.approx(float(torch.tensor(total / count).exp()), rel=1e-4)
    assert total < 0.8 * their_nll(qwen, TEXTS)[0]
    prefix = atento.train(recipe(qwen) | {"objective": "prefix"}, data=DATA, out=tmp_path / "prefix", threads=1)
    assert len(atento.load(prefix.folder).generate(["o gato"], max_new_tokens=3)) == 1


def test_f7_a_network_from_scratch_takes_a_tokenizer_without_bos(qwen: Path, tmp_path: Path) -> None:
    given = recipe(qwen, steps=2, learning_rate=1e-3, validate_every=2)
    del given["init"]
    given |= {"tokenizer": {"path": str(qwen)}, "network": {"preset": "gpt2", **TINY}}
    model = atento.load(atento.train(given, data=DATA, out=tmp_path / "run", threads=1).folder)
    assert model.network.config.start_id == model.network.config.eos_id
    assert len(model.generate(["", "o gato"], max_new_tokens=3)) == 2
