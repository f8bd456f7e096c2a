"""`init.layers`, `init.layer_mix` and `Model.features` beside transformers: any layer, and a mix of all (F6)."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
import transformers as hf

import atento
from atento.base.errors import CapabilityError, RecipeError, UsageError
from atento.model import Model
from atento.networks.frozen import FeatureCache
from atento.networks.heads import LinearHead
from atento.tasks.text_embedding import token_rows
from failing import fails
from released_folders import write_released

TEXTS = ["the cat sees it", "the dog", "the apple finds it", "the bread sees", "the girl finds it", "the boy sees it"]
LABELED = list(zip(TEXTS, ["animal", "animal", "food", "food", "person", "person"]))
TAGGED = [(text.split(), ["X" if len(word) > 3 else "Y" for word in text.split()]) for text in TEXTS]
TRAINING = {"steps": 8, "batch_tokens": 12, "learning_rate": 0.05, "warmup": 1, "precision": "float32"}


@pytest.fixture(scope="module", params=["bert", "gpt2"])
def base(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random model in the layout of transformers: an encoder with post-norm, a decoder with pre-norm."""
    return write_released(request.param, tmp_path_factory.mktemp(request.param))


def train(base: Path, out: Path, task: str = "classification", **init: Any) -> Path:
    settings: dict[str, Any] = {"task": task, "data": {"train": {"memory": "train"}}, "training": TRAINING}
    settings["init"] = {"model": str(base), "train": "head", "layer_mix": True, **init}
    settings["network"] = {"dropout": 0.0, "attention": {"dropout": 0.0}}
    return atento.train(settings, data={"train": TAGGED if task == "tagging" else LABELED}, out=out, threads=1).folder


def hidden_states(base: Path, model: Model, text: str) -> list[torch.Tensor]:
    """The embeddings and the states of each layer (L,D), by transformers, of the tokens that the model reads."""
    assert model.tokenizer is not None
    ids = token_rows(model, [text])
    with torch.no_grad():
        output = hf.AutoModel.from_pretrained(base).eval()(torch.tensor(ids), output_hidden_states=True)
    return [state[0] for state in output.hidden_states]


def mixed_by_hand(base: Path, model: Model, text: str) -> torch.Tensor:
    states = hidden_states(base, model, text)
    if model.network.config.norm == "pre":  # each layer is normalised before it is mixed
        states = [F.layer_norm(state, state.shape[-1:]) for state in states]
    weights = model.network.state_dict()
    shares = torch.exp(weights["mix.weights"]) / torch.exp(weights["mix.weights"]).sum()
    return weights["mix.gamma"] * sum(share * state for share, state in zip(shares, states, strict=True))


def test_a_classifier_reads_the_softmax_weighted_sum_of_all_layers(base: Path, tmp_path: Path) -> None:
    model = atento.load(train(base, tmp_path / "run"))
    shares = torch.softmax(model.network.get_parameter("mix.weights"), dim=0)
    assert len(shares) == model.network.config.n_layers + 1 and float(shares.max() - shares.min()) > 1e-3  # learned
    head = model.network.heads["classification"]
    assert isinstance(head, LinearHead)
    position = -1 if model.network.config.architecture == "decoder" else 0
    for text, labels in zip(TEXTS, model.classifications(TEXTS)):
        vector = mixed_by_hand(base, model, text)[position]
        if model.network.config.pooler:
            vector = torch.tanh(model.network.pooler.dense(vector))  # type: ignore[operator, union-attr]
        expected = torch.softmax(head.out(vector), dim=-1).detach()
        got = {label.name: label.probability for label in labels}
        assert [got[name] for name in head.config.labels] == pytest.approx(expected.tolist(), abs=1e-4)
    before, after = atento.load(base).network.state_dict(), model.network.state_dict()
    below = [name for name in after if not name.startswith(("heads.", "pooler.", "mix."))]
    assert below and all(torch.equal(after[name][: len(before[name])], before[name]) for name in below)
    assert atento.load(model.save(tmp_path / "saved")).classify(TEXTS) == model.classify(TEXTS)
    said = "cannot hold this network's layer_mix"
    fails(CapabilityError, said, model.save, tmp_path / "theirs", layout="huggingface")


def test_features_are_the_states_of_each_layer_and_of_the_mix_per_token_or_pooled(base: Path, tmp_path: Path) -> None:
    model = atento.load(train(base, tmp_path / "run", "tagging"))
    assert len(model.tag_words(words=TEXTS[0].split())) == 4
    states = {text: hidden_states(base, model, text) for text in TEXTS}
    for layer in (0, 1, -1):
        expected = [states[text][layer + 1 if layer >= 0 else -1] for text in TEXTS]
        for got, vectors in zip(model.features(TEXTS, layer=layer), expected, strict=True):
            np.testing.assert_allclose(got, vectors.numpy(), atol=1e-4)  # float32 through weights of 0.5
        pooled = np.stack([vectors.mean(dim=0).numpy() for vectors in expected])
        np.testing.assert_allclose(model.features(TEXTS, layer=layer, pooling="mean"), pooled, atol=2e-5)
    for text, got in zip(TEXTS, model.features(TEXTS, layer="mix")):
        np.testing.assert_allclose(got, mixed_by_hand(base, model, text).detach().numpy(), atol=2e-5)
    assert model.features(TEXTS[0]).shape == (*states[TEXTS[0]][0].shape,)
    assert model.features(TEXTS[0], pooling="max").shape == states[TEXTS[0]][0].shape[1:]
    plain = atento.load(base)
    said = r"no mix of layers: train one by a recipe with `init\.layer_mix: true`"
    fails(CapabilityError, said, plain.features, TEXTS, layer="mix")
    fails(UsageError, "`layer` must lie between -2 and 1: got 2", plain.features, TEXTS, layer=2)
    fails(UsageError, "unknown pooling 'men'; did you mean 'mean'", plain.features, TEXTS, pooling="men")


def test_features_and_training_share_a_cache(base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    computed: list[int] = []
    store = FeatureCache._store

    def counting(vectors: FeatureCache, *arguments: Any) -> None:
        before = vectors.computed
        store(vectors, *arguments)
        computed.append(vectors.computed - before)

    monkeypatch.setattr(FeatureCache, "_store", counting)
    cache = tmp_path / "vectors"
    plain = train(base, tmp_path / "plain")
    computed.clear()
    model = atento.load(train(base, tmp_path / "run", cache=str(cache)))
    assert sum(computed) == len(TEXTS)
    for name, value in atento.load(plain).network.state_dict().items():
        torch.testing.assert_close(model.network.state_dict()[name], value, rtol=0, atol=1e-4)
    computed.clear()
    position = "last" if model.network.config.architecture == "decoder" else "first"
    from_run = model.features(TEXTS, layer="mix", pooling=position, cache=cache)
    assert sum(computed) == 0
    np.testing.assert_allclose(from_run, model.features(TEXTS, layer="mix", pooling=position), atol=1e-5)
    computed.clear()
    first = model.features(TEXTS, layer=0, cache=cache)
    assert sum(computed) == len(TEXTS)
    again = model.features([*TEXTS, "the cat"], layer=0, cache=cache)
    assert sum(computed) == len(TEXTS) + 1
    assert all(np.array_equal(one, two) for one, two in zip(first, again))
    model.features(TEXTS, layer=1, cache=cache)
    assert sum(computed) == 2 * len(TEXTS) + 1  # another layer, another file


def test_a_mix_of_layers_is_refused_where_it_cannot_be_learned(base: Path, tmp_path: Path) -> None:
    said = r"`init\.layer_mix` is learned by steps, and `init\.classifier` is fitted"
    fails(RecipeError, said, train, base, tmp_path / "a", classifier={})
    said = r"`init\.layer_mix` is for models of architecture encoder, decoder: got enc"
    fails(RecipeError, said, train, write_released("t5", tmp_path / "t5"), tmp_path / "b")


@pytest.mark.parametrize("name", ["t5", "bart"])
def test_a_translator_may_begin_with_the_lowest_layers_of_a_decoder(name: str, tmp_path: Path) -> None:
    """The encoder whole; no update changes anything, so the logits are those of the model without its last block."""
    base = write_released(name, tmp_path / name)
    start: dict[str, Any] = {"task": "text-to-text", "data": {"train": {"memory": "train"}}}
    start |= {"init": {"model": str(base), "layers": 1}, "training": TRAINING | {"steps": 1, "learning_rate": 1e-30}}
    pairs = [(text, text.upper()) for text in TEXTS]
    run = atento.train(start, data={"train": pairs}, out=tmp_path / "run", threads=1).folder
    peer = hf.AutoModelForSeq2SeqLM.from_pretrained(base).eval()
    decoder = peer.get_decoder()
    stack = "block" if name == "t5" else "layers"
    assert len(getattr(decoder, stack)) == 2
    setattr(decoder, stack, getattr(decoder, stack)[:1])
    source, target = torch.tensor([[5, 9, 7, 1]]), torch.tensor([[0, 8, 6]])
    network = atento.load(run).network
    with torch.no_grad():
        theirs = peer(input_ids=source, decoder_input_ids=target, use_cache=False).logits
        ours = network(source, target).logits
    assert network.config.n_layers == 2 and network.config.decoder_layers == 1
    torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-5)
    start["init"] = {"model": str(base), "layers": 3}
    said = r"`init\.layers` must be at most 2, the layers of the decoder: got 3"
    fails(RecipeError, said, atento.train, start, data={"train": pairs}, out=tmp_path / "more", threads=1)
