"""What a model is shown to read (W2) and explanations: against the weights of transformers, and beside captum."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from captum import attr

import atento
from atento.config import presets
from atento.config.recipe import TokenizerConfig
from atento.config.tables.head_kinds import HeadConfig
from atento.model import Model
from atento.networks import build_network
from atento.text import train_tokenizer
from released_folders import TEXTS, write_released
from test_fine_tuning_parity import LABELS, tiny_bert

TEXT = "the old cat never sleeps in the red house"
STEPS = 24


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_bert(tmp_path_factory.mktemp("bert"), [TEXT])


@pytest.fixture(scope="module")
def model(folder: Path) -> Model:
    return atento.load(folder)


def read(folder: Path, text: str) -> tuple[Any, torch.Tensor, torch.Tensor]:
    """Their tokenizer, the ids of a text, and those of the baseline, with the mask in place of each word."""
    tokenizer = transformers.BertTokenizerFast.from_pretrained(folder)
    ids = tokenizer(text, return_tensors="pt")["input_ids"]
    special = (ids == tokenizer.cls_token_id) | (ids == tokenizer.sep_token_id)
    return tokenizer, ids, torch.where(special, ids, tokenizer.mask_token_id)


@pytest.fixture(scope="module")
def theirs(folder: Path) -> tuple[Any, torch.Tensor, torch.Tensor]:
    return transformers.BertForSequenceClassification.from_pretrained(folder).eval(), *read(folder, TEXT)[1:]


def log_odds(network: Any, label: int) -> Callable[[torch.Tensor], torch.Tensor]:
    """Of two labels: the difference of their logits."""

    def forward(ids: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = network(ids).logits
        return logits[:, label] - logits[:, 1 - label]

    return forward


@pytest.mark.parametrize("label", LABELS)
def test_integrated_gradients_are_captums(model: Model, theirs: Any, label: str) -> None:
    network, ids, baseline = theirs
    layer = network.bert.embeddings.word_embeddings
    captum = attr.LayerIntegratedGradients(log_odds(network, LABELS.index(label)), layer)
    options = {"n_steps": STEPS, "method": "gausslegendre", "return_convergence_delta": True}
    expected, gap = captum.attribute(ids, baselines=baseline, **options)
    ours = model.explain(TEXT, target=label, steps=STEPS)
    np.testing.assert_allclose(ours.scores, expected.sum(dim=-1)[0].detach().numpy(), atol=2e-6)
    assert len(ours.words) == ids.shape[1] and [*ours.words[:2], ours.words[-1]] == ["[CLS]", "the", "[SEP]"]
    assert ours.error == pytest.approx(abs(float(gap)), abs=2e-6)
    assert max(map(abs, ours.scores)) > 1e-3


def test_gradient_times_input_is_captums(model: Model, theirs: Any) -> None:
    network, ids, _ = theirs
    captum = attr.LayerGradientXActivation(log_odds(network, 1), network.bert.embeddings.word_embeddings)
    expected = captum.attribute(ids).sum(dim=-1)[0].detach().numpy()
    ours = model.explain(TEXT, "gradient-input", LABELS[1])
    np.testing.assert_allclose(ours.scores, expected, atol=2e-6)
    assert ours.total == pytest.approx(float(expected.sum()), abs=1e-5)


def test_the_number_is_the_log_odds_of_their_label(model: Model, theirs: Any) -> None:
    network, ids, _ = theirs
    with torch.no_grad():
        expected = float(log_odds(network, 0)(ids))
    assert model.explain(TEXT, "leave-out", LABELS[0]).value == pytest.approx(expected, abs=1e-6)


def test_a_filled_mask_is_explained_as_captum_explains_it(folder: Path, tmp_path: Path) -> None:
    config = transformers.BertConfig.from_pretrained(folder)
    torch.manual_seed(4)
    network = transformers.BertForMaskedLM(config).eval()
    text = TEXT.replace("cat", "[MASK]")
    tokenizer, ids, baseline = read(folder, text)
    network.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    model = atento.load(tmp_path)
    at, word = ids[0].tolist().index(tokenizer.mask_token_id), tokenizer.convert_tokens_to_ids("house")

    def log_prob(ids: torch.Tensor) -> torch.Tensor:
        return torch.log_softmax(network(ids).logits[:, at], dim=-1)[:, word]

    captum = attr.LayerIntegratedGradients(log_prob, network.bert.embeddings.word_embeddings)
    expected = captum.attribute(ids, baselines=baseline, n_steps=STEPS, method="gausslegendre")
    ours = model.explain(text, target="house", steps=STEPS)
    np.testing.assert_allclose(ours.scores, expected.sum(dim=-1)[0].detach().numpy(), atol=2e-6)
    assert ours.value == pytest.approx(float(log_prob(ids).detach()), abs=1e-5) and max(map(abs, ours.scores)) > 1e-4
    assert [part.target for part in ours.parts] == ["house"] and ours.target == "house"
    assert model.explain(text, "gradient-input").target == model.fill(text, top=1)[0].token


TOKENIZER = train_tokenizer(TokenizerConfig(kind="bpe", vocab_size=400), TEXTS[:120])
_IDS = {role: getattr(TOKENIZER, f"{role}_id") for role in ("pad", "unk", "bos", "eos", "mask")}
SMALL: dict[str, Any] = {"d_model": 16, "n_heads": 2, "n_layers": 2, "max_len": 64}
SMALL |= {"vocab_size": TOKENIZER.vocab_size, "ids": _IDS | {"start": TOKENIZER.bos_id}}
MASKED = presets.bert_tiny(**SMALL, d_ff=24, heads=(HeadConfig("masked-language-model"),))
CASES = {
    "language-modeling": (presets.gpt2(**SMALL, d_ff=64), "bos", [TOKENIZER.bos_id], []),
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


@torch.no_grad()
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
    hidden = theirs.get_encoder()(**given).last_hidden_state[0].mean(dim=0)
    np.testing.assert_allclose(model.embed(text), hidden.numpy(), atol=1e-5)
    target = peer("a gata", add_special_tokens=False)["input_ids"]
    logits = theirs(**given, decoder_input_ids=torch.tensor([[2, *target]])).logits[0]
    wanted = torch.log_softmax(logits, -1)[range(len(target) + 1), [*target, 2]]
    assert model.score(text, "a gata").log_probs == pytest.approx(wanted.tolist(), abs=1e-4)
