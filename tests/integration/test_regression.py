"""Regression and several labels a text, through recipe, command and Python; losses as transformers computes them."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from sklearn.utils.class_weight import compute_class_weight

import atento
from atento.base.errors import DataError, UsageError
from atento.config.reading.loading import load_recipe
from atento.data.batches.batch import Draw, Ragged
from atento.data.objectives.labels import Labels, store_texts
from atento.models.card import model_card
from atento.networks import build_network
from atento.runs.prepare import read_data, tokenizer_and_network, training_batches
from atento.runs.train import TrainedRun
from atento.training.losses import Call, losses
from atento_cli.commands.train import _print
from conftest import ForkServer, refused
from failing import fails
from test_classification import ENCODER
from test_classification import TRAINING as USUAL

TRAINING = USUAL | {"steps": 120, "validate_every": 40, "checkpoint_every": 40}
FRUIT, ANIMALS = ["uva", "pera", "maçã"], ["gato", "cão", "pato"]


def recipe(task: str, columns: dict[str, Any], **more: Any) -> dict[str, Any]:
    sources = {split: {"file": f"{split}.tsv", **columns} for split in ("train", "valid")}
    tokenizer = {"kind": "word", "vocab_size": 100}
    return {"task": task, "data": sources, "tokenizer": tokenizer, "network": ENCODER, "training": TRAINING, **more}


@pytest.fixture(scope="module")
def similar(tmp_path_factory: pytest.TempPathFactory) -> TrainedRun:
    """Pairs of things: two of one kind have the number 5, others 1.5."""
    here = tmp_path_factory.mktemp("regression")
    things = [(word, kind) for kind, words in enumerate((FRUIT, ANIMALS)) for word in words]
    lines = [f"vejo {a}\taqui há {b}\t{5.0 if i == j else 1.5}\n" for a, i in things for b, j in things]
    for split in ("train", "valid"):
        (here / f"{split}.tsv").write_text("".join(lines), encoding="utf-8")
    file = here / "recipe.json"
    file.write_text(json.dumps(recipe("regression", {"text": 0, "pair": 1, "score": 2})), encoding="utf-8")
    return atento.train(file, out=here / "run", threads=1)


@pytest.fixture(scope="module")
def topics(tmp_path_factory: pytest.TempPathFactory) -> TrainedRun:
    """Lists of things; the labels say which kinds are in a list, and are none for an empty one."""
    here = tmp_path_factory.mktemp("topics")
    lists = [(a, b) for a in [*FRUIT, "nada"] for b in [*ANIMALS, "nada"]]
    kinds = [[name for name, word in zip(("fruta", "animal"), pair) if word != "nada"] for pair in lists]
    objects = [json.dumps({"text": f"tenho {a} e {b}", "label": names}) for (a, b), names in zip(lists, kinds)]
    for split in ("train", "valid"):
        (here / f"{split}.jsonl").write_text("\n".join(objects), encoding="utf-8")
    given = recipe("multi-label-classification", {"text": "text", "label": "label"})
    for split, source in given["data"].items():
        source["file"] = f"{split}.jsonl"
    file = here / "recipe.json"
    file.write_text(json.dumps(given), encoding="utf-8")
    return atento.train(file, out=here / "run", threads=1)


def test_g5_a_regression_learns_the_numbers_of_pairs(similar: TrainedRun, server: ForkServer) -> None:
    model = atento.load(similar.folder)
    assert model.similarity("vejo uva", "aqui há pera") == pytest.approx(5.0, abs=0.6)
    both = model.similarity(["vejo uva", "vejo gato"], ["aqui há gato", "aqui há cão"])
    assert both == pytest.approx([1.5, 5.0], abs=0.6)
    scores = atento.evaluate(model, similar.folder.parent / "valid.tsv")
    assert list(scores) == ["pearson", "spearman"] and scores["pearson"].value > 0.9
    lines = "vejo uva\taqui há gato\n\nvejo gato\taqui há cão\n"
    done = server.run("similarity", str(similar.folder), cwd=similar.folder, stdin=lines)
    assert [float(line) for line in done.stdout.split()] == pytest.approx(both, abs=1e-5)
    assert done.stdout.splitlines()[1] == ""
    lines = "vejo\nvejo uva\taqui há gato\n"
    done = server.run("similarity", "run", "--skip-bad", cwd=similar.folder.parent, stdin=lines)
    bad, alone = done.stdout.splitlines()
    assert (done.status, bad) == (0, "") and "1: the text needs a second one" in done.stderr
    assert float(alone) == pytest.approx(both[0], abs=1e-5)  # in company the last digit may differ
    fails(UsageError, "trained on pairs of texts: got single texts", model.similarity, "vejo uva")
    fails(UsageError, "`pooling` has no", model.similarity, "vejo uva", "vejo pera", pooling="first")
    evaluated = server.run("evaluate", "run", "valid.tsv", "--fail-under", "pearson=0.9", cwd=similar.folder.parent)
    assert evaluated.status == 0 and "Pearson" in evaluated.stdout


@pytest.mark.parametrize("task", ["classification", "regression"])
@pytest.mark.parametrize("pairs", [True, False])
def test_a_model_of_pairs_gives_pairs(
    task: str, pairs: bool, similar: TrainedRun, capsys: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The next steps after training, and the code of a model card; of single texts it gives single ones."""
    network = atento.load(similar.folder).network.config
    verb, one, two = ("classify", "'Olá.'", "('Olá.', 'Oi.')")
    if task == "regression":
        verb, one, two = ("similarity", "'Olá.'", "'Olá.', 'Oi.'")
    card = model_card({"task": task, "pairs": pairs, "name": "x"}, network, layout="huggingface")
    assert f"model.{verb}({two if pairs else one})" in card and ("text_pair" in card) == pairs
    assert f"model='.')({'{' if pairs else one}" in card
    (tmp_path / "config.json").write_text(json.dumps({"pairs": pairs}), encoding="utf-8")
    monkeypatch.setattr("atento.models.model_folder.find_model", lambda _: tmp_path)
    _print(replace(similar, task=task), as_json=False)
    file = {True: "PAIRS.tsv", False: "FILE"}[pairs] + (" --pairs" if pairs and verb == "classify" else "")
    assert f"  atento {verb} {similar.folder} {file}\n" in capsys.readouterr().err


def test_g1_a_text_has_any_number_of_labels(topics: TrainedRun, server: ForkServer) -> None:
    model = atento.load(topics.folder)
    texts = ["tenho uva e gato", "tenho nada e pato", "tenho nada e nada"]
    found = [sorted(label.name for label in labels) for labels in model.classify(texts)]  # type: ignore[attr-defined]
    assert found == [["animal", "fruta"], ["animal"], []]
    assert len(model.classify(texts[0], threshold=0.0)) == 2 and model.classify(texts[0], threshold=1.0) == []
    scores = atento.evaluate(model, topics.folder.parent / "valid.jsonl")
    assert scores["multilabel-f1"].value == scores["subset-accuracy"].value == 1.0
    done = server.run("classify", "run", cwd=topics.folder.parent, stdin="".join(f"{text}\n" for text in texts))
    lines = done.stdout.split("\n")
    assert set(lines[0].split("\t")[0].split("|")) == {"animal", "fruta"} and lines[1].startswith("animal\t")
    assert lines[2] == "" and done.status == 0


@pytest.mark.parametrize("problem", ["regression", "multi_label_classification"])
def test_g5_the_loss_is_that_of_transformers(problem: str, tmp_path: Path) -> None:
    """A BERT of random weights, loaded, and saved again with equal outputs."""
    count = 1 if problem == "regression" else 3
    config = transformers.BertConfig(
        vocab_size=40, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=24,
        max_position_embeddings=16, num_labels=count, problem_type=problem, initializer_range=0.3,
    )  # fmt: skip
    torch.manual_seed(2)
    theirs = transformers.BertForSequenceClassification(config).eval()
    theirs.save_pretrained(tmp_path / "bert")
    vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(f"w{n}" for n in range(35))]
    tokenizer = transformers.BertTokenizerFast(vocab={word: n for n, word in enumerate(vocabulary)})
    tokenizer.save_pretrained(tmp_path / "bert")
    model = atento.load(tmp_path / "bert")
    texts = ["w1 w2 w3", "w4", "w5 w6"]
    right = torch.tensor([[0.5], [-2.0], [3.0]]) if count == 1 else torch.tensor([[1.0, 0, 1], [0, 0, 0], [0, 1, 0]])
    (head,) = model.network.config.heads
    store, _ = store_texts(model.tokenizer, model.tokenizer.template(None), texts, None, None, model.network.config)
    store.columns["values"] = Ragged(right.tolist(), torch.zeros(1).numpy().dtype.type)
    batch = Labels(model.network.config, head, has_values=True).batch(store, torch.arange(3).numpy(), Draw(0, 0))
    assert batch.counts() == {head.name: 3}  # a negative number is a target too
    ours, _ = losses(model.network, batch, Call())[head.name]
    encoded = tokenizer(texts, padding=True, return_tensors="pt")
    expected = theirs(**encoded, labels=right.squeeze(-1) if count == 1 else right).loss
    assert float(ours) / 3 == pytest.approx(float(expected), rel=1e-5)
    saved = model.save(tmp_path / "out", layout="huggingface")
    back = transformers.AutoModelForSequenceClassification.from_pretrained(saved).eval()
    assert back.config.problem_type == problem
    assert torch.allclose(back(**encoded).logits, theirs(**encoded).logits, atol=1e-5)


def first_batch(given: dict[str, Any]) -> tuple[Any, Any, Any]:
    """The first batch of training, the network that reads it, and the labels of all records."""
    loaded = load_recipe(given)
    train = read_data(loaded.recipe, loaded.folder, print).train
    tokenizer, config = tokenizer_and_network(loaded, train, print)
    parts = training_batches(loaded.recipe, config, tokenizer, train, print).parts(0)
    return next(part.batch for part in parts), config, train["label"]


def test_g1_balanced_classes_have_equal_factors_several_labels_are_named(tmp_path: Path, server: ForkServer) -> None:
    """The factors are those of scikit-learn; the validation's nll has none."""
    (tmp_path / "train.tsv").write_text("uva\tfruta\npera\tfruta\nmaçã\tfruta\ngato\tanimal\n", encoding="utf-8")
    given = recipe("classification", {"text": 0, "label": 1}, objective={"kind": "labels", "class_weights": "balanced"})
    given["data"] = {"train": {"file": str(tmp_path / "train.tsv"), "text": 0, "label": 1}}
    batch, _, labels = first_batch(given)
    expected = compute_class_weight("balanced", classes=np.array(["animal", "fruta"]), y=labels)
    assert batch.extras["classification weights"].tolist() == pytest.approx(expected.tolist())
    masked = {**given, "objective": {"kind": "masked", "class_weights": "balanced"}}
    (tmp_path / "wrong.json").write_text(json.dumps(masked), encoding="utf-8")
    refused(server.run("config", "check", "wrong.json", cwd=tmp_path), "`class_weights` has no effect on the objective")
    (tmp_path / "train.tsv").write_text("uva\tdoce|roxo\npera\tdoce|verde\nkiwi\tdoce|verde\n", encoding="utf-8")
    given = recipe("classification", {"text": 0, "label": 1})
    given["data"] = {"train": {"file": str(tmp_path / "train.tsv"), "text": 0, "label": 1}}
    said: list[str] = []
    read_data(load_recipe(given).recipe, tmp_path, said.append)
    assert said[0].startswith("warning: 'doce|roxo' and 'doce|verde' are two labels here, with nothing in common; ")
    assert said[0].endswith("; several labels of one text need `task: multi-label-classification`")


def test_g1_balanced_sets_have_the_factors_of_each_label_and_of_its_absence(tmp_path: Path) -> None:
    """Those of scikit-learn for each label by itself; the loss has them, the nll has none."""
    given = recipe("multi-label-classification", {"text": 0, "label": 1})
    given["objective"] = {"kind": "label-sets", "class_weights": "balanced"}
    (tmp_path / "train.tsv").write_text("uva\tdoce|roxo\npera\tdoce\nmaçã\tdoce\nsal\t\n", encoding="utf-8")
    given["data"] = {"train": {"file": str(tmp_path / "train.tsv"), "text": 0, "label": 1}}
    batch, config, labels_of = first_batch(given)
    factors = batch.extras["multi-label weights"]
    rows = np.array([[name in labels for name in ("doce", "roxo")] for labels in labels_of])
    for column in (0, 1):
        expected = compute_class_weight("balanced", classes=np.array([False, True]), y=rows[:, column])
        assert factors[:, column].tolist() == pytest.approx(expected.tolist())
    network = build_network(config).eval()
    loss, nll = losses(network, batch, Call())["multi-label"]
    right = batch.extras["multi-label"]
    output = network.read("multi-label", network(**batch.inputs, project=False), None, None)
    each = torch.nn.functional.binary_cross_entropy_with_logits(output, right, reduction="none")
    weighed = each * torch.where(right > 0, factors[1], factors[0])
    assert float(nll) == pytest.approx(float(each.sum()) / 2, rel=1e-5)
    assert float(loss) == pytest.approx(float(weighed.sum()) / 2, rel=1e-5) and float(loss) != float(nll)


def test_bad_labels_name_file_and_line(topics: TrainedRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for task, value, line in (
        ("regression", "score", "uva\tmuito\n"),
        ("multi-label-classification", "label", "uva\tfruta||verde\n"),
    ):
        for split in ("train", "valid"):
            Path(f"{split}.tsv").write_text(line, encoding="utf-8")
        fails(DataError, "train.tsv:1", atento.train, recipe(task, {"text": 0, value: 1}), out="run")
    (tmp_path / "more.jsonl").write_text(json.dumps({"text": "uva", "label": ["fruta", "pedra"]}), encoding="utf-8")
    fails(DataError, r"more.jsonl:1: .*'pedra'", atento.evaluate, atento.load(topics.folder), tmp_path / "more.jsonl")
