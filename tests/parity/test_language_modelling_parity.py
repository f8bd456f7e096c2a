"""Language models beside `transformers`: training from a decoder without BOS (Qwen), perplexity, continuations."""

import itertools
import math
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

import atento
from atento.training.metrics_log import read_journal
from released_folders import _SMALL, TEXTS, _byte_level, randomised, write_released

SAID = ["o gato pulou alto", "a menina viu o cão", "ação, coração e avó!", "é", "os gatos não dormem"] * 6
DATA = {"train": SAID, "valid": SAID}


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
    texts = SAID if pack == "none" else ["o gato pulou", "é", "a menina"]  # one row
    run = atento.train(given, data={"train": texts, "valid": texts}, out=tmp_path / "run", threads=1)
    total, count = their_nll(qwen, texts)
    valid = [record for record in read_journal(tmp_path / "run" / "metrics.jsonl") if record["event"] == "valid"]
    assert valid[-1]["nll"] == pytest.approx(total / count, rel=1e-5)
    model = atento.load(run.folder)
    assert model.perplexity(texts).value == pytest.approx(float(torch.tensor(total / count).exp()), rel=1e-4)
    tokenizer = transformers.AutoTokenizer.from_pretrained(qwen)
    peer = transformers.AutoModelForCausalLM.from_pretrained(qwen).eval()
    for text in SAID[:3]:
        ids = torch.tensor([tokenizer(text)["input_ids"]])
        theirs = peer.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=8, do_sample=False)[0]
        assert model.generate([text], max_new_tokens=8)[0] == tokenizer.decode(theirs[ids.shape[1] :], True)


def test_f7_one_that_has_learned_is_read_by_transformers(qwen: Path, tmp_path: Path) -> None:
    run = atento.train(
        recipe(qwen, steps=20, warmup=2, learning_rate=1e-2, validate_every=20), data=DATA, out=tmp_path / "run"
    )
    model = atento.load(run.folder)
    total, count = their_nll(model.save(tmp_path / "out", layout="huggingface"), SAID)
    assert model.perplexity(SAID).value == pytest.approx(float(torch.tensor(total / count).exp()), rel=1e-4)
    assert total < 0.8 * their_nll(qwen, SAID)[0]
    prefix = atento.train(recipe(qwen) | {"objective": "prefix"}, data=DATA, out=tmp_path / "prefix", threads=1)
    assert len(atento.load(prefix.folder).generate(["o gato"], max_new_tokens=3)) == 1


def test_f7_a_network_from_scratch_takes_a_tokenizer_without_bos(qwen: Path, tmp_path: Path) -> None:
    given = recipe(qwen, steps=2, learning_rate=1e-3, validate_every=2)
    del given["init"]
    given |= {"tokenizer": {"path": str(qwen)}, "network": {"preset": "gpt2", "d_model": 16, "d_ff": 32}}
    given["network"] |= {"n_heads": 2, "n_layers": 1}
    model = atento.load(atento.train(given, data=DATA, out=tmp_path / "run", threads=1).folder)
    assert model.network.config.start_id == model.network.config.eos_id
    assert len(model.generate(["", "o gato"], max_new_tokens=3)) == 2


LINES = TEXTS[:5]


@torch.no_grad()
@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_a_continuation_with_its_space_has_the_tokens_that_it_has_behind_its_prompt(name: str, tmp_path: Path) -> None:
    """Llama's tokenizer begins every text with a space: by itself the continuation had a second one."""
    folder = write_released(name, tmp_path / name)
    peer = transformers.AutoModelForCausalLM.from_pretrained(folder).eval()
    tokenizer, model = transformers.AutoTokenizer.from_pretrained(folder), atento.load(folder)
    prompts, texts = ["The cat", "A bird", "The cat ", "The cat"], [" sleeps here", "  sang", " sleeps", "\nA dog"]
    for prompt, text, found in zip(prompts, texts, model.score(prompts, texts)):
        ids = torch.tensor([[*tokenizer(prompt + text)["input_ids"], model.network.config.eos_id]])
        known = len(tokenizer(prompt)["input_ids"])
        log_probs = peer(ids).logits[0].log_softmax(-1)
        if ids[0, :known].tolist() == tokenizer(prompt)["input_ids"]:
            wanted = log_probs[range(known - 1, ids.shape[1] - 1), ids[0, known:]]
            assert found.ids == ids[0, known:].tolist()
            assert found.log_probs == pytest.approx(wanted.tolist(), abs=1e-4)
    given, (scored, *_) = model.explain(prompts[0], target=texts[0], method="leave-out"), model.score(prompts, texts)
    assert given.value == pytest.approx(scored.total, abs=1e-4)
    for prefix, wanted in ((" sleeps", scored.ids[:5]), ("sleeps", tokenizer("sleeps", add_special_tokens=False))):
        ids = list(wanted if prefix[0] == " " else wanted["input_ids"])
        written = model.generations(["The cat"], prefix=prefix, max_new_tokens=9, greedy=True)[0][0].hypothesis.ids
        assert written[: len(ids)] == ids


def same(folder: Path, nats: float, tokens: int, *texts: list[str]) -> Any:
    """Assert that the perplexity of the model is that of so many nats and tokens."""
    score = atento.load(folder, precision="float64").perplexity(*texts)
    assert score.value == pytest.approx(math.exp(nats / tokens), rel=1e-6) and score.parts["tokens"] == tokens
    return score


@torch.no_grad()
@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_a_language_model_has_the_loss_of_transformers(name: str, tmp_path: Path) -> None:
    """GPT-2 has no token before the text, Llama has BOS; neither scores EOS."""
    folder = write_released(name, tmp_path / name)
    peer, tokenizer = transformers.AutoModelForCausalLM.from_pretrained(folder).double(), atento.Tokenizer.load(folder)
    nats, tokens = 0.0, 0
    for text in LINES:
        ids = torch.tensor([[*([1] if name == "llama" else []), *tokenizer.encode(text)]])
        nats, tokens = nats + float(peer(ids, labels=ids).loss) * (ids.shape[1] - 1), tokens + ids.shape[1] - 1
    assert same(folder, nats, tokens, LINES).settings.endswith("eos:none")


@torch.no_grad()
def test_a_masked_model_has_the_probabilities_of_transformers(tmp_path: Path) -> None:
    folder = write_released("bert", tmp_path)
    peer = transformers.AutoModelForMaskedLM.from_pretrained(folder).double()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    nats, tokens = 0.0, 0
    for text in LINES:
        row = tokenizer(text).input_ids
        ids = torch.tensor(row).repeat(len(row) - 2, 1)
        places = torch.arange(1, len(row) - 1)
        ids[torch.arange(len(row) - 2), places] = tokenizer.mask_token_id
        log_probs = torch.log_softmax(peer(ids).logits[torch.arange(len(row) - 2), places], dim=-1)
        nats -= float(log_probs.gather(1, torch.tensor(row[1:-1])[:, None]).sum())
        tokens += len(row) - 2
    same(folder, nats, tokens, LINES)


@torch.no_grad()
def test_an_encoder_decoder_has_the_loss_of_transformers(tmp_path: Path) -> None:
    folder = write_released("t5", tmp_path)
    peer = transformers.AutoModelForSeq2SeqLM.from_pretrained(folder).double()
    tokenizer = atento.Tokenizer.load(folder)
    nats, tokens = 0.0, 0
    for source, target in itertools.pairwise(LINES):
        ids = torch.tensor([[*tokenizer.encode(source), 1]])
        labels = torch.tensor([[*tokenizer.encode(target), 1]])
        nats += float(peer(ids, labels=labels).loss) * labels.shape[1]
        tokens += labels.shape[1]
    same(folder, nats, tokens, LINES[:-1], LINES[1:])
