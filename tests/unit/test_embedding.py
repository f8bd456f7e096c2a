"""Texts as vectors (G8): poolings by hand, any layer, no neighbour's influence."""

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from atento.base.errors import AtentoWarning, RecipeError, UsageError
from atento.model import Model
from atento.networks import Encoder, presets
from atento.networks.heads import TEXT_POOLINGS, pool_text
from failing import fails
from tiny_families import of_words

WORDS = ("o", "gato", "pulou", "alto", "corre", "casa")


@pytest.fixture
def model() -> Model:
    torch.manual_seed(0)
    config, tokenizer = of_words(presets.bert_tiny(d_model=8, d_ff=12, n_layers=3, max_len=6), WORDS)
    network = Encoder(config).double().eval()
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.normal_(std=0.5)
    return Model(network, tokenizer, {"task": "embedding", "name": "tiny"}, None)


def test_g8_poolings_and_layers_by_hand(model: Model) -> None:
    hidden = torch.tensor([[[1.0, 5.0], [3.0, -1.0], [9.0, 9.0]]])
    real = torch.tensor([[True, True, False]])
    found = {name: pool_text(name, hidden, real)[0].tolist() for name in TEXT_POOLINGS}
    expected = {"mean": [2.0, 2.0], "first": [1.0, 5.0], "last": [3.0, -1.0], "max": [3.0, 5.0]}
    weighted, root = [7 / 3, 1.0], 2**0.5
    expected |= {"sqrt-mean": [2 * root, 2 * root], "weighted-mean": weighted}
    assert found == {name: pytest.approx(value) for name, value in expected.items()}
    left = torch.tensor([[False, True, True]])
    found = {name: pool_text(name, hidden, left)[0].tolist() for name in TEXT_POOLINGS}
    expected = {"mean": [6.0, 4.0], "first": [3.0, -1.0], "last": [9.0, 9.0], "max": [9.0, 9.0]}
    expected |= {"sqrt-mean": [6 * root, 4 * root], "weighted-mean": [7.0, 17 / 3]}
    assert found == {name: pytest.approx(value) for name, value in expected.items()}
    assert pool_text("first+last", hidden, real, skip=1)[0].tolist() == [3.0, -1.0, 3.0, -1.0]
    assert pool_text("weighted-mean", hidden, left, skip=1)[0].tolist() == [9.0, 9.0]
    # each layer's vectors are those a hook on its block sees; padding of a longer neighbour changes nothing
    together = model.embed(["o gato", "o gato pulou alto"], layer=1)
    ids, _ = model.tokenizer.with_specials(model.tokenizer.encode("o gato"))
    seen: list[torch.Tensor] = []
    hook = model.network.stack.blocks[1].register_forward_hook(lambda module, inputs, output: seen.append(output))
    with torch.no_grad():
        out = model.network(torch.tensor([ids]))
    hook.remove()
    np.testing.assert_allclose(together[0], seen[0][0].mean(dim=0).numpy(), atol=1e-6)
    np.testing.assert_allclose(model.embed("o gato"), out.hidden[0].mean(dim=0).numpy(), atol=1e-6)
    np.testing.assert_allclose(model.embed("o gato", layer=2), model.embed("o gato"), atol=0)
    np.testing.assert_allclose(np.linalg.norm(model.embed("o gato", normalize=True)), 1, atol=1e-6)


def test_g8_layers_contexts_long_texts_and_zeros(model: Model) -> None:
    """`embed(layer=-1)`, the documented default, was refused: "embedding.layer must not be negative"."""
    for below, above in ((-1, 2), (-2, 1), (-3, 0)):
        np.testing.assert_array_equal(model.embed("o gato", layer=below), model.embed("o gato", layer=above))
    fails(RecipeError, r"embedding.max_len must not be negative: got -1", model.embed, "o gato", max_len=-1)
    place = len(model.tokenizer.with_specials([])[0]) // 2 + 1  # of "gato" in both
    found = []
    for text in ("o gato pulou", "o gato corre"):
        ids, _ = model.tokenizer.with_specials(model.tokenizer.encode(text))
        real = torch.ones(1, len(ids), dtype=torch.bool)
        found.append(model.network.features(torch.tensor([ids]), token_mask=real)[0, place])
    assert float((found[0] - found[1]).abs().max()) > 1e-5
    long = " ".join(WORDS * 3)
    with warnings.catch_warnings(record=True, action="always") as caught:
        model.embed([long, "o gato", long + " casa"])
    assert [str(one.message) for one in caught] == ["2 of 3 texts cut to 6 tokens"]
    with torch.no_grad():
        for parameter in model.network.parameters():
            parameter.copy_(-torch.zeros_like(parameter))
    for numbers in (model.embed(["o gato", "alto"]), model.similarity("o gato", "alto")):
        assert not np.signbit(numbers).any() and not np.any(numbers)


@pytest.mark.filterwarnings("ignore:1 of 1 text cut")
def test_g8_features_read_a_text_as_embed_does(model: Model) -> None:
    model.config["embedding"] = {"max_len": 4, "lowercase": True}
    long = "O Gato pulou alto"
    assert [len(one) for one in model.features([long, "o"])] == [4, 1]
    np.testing.assert_allclose(model.features(long, pooling="mean"), model.embed(long), atol=1e-6)


def test_g8_features_similarity_and_errors(model: Model, tmp_path: Path) -> None:
    (tmp_path / "cache").write_bytes(b"")  # a file, where a folder is needed
    with pytest.warns(AtentoWarning, match="vectors cannot be kept, .*cache.* cannot be written: "):
        found = model.features("o gato", pooling="mean", cache=tmp_path / "cache")
    np.testing.assert_array_equal(found, model.features("o gato", pooling="mean"))
    a, b = model.embed(["o gato", "alto"]).astype(float)
    assert model.similarity("o gato", "alto") == pytest.approx(a @ b / np.linalg.norm(a) / np.linalg.norm(b), abs=1e-12)
    assert model.similarity("o gato", "o gato") == pytest.approx(1)
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"pooling": "meen"}, "unknown pooling 'meen'"),
        ({"layer": 3}, "`layer` must lie between -3 and 2: got 3"),
        ({"pool": "mean"}, "unknown embedding option 'pool'"),
        ({"layer": "x"}, r"options: embedding\.layer must be an integer: got 'x'"),
    ]
    for options, message in wrong:
        fails(UsageError, message, model.embed, "o gato", **options)
    fails(UsageError, "a text must be a str: got int", model.embed, [3])
