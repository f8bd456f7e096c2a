"""`attend` shows a text as training, `generate` and `embed` read it (W2): against the weights of transformers."""

from pathlib import Path

import numpy as np
import pytest
import torch
import transformers

import atento
from atento.config import presets
from atento.config.recipe import TokenizerConfig
from atento.config.sections.network import NetworkConfig
from atento.config.tables.head_kinds import HeadConfig
from atento.model import Model
from atento.networks import build_network
from atento.text import train_tokenizer
from atento_world import write
from released_folders import write_released

TEXTS = [text for pair in write("train", 60) for text in (pair.source, pair.target)]
TOKENIZER = train_tokenizer(TokenizerConfig(kind="bpe", vocab_size=400), TEXTS)
SMALL = {"d_model": 16, "n_heads": 2, "n_layers": 2, "max_len": 64}


def config(make: object, **more: object) -> NetworkConfig:
    ids = {role: getattr(TOKENIZER, f"{role}_id") for role in ("pad", "unk", "bos", "eos", "mask")}
    sizes = SMALL | {"vocab_size": TOKENIZER.vocab_size, "ids": ids | {"start": TOKENIZER.bos_id}}
    return make(**{**sizes, **more})  # type: ignore[operator, no-any-return]


MASKED = config(presets.bert_tiny, d_ff=24, heads=(HeadConfig("masked-language-model"),))
CASES = {
    "language-modeling": (config(presets.gpt2, d_ff=64), "bos", [TOKENIZER.bos_id], []),
    "masked-language-modeling": (MASKED, "bos-eos", [TOKENIZER.bos_id], [TOKENIZER.eos_id]),
}


@pytest.mark.parametrize("task", CASES)
def test_w2_the_weights_shown_are_those_of_use(task: str, tmp_path: Path) -> None:
    network, template, before, after = CASES[task]
    torch.manual_seed(0)
    about = {"model_type": "atento", "name": "small", "task": task, "template": template}
    made = build_network(network).eval()
    with torch.no_grad():
        made.embedding.weight.normal_()  # type: ignore[union-attr, operator]
    model = Model(made, TOKENIZER, about, None)
    record = model.attend("o gato pulou alto")
    ids = [*before, *TOKENIZER.encode("o gato pulou alto"), *after]
    assert record.tokens == TOKENIZER.tokens(ids)
    assert [i for i, one in enumerate(record.special) if one] == [i for i, one in enumerate(ids) if one in (2, 3)]
    assert record.words[0] == -1 and (record.words[-1] == -1) == bool(after)
    folder = model.save(tmp_path / "out", layout="huggingface")
    theirs = transformers.AutoModel.from_pretrained(folder, attn_implementation="eager").eval()
    with torch.no_grad():
        wanted = theirs(torch.tensor([ids]), output_attentions=True).attentions
    for layer in range(2):
        for head in range(2):
            np.testing.assert_allclose(record.weights(layer, head), wanted[layer][0, head].numpy(), atol=1e-5)


def test_w2_a_released_source_is_read_between_its_own_marks(tmp_path: Path) -> None:
    """BART's encoder reads `<s> text </s>`: in `translate`, `score`, `embed` and `attend` alike."""
    folder = write_released("bart", tmp_path)
    model = atento.load(folder)
    peer = transformers.AutoTokenizer.from_pretrained(folder)
    text = "o gato pulou"
    assert model.attend(text, "a gata").source_tokens == peer.convert_ids_to_tokens(peer(text)["input_ids"])
    assert model.attend(text, "a gata").source_special == [True, *[False] * (len(peer(text)["input_ids"]) - 2), True]
    theirs = transformers.AutoModelForSeq2SeqLM.from_pretrained(folder).eval()
    given = peer(text, return_tensors="pt")
    endless = {"forced_eos_token_id": None, "eos_token_id": None}
    written = theirs.generate(**given, max_new_tokens=8, do_sample=False, num_beams=1, **endless)
    found = model.summaries([text], beam=1, max_new_tokens=8)[0][0].hypothesis.ids
    assert found == written[0, 1 : 1 + len(found)].tolist() and len(found) > 3
    with torch.no_grad():
        hidden = theirs.get_encoder()(**given).last_hidden_state[0].mean(dim=0)
    np.testing.assert_allclose(model.embed(text), hidden.numpy(), atol=1e-5)
    target = peer("a gata", add_special_tokens=False)["input_ids"]
    with torch.no_grad():
        logits = theirs(**given, decoder_input_ids=torch.tensor([[2, *target]])).logits[0]
    wanted = torch.log_softmax(logits, -1)[range(len(target) + 1), [*target, 2]]
    assert model.score(text, "a gata").log_probs == pytest.approx(wanted.tolist(), abs=1e-4)
