"""Few labels: pairs of the labels train an encoder, then a head is fitted; one line of the recipe."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import atento
from atento.base.errors import AtentoError, DataError
from atento.config.reading.loading import load_recipe
from atento.config.sections.initial import ClassifierConfig
from atento.data.records.memory import by_split
from atento.data.records.splits import Split
from atento.runs.classifier import fitted_classifier
from atento.runs.train import head_overrides, pairs_of_labels, vectors_recipe
from conftest import ForkServer, refused

LogisticRegression = pytest.importorskip("sklearn.linear_model").LogisticRegression


NETWORK: dict[str, Any] = {"architecture": "encoder", "d_model": 32, "d_ff": 64, "n_heads": 2, "n_layers": 1}
NETWORK |= {"max_len": 16, "positions": {"kind": "learned"}}
MEMORY = {"train": {"memory": "train"}}
ANIMALS, TOOLS = ("cat", "dog", "bird", "fish", "cow", "hen"), ("hammer", "saw", "drill", "file", "plane", "axe")
TEXTS = [(f"the {word} is here", label) for words, label in ((ANIMALS, "animal"), (TOOLS, "tool")) for word in words]


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A sentence encoder that knows the words and little else."""
    return trained(tmp_path_factory.mktemp("few") / "encoder", 5)


def trained(out: Path, steps: int, **embedding: Any) -> Path:
    """An encoder of pairs of texts of these words."""
    recipe = {"task": "embedding", "data": MEMORY, "tokenizer": {"kind": "word", "vocab_size": 100}, "network": NETWORK}
    recipe["embedding"] = {"pooling": "first", **embedding}
    recipe["training"] = {"steps": steps, "batch_tokens": 8, "precision": "float32"}
    pairs = [(text, text.replace("the", "a")) for text, _ in TEXTS]
    return atento.train(recipe, data={"train": pairs}, out=out, threads=1).folder


def recipe(encoder: Path, **init: Any) -> dict[str, Any]:
    init = {"model": str(encoder), "few_shot": True} | init
    return {"task": "classification", "init": init, "data": MEMORY, "training": {"precision": "float32"}}


def test_one_line_trains_an_encoder_by_pairs_and_fits_a_head(encoder: Path, tmp_path: Path) -> None:
    """The encoder is a run of its own; the head reads its pooling; the same call again changes nothing."""
    run = atento.train(recipe(encoder), data={"train": TEXTS}, out=tmp_path / "run", threads=1)
    vectors, model = atento.load(tmp_path / "run-vectors"), atento.load(run.folder)
    assert vectors.config["objectives"] == ["cosine"] and run.step == 1 and vectors.network.config.dropout == 0
    assert model.network.config.dropout == atento.load(encoder).network.config.dropout == 0.1  # for a later fine-tuning
    (head,) = model.network.config.heads
    assert head.pooling == "first" and not head.hidden
    texts = [text for text, _ in TEXTS]
    assert vectors.embed(texts) != pytest.approx(atento.load(encoder).embed(texts), abs=1e-5)
    alone = recipe(tmp_path / "run-vectors", few_shot=False, train="head", classifier={"pooling": "first"})
    same = atento.load(atento.train(alone, data={"train": TEXTS}, out=tmp_path / "alone", threads=1).folder)
    shares = [[label.probability for label in one.classify(texts)] for one in (model, same)]
    assert shares[0] == pytest.approx(shares[1], abs=1e-6) and len(set(shares[0])) > 1
    assert atento.train(recipe(encoder), data={"train": TEXTS}, out=tmp_path / "run", threads=1).already_finished
    close = recipe(encoder, classifier={"kind": "svm", "inverse_regularization": 1e4})
    other = atento.train(close, ["training.seed=2"], data={"train": TEXTS}, out=tmp_path / "other", threads=1)
    assert atento.evaluate(str(other.folder), TEXTS)["accuracy"].value == 1.0


def test_the_pairs_read_texts_as_the_head_does(encoder: Path) -> None:
    """Windows, cuts and markers of the recipe; attention, whose weights are a head's, as the mean."""
    for data, read in (
        ({"windows": "max", "stride": 4}, {"windows": "max", "stride": 4}),
        ({"windows": "attention"}, {"windows": "mean"}),
        ({"truncate": "head-tail"}, {"truncate": "head-tail"}),
    ):
        given = recipe(encoder) | {"tokenizer": {"markers": ["<m>"]}}
        given["data"] = {"train": {"memory": "train"}, "max_len": 12, **data}
        memory = by_split({"train": TEXTS})
        made, _ = vectors_recipe(load_recipe(given, memory=memory), memory)
        assert made["data"] == {"train": {"memory": "train"}, "max_len": 12, **read}
        assert made["tokenizer"] == {"markers": ["<m>"]} and not load_recipe(made, memory=["train"]).warnings


def test_prompts_of_the_encoder_are_left_out_before_windows(tmp_path: Path) -> None:
    """They have no place there, and a recipe of labels could not say so; the pooling stays."""
    prompted = trained(tmp_path / "prompted", 1, prompts={"query": "a "}, field_prompts={"text": "query"})
    few = recipe(prompted) | {"data": {"train": {"memory": "train"}, "max_len": 12, "windows": "mean"}}
    atento.train(few, data={"train": TEXTS}, out=tmp_path / "run", threads=1)
    vectors = atento.load(tmp_path / "run-vectors").config["embedding"]
    assert vectors["pooling"] == "first" and not vectors["prompts"] and not vectors["field_prompts"]


@pytest.mark.parametrize(("given", "pooling"), [({"kind": "svm"}, "first"), ({"pooling": "mean"}, "mean")])
def test_the_head_reads_the_encoders_pooling_unless_told(encoder: Path, given: dict[str, str], pooling: str) -> None:
    loaded = load_recipe(recipe(encoder, classifier=given), memory=["train"])
    assert head_overrides(loaded, encoder).get("init.classifier.pooling", given.get("pooling")) == pooling


def test_class_weights_count_for_a_fitted_head(encoder: Path, tmp_path: Path) -> None:
    """As `class_weight="balanced"` of scikit-learn; a mixture has no effect, and a warning says so."""
    vectors, labels = np.random.default_rng(1).normal(size=(60, 4)).astype(np.float32), np.arange(60) % 6 // 5
    own = fitted_classifier(vectors, labels, ClassifierConfig(), 1, print, {0: 60 / 100, 1: 60 / 20})
    peer = LogisticRegression(tol=1e-6, C=ClassifierConfig().inverse_regularization, class_weight="balanced")
    right: Any = peer.fit(vectors.astype(np.float64), labels)
    assert own.coef_ == pytest.approx(right.coef_, abs=1e-4)  # type: ignore[attr-defined]
    few = [*TEXTS[:6], *TEXTS[6:8]]
    shares = []
    for weights in ("equal", "balanced"):
        given = recipe(encoder, few_shot=False, train="head", classifier={"pooling": "first"})
        given["objective"] = {"kind": "labels", "class_weights": weights}
        run = atento.train(given, data={"train": few}, out=tmp_path / weights, threads=1)
        labels_of = atento.load(run.folder).classify([text for text, _ in few], threshold=0.0)
        shares.append(sum(label.probability for row in labels_of for label in row if label.name == "tool"))
    assert shares[1] > shares[0] + 0.3
    mixed = recipe(encoder) | {"data": {"train": {"memory": "train"}, "mixing": {"kind": "equal"}}}
    assert any("data.mixing.kind has no effect" in line for line in load_recipe(mixed, memory=["train"]).warnings)


def test_pairs_have_both_kinds_for_every_text() -> None:
    """As many pairs of one label as of two, whatever the labels' sizes; each text in both kinds, none beside itself."""
    pairs: Any = pairs_of_labels(split([*TEXTS, ("a pear", "fruit"), ("a plum", "fruit")]), seed=3)
    labels, kinds = dict([*TEXTS, ("a pear", "fruit"), ("a plum", "fruit")]), Counter[tuple[str, float]]()
    for first, second, score in pairs:
        assert first != second and score == float(labels[first] == labels[second])
        kinds.update([(first, score), (second, score)])
    assert Counter(score for *_, score in pairs) == {1.0: 280, 0.0: 280} and len(kinds) == 2 * len(labels)
    many = split([(f"text {n}", str(n % 3)) for n in range(600)])
    drawn = pairs_of_labels(many, seed=1)
    assert drawn == pairs_of_labels(many, seed=1) != pairs_of_labels(many, seed=2) and 3000 < len(drawn) <= 4000


def split(records: list[tuple[str, str]]) -> Split:
    return Split({"text": [text for text, _ in records], "label": [label for _, label in records]}, "")


@pytest.mark.parametrize(
    ("records", "init", "message"),
    [
        (TEXTS[:6], {}, "every text has the label 'animal': there is nothing to learn"),
        (TEXTS, {"train": "head"}, "leave `init.train` out"),
        (TEXTS, {"lora": {"rank": 2}}, "leave `init.lora` out"),
        ([(text, text, label) for text, label in TEXTS], {}, "learns from single texts with a label: leave `pair` out"),
    ],
)
def test_what_is_refused(records: list[Any], init: dict[str, Any], message: str, encoder: Path, tmp_path: Path) -> None:
    with pytest.raises(AtentoError, match=message) as error:
        atento.train(recipe(encoder, **init), data={"train": records}, out=tmp_path / "run")
    assert "\n" not in str(error.value) and not (tmp_path / "run").exists()


def test_a_class_with_too_few_records_names_file_and_line(encoder: Path, tmp_path: Path, server: ForkServer) -> None:
    rows = [*TEXTS, ("a pear", "fruit")]
    (tmp_path / "train.tsv").write_text("text\tlabel\n" + "".join(f"{text}\t{label}\n" for text, label in rows))
    data = {"train": {"file": "train.tsv", "text": "text", "label": "label"}}
    (tmp_path / "my.yaml").write_text(json.dumps(recipe(encoder) | {"data": data}))
    done = server.run("train", "my.yaml", cwd=tmp_path)
    refused(done, "train.tsv:14: label 'fruit' has 1 text, and a pair of texts of one label")
    assert "header" not in done.stderr
    valid = {"train": TEXTS, "valid": [("a pear", "fruit")]}
    with pytest.raises(DataError, match=r"unknown label 'fruit'\. Known: animal, tool"):
        atento.train(recipe(encoder) | {"data": {n: {"memory": n} for n in valid}}, data=valid, out=tmp_path / "b")
    assert not (tmp_path / "b-vectors").exists()
    # the header is a record
    by_number = {"train": {"file": str(tmp_path / "train.tsv"), "text": 0, "label": 1, "header": False}}
    with pytest.raises(DataError, match=r"train.tsv:1: label 'label' has 1 text.*; if line 1 is a header, give the"):
        atento.train(recipe(encoder) | {"data": by_number}, out=tmp_path / "run")
