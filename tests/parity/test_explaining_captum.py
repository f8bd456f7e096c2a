"""Explanations beside captum's on a BERT of transformers with the same weights, token by token."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from captum import attr

import atento
from atento.model import Model
from test_classification_parity import LABELS, tiny_bert

pytestmark = pytest.mark.filterwarnings("ignore:.*")

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
    """Their network, the ids of the text, and those of the baseline."""
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
    assert ours.value == pytest.approx(float(log_prob(ids)), abs=1e-5) and max(map(abs, ours.scores)) > 1e-4
    assert [part.target for part in ours.parts] == ["house"] and ours.target == "house"
    assert model.explain(text, "gradient-input").target == model.fill(text, top=1)[0].token
