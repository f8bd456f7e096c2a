"""Folders like those of Portuguese models on the hub: tokens and vectors equal those of transformers and tokenizers."""

import unicodedata
from pathlib import Path

import pytest
import tokenizers
import torch
import transformers as hf

import atento
from portuguese_folders import PORTUGUESE, write_portuguese

TEXTS = ["A avó não pôs açúcar à mão, João.", "Ação: R$ 3,50 — “lê-lo-ia” às 14h30?", "  dois  espaços "]
TEXTS += [unicodedata.normalize("NFD", "Ninguém viu a maçã."), "emoji 😀 e 中文", "MAIÚSCULAS ÇÃÕ", "linha\nnova\taba"]


@pytest.mark.parametrize("name", PORTUGUESE)
@torch.no_grad()
def test_tokens_and_vectors(name: str, tmp_path: Path) -> None:
    folder = write_portuguese(name, tmp_path / name)
    if not (folder / "model.safetensors").exists():  # BERTimbau's
        hf.BertForMaskedLM.from_pretrained(folder, use_safetensors=False).save_pretrained(folder)
    model = atento.load(folder)
    assert model.tokenizer is not None
    ours = [list(model.tokenizer.with_specials(model.tokenizer.encode(text))[0]) for text in TEXTS]
    if (folder / "tokenizer.json").exists():  # the file decides, which a class of transformers may build anew
        peer = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
        theirs = [peer.encode(text).ids for text in TEXTS]
    else:
        theirs = [hf.AutoTokenizer.from_pretrained(folder)(text)["input_ids"] for text in TEXTS]
    assert ours == theirs
    network = hf.AutoModel.from_pretrained(folder, dtype=torch.float32).eval()
    reader = network.encoder if isinstance(network, hf.T5Model) else network
    for text, ids in zip(TEXTS, theirs, strict=True):
        vector = reader(input_ids=torch.tensor([ids])).last_hidden_state.mean(1)
        if name.startswith("intfloat/"):
            vector = torch.nn.functional.normalize(vector, dim=-1)
        torch.testing.assert_close(torch.from_numpy(model.embed([text])), vector, atol=5e-6, rtol=2e-5)
