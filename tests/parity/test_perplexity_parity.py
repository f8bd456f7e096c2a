"""Perplexity beside transformers: GPT-2, Llama, BERT and T5 of random weights, with their tokenizers."""

import itertools
import math
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

import atento
from released_folders import TEXTS, write_released

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
