"""Texts longer than a network reads at once: windows in training and in use, cuts in the middle, refusals."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import atento
from atento.base.errors import CapabilityError, DataError, RecipeError, UsageError
from atento.config.reading.loading import load_recipe
from atento.config.sections.long_texts import LongTextConfig
from atento.data.batches.contexts import cut_text, cut_windows
from atento.networks.heads import TextWindows, pool_windows
from atento.runs.prepare import network_for, read_data
from atento.runs.run_tokenizer import tokenizer_for
from atento.runs.train import TrainedRun
from atento.tasks.split_evaluation import held_out_batches
from conftest import ForkServer
from failing import fails
from runs import events
from test_classification import TRAINING

NETWORK = {"preset": "bert-tiny", "n_layers": 1, "d_model": 32, "d_ff": 64, "n_heads": 2, "dropout": 0.0, "max_len": 32}
FILLER = "e assim foi o dia todo na casa da serra onde nada mais se disse"


def records() -> list[tuple[str, str]]:
    """Long texts whose label is that of a word at their end, or for every second text in their middle."""
    pairs = [("gato", "animal"), ("lobo", "animal"), ("uva", "fruta"), ("figo", "fruta")]
    texts = []
    for number in range(24):
        word, label = pairs[number % 4]
        before, after = (FILLER, "") if number % 2 else (f"{FILLER} {FILLER}", FILLER)
        texts.append((f"{before} {word} {after}".strip(), label))
    return texts


def recipe(**data: Any) -> dict[str, Any]:
    sources = {name: {"memory": name} for name in ("train", "valid")}
    given = {"task": "classification", "tokenizer": {"kind": "word", "vocab_size": 100}, "network": NETWORK}
    given["training"] = {**TRAINING, "steps": 60, "baseline": False}
    return given | {"data": {**sources, "max_len": 10, "stride": 2, **data}}


def of_pairs(steps: int, **data: Any) -> dict[str, Any]:
    """A recipe of vectors, for `PAIRS`."""
    settings = recipe(**data) | {"task": "embedding"}
    del settings["data"]["valid"], settings["data"]["stride"]
    return settings | {"training": settings["training"] | {"steps": steps}}


DATA = {"train": records(), "valid": records()}
PAIRS = {"train": [(text, other) for (text, _), (other, _) in zip(records(), records()[1:])]}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> TrainedRun:
    return atento.train(recipe(windows="max"), data=DATA, out=tmp_path_factory.mktemp("long") / "run", threads=1)


def test_windows_cover_a_text_and_a_cut_text_keeps_its_ends() -> None:
    ids = list(range(23))
    windows = cut_windows(ids, 8, LongTextConfig("mean", stride=3))
    assert [list(one) for one in windows] == [ids[0:8], ids[5:13], ids[10:18], ids[15:23]]
    assert [list(one) for one in cut_windows(ids, 8, LongTextConfig("first-last"))] == [ids[:8], ids[15:]]
    assert cut_windows(ids[:8], 8, LongTextConfig("mean")) == [ids[:8]] and cut_windows([], 8, LongTextConfig("max"))
    wide = cut_windows(ids, 8, LongTextConfig("mean", stride=100))
    assert [one[0] for one in wide] == [0, 4, 8, 12, 16]  # half of a window at most
    fails(DataError, "room for a token beside the special ones: got 0", cut_windows, ids, 0, LongTextConfig("mean"))
    both = LongTextConfig(head_tail=True)
    assert cut_text(range(20), None, 8, "right", both) == ([0, 1, 14, 15, 16, 17, 18, 19], None, 12)
    assert cut_text(range(8), None, 8, "right", both) == (list(range(8)), None, 0)
    assert cut_text(range(20), [1, 2], 8, "right", both)[0] == list(range(6))  # a pair is cut as ever
    assert cut_text(range(20), None, 3, "right", both)[0] == [17, 18, 19]


@pytest.mark.parametrize("pooling", ["mean", "max", "attention", "first-last"])
def test_windows_are_pooled_text_by_text(pooling: Any) -> None:
    torch.manual_seed(1)
    vectors, query, texts = torch.randn(6, 5), torch.randn(5), [0, 0, 0, 1, 2, 2]
    pooled = pool_windows(TextWindows(pooling, torch.tensor(texts)), vectors, query if pooling == "attention" else None)
    for number in range(3):
        own = vectors[[text == number for text in texts]]
        weights = {"attention": torch.softmax(own @ query, 0)}.get(pooling, torch.full((len(own),), 1 / len(own)))
        torch.testing.assert_close(pooled[number], own.amax(0) if pooling == "max" else (weights[:, None] * own).sum(0))


@pytest.mark.parametrize("windows", ["mean", "max", "attention", "first-last"])
def test_training_and_use_give_a_text_the_same_loss(windows: str, tmp_path: Path) -> None:
    """The loss of a validation, by batches, is that of the probabilities of use, one text at a time."""
    settings = recipe(windows=windows) | {"training": {**TRAINING, "steps": 2, "baseline": False}}
    atento.train(settings, data=DATA, out=tmp_path / "run", threads=1)
    model = atento.load(tmp_path / "run")
    assert model.config["long_texts"] == {"windows": windows, "stride": 2, "head_tail": False}
    every = [{one.name: one.probability for one in model.classifications([text])[0]} for text, _ in DATA["valid"]]
    shares = [found[label] for found, (_, label) in zip(every, DATA["valid"])]
    assert -np.log(shares).mean() == pytest.approx(events(tmp_path / "run", "valid")[-1]["nll"], rel=1e-4)
    together = [labels[0].probability for labels in model.classifications([text for text, _ in DATA["valid"]])]
    assert together == pytest.approx([model.classify(text).probability for text, _ in DATA["valid"]], abs=1e-5)


def test_words_beyond_the_first_window_are_learned_and_used(run: TrainedRun, tmp_path: Path) -> None:
    assert run.best == 1.0
    model = atento.load(run.folder)
    saved = atento.load(model.save(tmp_path / "saved"))
    other = atento.load(model.save(tmp_path / "theirs", layout="huggingface"))
    text = f"{FILLER} {FILLER} uva {FILLER}"
    assert [one.classify(text).name for one in (model, saved, other)] == ["fruta"] * 3
    assert model.classify(text).probability == pytest.approx(other.classify(text).probability, abs=1e-5)
    vectors = model.features([text, "uva"], pooling="mean")
    embedded = model.embed([text, "uva"])
    assert vectors.shape == embedded.shape == (2, 32) and np.allclose(vectors, embedded, atol=1e-5)
    assert not np.allclose(embedded[0], model.embed(text.replace("uva", "lobo")), atol=1e-3)
    assert [len(one) for one in model.features(["uva"])] == [3]


def test_all_windows_of_a_text_are_in_one_batch() -> None:
    loaded = load_recipe(recipe(windows="mean"), memory=DATA)
    data = read_data(loaded.recipe, loaded.folder, print, DATA)
    tokenizer = tokenizer_for(loaded.recipe, loaded.home, data.train.texts(("text",)), print)
    batches = held_out_batches(loaded.recipe, network_for(loaded.recipe, tokenizer, data.train), tokenizer, data.train)
    (part,) = list(batches.in_order(10_000))
    texts = part.extras["ids texts"]
    assert len(part.inputs["ids"]) == len(texts) > len(part.labels["classification"]) == 24
    assert max(part.lengths["ids"]) == 10 and texts.tolist() == sorted(texts.tolist())
    first = next(part.examples())
    assert len(first["ids"]) == int(part.lengths["ids"][texts == 0].sum()) and len(first["labels"]) == 1


def test_the_middle_is_left_out_where_the_recipe_says_so(tmp_path: Path) -> None:
    ends = records()[1::2]  # those whose word is at the end
    atento.train(recipe(truncate="head-tail"), data={"train": ends, "valid": ends}, out=tmp_path / "run", threads=1)
    model = atento.load(tmp_path / "run")
    with pytest.warns(match="1 of 1 text cut to 10 tokens"):
        end = model.classify(f"{FILLER} {FILLER} figo")
    with pytest.warns(match="cut to 10 tokens"):
        assert end.name == "fruta" and model.classify(f"{FILLER} {FILLER} lobo").name == "animal"


def test_pairs_for_vectors_have_windows_on_both_sides(tmp_path: Path) -> None:
    pairs = [(f"{FILLER} {word} {FILLER}", f"{word} {FILLER}") for word, _ in zip("abcdefgh", range(8))]
    settings = recipe(windows="mean") | {"task": "embedding", "training": {**TRAINING, "steps": 3, "baseline": False}}
    settings["embedding"] = {"normalize": True}
    atento.train(settings, data={"train": pairs, "valid": pairs}, out=tmp_path / "run", threads=1)
    model = atento.load(tmp_path / "run")
    both, short = model.embed([pairs[0][0], "a"])
    assert np.linalg.norm(both) == pytest.approx(1, abs=1e-5) and np.allclose(short, model.embed("a"), atol=1e-5)
    assert atento.evaluate(model, pairs)["mrr"].value == pytest.approx(events(tmp_path / "run", "valid")[-1]["mrr"])


def test_vectors_of_a_frozen_network_are_those_of_texts(run: TrainedRun, tmp_path: Path) -> None:
    pytest.importorskip("sklearn")
    head = {"model": str(run.folder), "train": "head", "classifier": {"kind": "logistic", "pooling": "mean"}}
    settings = {name: value for name, value in recipe(windows="max").items() if name in ("task", "data")}
    settings |= {"init": head, "training": {"baseline": False}}
    done = atento.train(settings, data=DATA, out=tmp_path / "head", threads=1)
    model = atento.load(tmp_path / "head")
    right = [model.classify(text).name == label for text, label in DATA["valid"]]
    assert done.best == pytest.approx(np.mean(right)) and done.best > 0.9


def test_verbs_read_all_windows_and_an_explanation_one(run: TrainedRun, server: ForkServer, tmp_path: Path) -> None:
    done = server.run("classify", str(run.folder), cwd=tmp_path, stdin=f"{FILLER} {FILLER} lobo {FILLER}\nuva\n")
    assert [line.split("\t")[0] for line in done.stdout.splitlines()] == ["animal", "fruta"], done.stderr
    verbs = pytest.importorskip("atento_serve.engine.verbs")
    model, text = atento.load(run.folder), f"{FILLER} {FILLER} uva"
    (within,), count = verbs.fitted(model, "classify", [text], 512, "error")
    assert within == text and count > 10 and verbs.values_of(model, "classify", [text], {})[0][0]["name"] == "fruta"
    with pytest.raises(verbs.TooLong):
        verbs.fitted(model, "classify", [text * 20], 512, "error")
    assert model.explain("uva").target == "fruta"
    with pytest.raises(CapabilityError, match="an explanation is of one window: got a text of 31 tokens, and a window"):
        model.explain(text)


@pytest.mark.parametrize(
    ("keys", "sentence"),
    [
        ("windows: mean\n  stride: 0", r"mine.yaml:6:11: `data.stride` is the tokens that neighbouring windows share"),
        ("windows: mean\n  truncate: head-tail", r"`data.truncate` head-tail .* `data.windows` mean reads whole"),
        ("windows: median", r"mine.yaml:5:12: .*windows.*median"),
    ],
)
def test_keys_that_are_refused(tmp_path: Path, keys: str, sentence: str) -> None:
    text = f"task: classification\n# a comment\ndata:\n  train: {{file: a.tsv, text: 0, label: 1}}\n  {keys}\n"
    (tmp_path / "mine.yaml").write_text(text, encoding="utf-8")
    fails(RecipeError, sentence, load_recipe, tmp_path / "mine.yaml")


def test_tasks_and_records_that_have_no_windows(tmp_path: Path) -> None:
    def loaded(task: str, **keys: Any) -> Any:
        data = {"train": {"memory": "train"}, **keys.pop("data")}
        return load_recipe({"task": task, "data": data, **keys}, memory=["train"])

    with pytest.raises(RecipeError, match="head-tail is for texts that get labels, numbers or vectors: got task trans"):
        loaded("translation", data={"truncate": "head-tail"})
    with pytest.raises(RecipeError, match=r"data.windows attention weighs windows in a head, and task embedding has"):
        loaded("embedding", data={"windows": "attention"})
    for prompt in ({"prompt": "query: "}, {"prompts": {"query": "query: "}}):
        with pytest.raises(RecipeError, match=r"data.windows has no place for a prompt of embedding"):
            loaded("embedding", data={"windows": "mean"}, embedding=prompt)
    assert any("data.windows has no effect" in line for line in loaded("tagging", data={"windows": "mean"}).warnings)
    pairs = {"train": [("um", "dois", "a"), ("três", "quatro", "b")]}
    for key, value, said in (("windows", "mean", "windows` are"), ("truncate", "head-tail", "truncate: head-tail` is")):
        with pytest.raises(RecipeError, match="windows and head-tail are of single texts, and task ranking"):
            loaded("ranking", data={key: value})
        settings = recipe(**{key: value})
        del settings["data"]["valid"]
        with pytest.raises(DataError, match=f"`data.{said} of single texts, and the records have a `pair`"):
            atento.train(settings, data=pairs, out=tmp_path / "run")
    words = recipe(windows="mean") | {"network": {"architecture": "elmo", "d_model": 16, "n_layers": 1, "elmo": {}}}
    with pytest.raises(CapabilityError, match="a network that reads words has no windows"):
        atento.train(words, data=DATA, out=tmp_path / "words")


def test_numbers_of_long_texts_are_learned_and_given(tmp_path: Path) -> None:
    numbers = {name: [(text, float(label == "animal")) for text, label in rows] for name, rows in DATA.items()}
    settings = recipe(windows="max") | {"task": "regression"}
    model = atento.load(atento.train(settings, data=numbers, out=tmp_path / "run", threads=1).folder)
    given = np.array(model.similarity([text for text, _ in records()], None))
    right = np.array([number for _, number in numbers["train"]])
    assert np.abs(given - right).mean() < 0.35 and np.corrcoef(given, right)[0, 1] > 0.7


def test_vectors_are_of_the_parts_that_training_read(tmp_path: Path) -> None:
    """With head-tail the end of a long text and its beginning; no text has a matrix without rows."""
    settings = of_pairs(60)
    words, models = FILLER.split(), []
    middle = [" ".join([*words[:4], word, *words[4:]]) for word in ("gato", "uva")]
    ends = [f"{word} {FILLER} {word}" for word in ("gato", "uva")]
    for truncate in ("none", "head-tail"):  # cut at its end in training, a text is read whole
        settings["data"]["truncate"] = truncate
        run = atento.train(settings, data=PAIRS, out=tmp_path / truncate, threads=1)
        models.append(atento.load(run.folder))
        value = models[-1].explain((ends[0], middle[0])).value
        assert value == pytest.approx(models[-1].similarity(ends[0], middle[0]), abs=1e-5)
    for verb in (models[1].embed, lambda texts: models[1].features(texts, pooling="mean")):
        (one, two), (three, four) = verb(middle), verb(ends)
        assert np.array_equal(one, two) and not np.allclose(three, four) and verb([]).shape == (0, 32)


def test_a_prompt_has_no_place_before_windows(tmp_path: Path) -> None:
    """Not one of the model that training begins with, nor one of a call."""
    settings = of_pairs(1) | {"embedding": {"prompts": {"query": "e assim "}, "field_prompts": {"text": "query"}}}
    begun = atento.train(settings, data=PAIRS, out=tmp_path / "begun", threads=1).folder
    later = {"task": "embedding", "data": {"train": {"memory": "train"}, "max_len": 10, "windows": "mean"}}
    with pytest.raises(UsageError, match=r"data.windows has no place for a prompt of embedding, .* got those of"):
        atento.train(later | {"init": str(begun)}, data=PAIRS, out=tmp_path / "later")
    run = atento.train(of_pairs(1, windows="mean"), data=PAIRS, out=tmp_path / "plain", threads=1).folder
    fails(UsageError, r"data.windows has no place for a prompt", atento.load(run).embed, "a casa", prompt="e assim ")
