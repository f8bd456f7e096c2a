"""`init.classifier` beside scikit-learn on the hidden states of transformers: equal labels and probabilities (F6)."""

import json
import random
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers as hf
from sklearn.linear_model import LogisticRegression
from sklearn.svm import LinearSVC

import atento
from atento.base.errors import RecipeError
from failing import fails
from released_folders import write_released

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


@cache
def peer_of(folder: Path) -> tuple[Any, Any]:
    return hf.AutoTokenizer.from_pretrained(folder), hf.AutoModel.from_pretrained(folder).eval()


def hidden_state(folder: Path, layer: int, text: Any, **given: Any) -> tuple[torch.Tensor, Any]:
    """The state of a layer (L,D) by transformers, and how it reads the text."""
    tokenizer, model = peer_of(folder)
    encoded = tokenizer(text, return_tensors="pt", **given)
    with torch.no_grad():
        return model(**encoded, output_hidden_states=True).hidden_states[layer][0], encoded


def vectors(folder: Path, texts: list[str], layer: int) -> np.ndarray[Any, Any]:
    """The mean over tokens of the hidden states of a layer."""
    return np.array([hidden_state(folder, layer, text)[0].mean(dim=0).numpy() for text in texts], dtype=np.float64)


@pytest.mark.parametrize(
    "kind, labels, layers", [("logistic", 3, None), ("logistic", 2, 1), ("svm", 3, 1), ("svm", 2, None)]
)
def test_a_classifier_predicts_what_scikit_learn_predicts(
    bert: Path, tmp_path: Path, kind: str, labels: int, layers: int | None
) -> None:
    names = list(NOUNS)[:labels]
    train, test = examples(names, 40, 1), examples(names, 30, 2)
    settings = recipe(bert, classifier={"kind": kind, "inverse_regularization": 2.0}, layers=layers)
    options: dict[str, Any] = {"out": tmp_path / "run", "threads": 1, "precision": "float32"}  # as the peer computes
    run = atento.train(settings, data={"train": train, "valid": test}, **options)
    logistic: Any = LogisticRegression(C=2.0, max_iter=2000, tol=1e-9)  # whatever the order of the texts
    peer: Any = logistic if kind == "logistic" else LinearSVC(C=2.0, random_state=1)
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
    peer: Any = LogisticRegression(max_iter=2000, tol=1e-9) if kind == "logistic" else LinearSVC(random_state=1)
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


def frozen_stay(bert: Path, model: atento.Model) -> None:
    before, after = atento.load(bert).network.state_dict(), model.network.state_dict()
    frozen = [name for name in after if not name.startswith("heads.")]
    assert frozen  # the table of positions may be longer
    assert all(torch.equal(after[name][: len(before[name])], before[name]) for name in frozen)


def word_vectors(folder: Path, words: list[str], layer: int) -> np.ndarray[Any, Any]:
    """The hidden states of a layer at the first token of each word."""
    hidden, encoded = hidden_state(folder, layer, words, is_split_into_words=True)
    first = [encoded.word_ids().index(number) for number in range(len(words))]
    found: np.ndarray[Any, Any] = hidden[first].double().numpy()
    return found


def test_what_a_classifier_refuses(bert: Path, tmp_path: Path) -> None:
    def refused(message: str, task: str = "classification", **init: Any) -> None:
        settings = recipe(bert, **init) | {"task": task}
        data = examples(list(NOUNS), 12, 1)
        fails(RecipeError, message, atento.train, settings, data=data, out=tmp_path / "none", threads=1)

    refused("`init.classifier` reads a frozen network, so `train` must be head: got 'all'", classifier={}, train="all")
    refused("`init.layers` must be at most 2, the layers of the model: got 3", layers=3)
    refused("inverse_regularization` must be finite and above 0: got 0", classifier={"inverse_regularization": 0.0})
    source = {"file": "x.tsv", "text": 0, "score": 1}
    settings = recipe(bert, classifier={}) | {"task": "regression", "data": {"train": source}}
    (tmp_path / "numbers.yaml").write_text(json.dumps(settings), encoding="utf-8")
    fails(RecipeError, r"init\.classifier gives each text, .* got task regre", atento.train, tmp_path / "numbers.yaml")
