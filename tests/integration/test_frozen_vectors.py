"""`init.cache` (F6): a frozen network reads each text once; what is trained on its vectors is what would be trained."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import atento
from atento.base.errors import RecipeError
from atento.config.reading.loading import load_recipe
from atento.networks.frozen import FeatureCache
from atento.runs.run_identity import with_absolute_paths
from runs import events
from test_classification import ENCODER, TRAINING, recipe, records


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small encoder to start from."""
    folder = tmp_path_factory.mktemp("frozen")
    settings = recipe({"train": {"memory": "train"}}, steps=4)
    return atento.train(settings, data=records(), out=folder / "base", threads=1).folder


def decoder(folder: Path) -> Path:
    """A small decoder to start from, whose output matrix is its own."""
    network = ENCODER | {"architecture": "decoder", "embedding": {}, "output": {"tied": False}}
    settings = recipe({"train": {"memory": "train"}}, network, steps=4)
    return atento.train(settings, data=records(), out=folder / "decoder", threads=1).folder


def train(base: Path, out: Path, task: dict[str, Any], data: Any, *, network: Any = None, **init: Any) -> Path:
    settings = task | {"data": {"train": {"memory": "train"}, "valid": {"memory": "valid"}}}
    settings["init"] = {"model": str(base), "train": "head", **init}
    settings["network"] = {"dropout": 0.0} if network is None else network
    return atento.train(settings, data={"train": data, "valid": data}, out=out, threads=1).folder


CLASSIFY = {"task": "classification", "training": TRAINING | {"steps": 12, "validate_every": 6}}
TAG = {"task": "tagging", "training": TRAINING | {"steps": 6, "validate_every": 6}, "metrics": ["tag-accuracy"]}
TAGGED = [(text.split(), ["X" if len(word) > 3 else "Y" for word in text.split()]) for text, _ in records()]
PAIRS = [(text, text[::-1], label) for text, label in records()]


@pytest.mark.parametrize(
    "task, data, start, init",
    [
        *((CLASSIFY, records(), "encoder", {}), (CLASSIFY, PAIRS, "encoder", {}), (TAG, TAGGED, "encoder", {})),
        *((CLASSIFY, records(), "decoder", {}), (TAG, TAGGED, "decoder", {})),
        *((CLASSIFY, records(), "decoder", {"layer_mix": True}), (TAG, TAGGED, "encoder", {"layer_mix": True})),
    ],
    ids=["texts", "pairs", "tags", "decoder", "decoder-tags", "decoder-mix", "tags-mix"],
)
def test_training_on_stored_vectors_is_training_without_dropout(
    base: Path, tmp_path: Path, task: dict[str, Any], data: Any, start: str, init: dict[str, Any]
) -> None:
    model = base if start == "encoder" else decoder(tmp_path)
    plain = train(model, tmp_path / "plain", task, data, **init)
    cached = train(model, tmp_path / "cached", task, data, cache=str(tmp_path / "vectors"), **init)
    for kind in ("train", "valid"):
        expected, got = events(plain, kind), events(cached, kind)
        assert [event["nll"] for event in got] == pytest.approx([event["nll"] for event in expected], abs=1e-4)
    weights = [atento.load(folder).network.state_dict() for folder in (plain, cached)]
    assert all(torch.allclose(value, weights[1][name], atol=1e-4) for name, value in weights[0].items())


def test_a_model_with_dropout_has_none_on_stored_vectors_and_keeps_its_rates(base: Path, tmp_path: Path) -> None:
    """Its own rates are for fine-tuning, also when that begins with the cached run."""
    model = atento.load(base).save(tmp_path / "rated")
    config = json.loads((model / "config.json").read_text(encoding="utf-8"))
    config["network"]["dropout"] = config["network"]["attention"]["dropout"] = 0.5
    (model / "config.json").write_text(json.dumps(config), encoding="utf-8")
    (model / "MANIFEST.json").unlink()
    still = {"dropout": 0.0, "attention": {"dropout": 0.0}}
    plain = train(model, tmp_path / "plain", CLASSIFY, records(), network=still)
    cached = train(model, tmp_path / "cached", CLASSIFY, records(), network={}, cache=str(tmp_path / "vectors"))
    losses = [[event["nll"] for event in events(folder, "train")] for folder in (plain, cached)]
    assert losses[1] == pytest.approx(losses[0], abs=1e-4)
    assert load_recipe(cached / "recipe.yaml").recipe.network.dropout == 0
    network = atento.load(cached).network.config
    assert network.dropout == network.attention.dropout == 0.5 and network.heads[0].dropout == 0
    assert train(model, cached, CLASSIFY, records(), network={}, cache=str(tmp_path / "vectors")) == cached  # finished


def test_a_second_run_computes_what_has_changed(base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    computed: list[int] = []
    store = FeatureCache._store

    def counting(vectors: FeatureCache, *arguments: Any) -> None:
        before = vectors.computed
        store(vectors, *arguments)
        computed.append(vectors.computed - before)

    monkeypatch.setattr(FeatureCache, "_store", counting)

    def texts_read(name: str, model: Path, data: Any, **init: Any) -> int:
        computed.clear()
        train(model, tmp_path / name, CLASSIFY, data, cache=str(tmp_path / "vectors"), **init)
        return sum(computed)

    assert texts_read("first", base, records()) == len(records()) and texts_read("second", base, records()) == 0
    assert texts_read("text", base, [("um texto novo", "fruta"), *records()]) == 1
    logistic = {"kind": "logistic"}  # it reads the mean, not the pooler
    assert texts_read("logistic", base, records(), classifier=logistic) == len(records())
    assert texts_read("svm", base, records(), classifier={"kind": "svm"}) == 0
    model = atento.load(base)
    with torch.no_grad():
        model.network.get_parameter("embedding.weight")[7] += 1
    assert texts_read("weight", model.save(tmp_path / "other"), records()) == len(records())
    for path in (tmp_path / "vectors").iterdir():  # a damaged file is computed again
        path.write_bytes(path.read_bytes()[:-9])
    assert texts_read("damaged", base, records()) == len(records())


def test_what_a_cache_refuses(base: Path, tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match="so `train` must be head: got 'all'"):
        train(base, tmp_path / "a", CLASSIFY, records(), cache="vectors", train="all")
    network = ENCODER | {"architecture": "encoder-decoder", "embedding": {}}
    settings = recipe({"train": {"memory": "train"}}, network, steps=1)
    both = atento.train(settings, data=records(), out=tmp_path / "both", threads=1).folder
    with pytest.raises(RecipeError, match=r"`init\.cache` is for an encoder or a decoder: got .*architecture en"):
        train(both, tmp_path / "b", CLASSIFY, records(), cache="vectors")
    writer = {"task": "language-modeling", "training": TRAINING | {"steps": 1}}
    with pytest.raises(RecipeError, match=r"`init\.cache` of a decoder.* got task language-mod"):
        train(decoder(tmp_path), tmp_path / "c", writer, [text for text, _ in records()], cache="vectors")


def test_a_run_keeps_the_place_of_the_vectors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its recipe lies elsewhere, and a resumed run must find them."""
    monkeypatch.chdir(tmp_path)
    init = {"model": "anywhere", "train": "head", "cache": "vectors"}
    kept = with_absolute_paths(load_recipe(CLASSIFY | {"data": {"train": {"memory": "train"}}, "init": init})).init
    assert kept is not None and kept.cache == str(tmp_path / "vectors")
