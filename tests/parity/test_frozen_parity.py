"""Frozen networks (F6): their layers, a mix and `Model.features` beside transformers, classifiers beside sklearn."""

import json
import random
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
import transformers as hf
from sklearn.linear_model import LogisticRegression
from sklearn.svm import LinearSVC

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


@cache
def peer_of(folder: Path) -> tuple[Any, Any]:
    return hf.AutoTokenizer.from_pretrained(folder), hf.AutoModel.from_pretrained(folder).eval()


@torch.no_grad()
def hidden_states(base: Path, model: Model, text: str) -> list[torch.Tensor]:
    """The embeddings and the states of each layer (L,D), by transformers, of the tokens that the model reads."""
    ids = torch.tensor(token_rows(model, [text]))
    return [state[0] for state in peer_of(base)[1](ids, output_hidden_states=True).hidden_states]


def mixed_by_hand(base: Path, model: Model, text: str) -> torch.Tensor:
    states = hidden_states(base, model, text)
    if model.network.config.norm == "pre":  # each layer is normalised before it is mixed
        states = [F.layer_norm(state, state.shape[-1:]) for state in states]
    weights = model.network.state_dict()
    shares = torch.exp(weights["mix.weights"]) / torch.exp(weights["mix.weights"]).sum()
    return weights["mix.gamma"] * sum(share * state for share, state in zip(shares, states, strict=True))


def frozen_stay(base: Path, model: Model) -> None:
    before, after = atento.load(base).network.state_dict(), model.network.state_dict()
    frozen = [name for name in after if not name.startswith(("heads.", "pooler.", "mix."))]
    # the table of positions may be longer
    assert frozen and all(torch.equal(after[name][: len(before[name])], before[name]) for name in frozen)


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
    frozen_stay(base, model)
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


NOUNS = {"animal": ["the cat", "the dog"], "food": ["the apple", "the bread"], "person": ["the girl", "the boy"]}


def examples(labels: list[str], count: int, seed: int) -> list[tuple[str, str]]:
    draw = random.Random(seed)
    names = [draw.choice(labels) for _ in range(count)]
    return [(f"{draw.choice(NOUNS[name])} {draw.choice(['sees', 'finds'])} it", name) for name in names]


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_released("bert", tmp_path_factory.mktemp("bert"))


def recipe(bert: Path, **init: Any) -> dict[str, Any]:
    return {"task": "classification", "data": {"train": {}}, "init": {"model": str(bert), "train": "head", **init}}


@torch.no_grad()
def hidden_state(folder: Path, layer: int, text: Any, **given: Any) -> tuple[torch.Tensor, Any]:
    """The state of a layer (L,D) by transformers, and how it reads the text."""
    tokenizer, model = peer_of(folder)
    encoded = tokenizer(text, return_tensors="pt", **given)
    return model(**encoded, output_hidden_states=True).hidden_states[layer][0], encoded


def peer_classifier(kind: str, **options: Any) -> Any:
    """The same whatever the order of the texts."""
    if kind == "logistic":
        return LogisticRegression(max_iter=2000, tol=1e-9, **options)
    return LinearSVC(random_state=1, **options)


def vectors(folder: Path, texts: list[str], layer: int) -> np.ndarray[Any, Any]:
    """The mean over tokens of the hidden states of a layer."""
    return np.array([hidden_state(folder, layer, text)[0].mean(dim=0).numpy() for text in texts], dtype=np.float64)


@pytest.mark.parametrize(
    "kind, labels, layers", [("logistic", 3, None), ("logistic", 2, 1), ("svm", 3, 1), ("svm", 2, None)]
)
def test_it_predicts_what_scikit_learn_predicts(
    bert: Path, tmp_path: Path, kind: str, labels: int, layers: Any
) -> None:
    names = list(NOUNS)[:labels]
    train, test = examples(names, 40, 1), examples(names, 30, 2)
    settings = recipe(bert, classifier={"kind": kind, "inverse_regularization": 2.0}, layers=layers)
    options: dict[str, Any] = {"out": tmp_path / "run", "threads": 1, "precision": "float32"}  # as the peer computes
    run = atento.train(settings, data={"train": train, "valid": test}, **options)
    peer = peer_classifier(kind, C=2.0)
    layer = -1 if layers is None else layers
    peer.fit(vectors(bert, [text for text, _ in train], layer), [name for _, name in train])
    held_out = vectors(bert, [text for text, _ in test], layer)
    model = atento.load(run.folder)
    assert model.network.config.n_layers == (layers or 2) and not model.network.config.pooler
    texts = [text for text, _ in test]
    assert [label.name for label in model.classify(texts)] == peer.predict(held_out).tolist()
    if kind == "logistic":
        for label, row in zip(model.classify(texts), peer.predict_proba(held_out)):
            assert label.probability == pytest.approx(row.max(), abs=1e-4)
    share = float(np.mean(peer.predict(held_out) == [name for _, name in test]))
    assert run.best == pytest.approx(share) and run.step == 1
    frozen_stay(bert, model)
    assert atento.train(settings, data={"train": train, "valid": test}, **options).already_finished
    assert atento.load(model.save(tmp_path / "saved")).classify(texts) == model.classify(texts)


@pytest.mark.parametrize("kind, layers", [("logistic", None), ("svm", 1)])
def test_it_tags_words_as_scikit_learn_does(bert: Path, tmp_path: Path, kind: str, layers: int | None) -> None:
    """On the hidden states of transformers at the first token of each word."""
    made = [(text.split(), ["DET", f"NOUN-{name}", "VERB", "PRON"]) for text, name in examples(list(NOUNS), 50, 3)]
    train, test = made[:35], made[35:]
    settings = recipe(bert, classifier={"kind": kind}, layers=layers) | {"task": "tagging"}
    options: dict[str, Any] = {"out": tmp_path / "run", "threads": 1, "precision": "float32"}
    run = atento.train(settings, data={"train": train, "valid": test}, **options)
    peer = peer_classifier(kind)
    layer = -1 if layers is None else layers
    rows = np.concatenate([word_vectors(bert, words, layer) for words, _ in train])
    peer.fit(rows, [tag for _, tags in train for tag in tags])
    model = atento.load(run.folder)
    right = 0
    for words, tags in test:
        found, held_out = model.tag_words(words=words), word_vectors(bert, words, layer)
        assert [word.label for word in found] == peer.predict(held_out).tolist()
        right += sum(one.label == tag for one, tag in zip(found, tags))
        if kind == "logistic":
            best = peer.predict_proba(held_out).max(axis=1)
            assert [word.probability for word in found] == pytest.approx(best.tolist(), abs=2e-4)
    assert run.best == pytest.approx(right / sum(len(words) for words, _ in test)) and run.step == 1
    frozen_stay(bert, model)


def word_vectors(folder: Path, words: list[str], layer: int) -> np.ndarray[Any, Any]:
    """The hidden states of a layer at the first token of each word."""
    hidden, encoded = hidden_state(folder, layer, words, is_split_into_words=True)
    first = [encoded.word_ids().index(number) for number in range(len(words))]
    return hidden[first].double().numpy()  # type: ignore[no-any-return]


def test_what_a_classifier_and_a_mix_of_layers_refuse(bert: Path, tmp_path: Path) -> None:
    def refused(message: str, task: str = "classification", **init: Any) -> None:
        settings = recipe(bert, **init) | {"task": task}
        data = examples(list(NOUNS), 12, 1)
        fails(RecipeError, message, atento.train, settings, data=data, out=tmp_path / "none", threads=1)

    refused("`init.classifier` reads a frozen network, so `train` must be head: got 'all'", classifier={}, train="all")
    refused("`init.layers` must be at most 2, the layers of the model: got 3", layers=3)
    refused("inverse_regularization` must be finite and above 0: got 0", classifier={"inverse_regularization": 0.0})
    said = r"`init\.layer_mix` is learned by steps, and `init\.classifier` is fitted"
    fails(RecipeError, said, train, bert, tmp_path / "a", classifier={})
    said = r"`init\.layer_mix` is for models of architecture encoder, decoder: got enc"
    fails(RecipeError, said, train, write_released("t5", tmp_path / "t5"), tmp_path / "b")
    source = {"file": "x.tsv", "text": 0, "score": 1}
    settings = recipe(bert, classifier={}) | {"task": "regression", "data": {"train": source}}
    (tmp_path / "numbers.yaml").write_text(json.dumps(settings), encoding="utf-8")
    fails(RecipeError, r"init\.classifier gives each text, .* got task regre", atento.train, tmp_path / "numbers.yaml")
