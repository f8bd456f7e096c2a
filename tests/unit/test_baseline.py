"""Simple learners beside hand-computed outputs, and how a final score is compared with them."""

import json
import math
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from atento.base.errors import MissingPartError, RecipeError
from atento.config.reading.loading import load_recipe
from atento.data.records.splits import Split
from atento.metrics import bleu
from atento.runs.baseline_learners import LEARNERS, learners_of
from atento.runs.baseline_scores import Baseline, baseline, baseline_of, compared
from atento.runs.prepare import Data
from atento_cli.main import application
from failing import fails

TRAIN = [("um filme bom", "pos"), ("muito bom", "pos"), ("bom e belo", "pos"), ("um filme mau", "neg"), ("mau", "neg")]
VALID = [("que filme bom", "pos"), ("mau dia", "neg"), ("muito mau", "neg")]


def split(**columns: list[Any]) -> Split:
    return Split(columns, "")


def of(outputs: Any, name: str, train: Split, valid: Split) -> Any:
    (learner,) = [one for one in LEARNERS[outputs] if one.name == name]
    return learner.fit(train)(valid)


def fitted(task: str, train: list[Any], valid: list[Any], **keys: Any) -> Baseline:
    data = {"train": train, "valid": valid}
    return baseline({"task": task, "data": {name: {"memory": name} for name in data}, **keys}, data=data)


def test_labels_sets_and_numbers_by_tf_idf_overlap_and_ridge() -> None:
    train = split(text=["a b c", "a b"], pair=["a b d", "c d"], score=[1.0, 0.0])
    assert of("numbers", "overlap of words", train, train) == [2 / 4, 0.0]
    pytest.importorskip("sklearn")
    result = fitted("classification", TRAIN, VALID, metrics=["accuracy", "f1"])
    assert result.scores["valid"]["majority"]["accuracy"].value == pytest.approx(1 / 3)
    name, best = result.best("valid")
    assert name == "TF-IDF, logistic regression" and best["accuracy"].value == 1
    low, high = best["f1"].interval()
    assert result.to_dict()["scores"]["valid"][name]["f1"]["interval"] == [low, high]
    assert f"valid: {name}: accuracy 1.0000 [1.0000, 1.0000]" in str(result)
    train = [{"text": text, "label": [label] if label == "pos" else []} for text, label in TRAIN]
    valid = [{"text": text, "label": [label] if label == "pos" else []} for text, label in VALID]
    assert fitted("multi-label-classification", train, valid).best("valid")[1]["subset-accuracy"].value == 1
    pairs = [(f"a {x} b", f"{y} a", "same" if x == y else "other") for x in "cdefg" for y in "cdefg"]
    scores = fitted("classification", pairs, pairs).scores["valid"]
    assert scores["majority"]["accuracy"].value == 20 / 25
    assert scores["TF-IDF, logistic regression"]["accuracy"].value == 1  # the words of either text alone say nothing
    single = split(text=[f"{word} x" for word in "abcd" * 5], score=[1.0, 2.0, 3.0, 4.0] * 5)
    predicted = of("numbers", "TF-IDF, ridge regression", single, single)
    assert sorted(predicted[:4]) == predicted[:4]
    overlap, _ = LEARNERS["numbers"]
    assert not overlap.applies(single)


def test_documents_by_overlap_and_bm25() -> None:
    """By hand: of two documents one has the word, which is rare by log 2; both kinds of records; no scikit-learn."""
    train = split(query=["q", "q"], document=["a b", "b c c"], grade=[1.0, 0.0])
    one = split(query=["A x", "c"], positive=["a b", "c d"], negative=["b c c", "d"])
    assert of("rankings", "overlap of words", train, one) == [1 / 3, 0, 1 / 2, 0]
    times = 2 * 2.2 / (2 + 1.2 * (0.25 + 0.75 * 3 / 2.5))  # of a word that a document of three words has twice
    twice = split(query=["c"], positive=["b c c"], negative=["e"])
    assert of("rankings", "BM25", train, twice) == pytest.approx([math.log(2) * times, 0])
    assert of("rankings", "BM25", train, one)[0] == pytest.approx(math.log(2) * 2.2 / (1 + 1.2 * 0.85))
    rows = [(word, f"{word} {other}", int(other == "x")) for word in ("cat", "dog") for other in "xyz"]
    result = fitted("ranking", rows, [("cat", "the cat", 1), ("cat", "a dog", 0)])
    assert result.missing == "" and list(result.scores["valid"]) == ["overlap of words", "BM25"]
    assert result.best("valid")[1]["ndcg@10"].value == 1


def test_the_most_frequent_tag_and_the_words_nearest_to_a_question() -> None:
    train = split(tokens=[("a", "casa"), ("a", "A")], tags=[("DET", "NOUN"), ("DET", "X")])
    again = split(tokens=[("casa", "nova", "A")], tags=[("NOUN", "ADJ", "X")])
    assert of("tags", "most frequent tag of a word", train, again) == [["NOUN", "DET", "X"]]
    context = "Lisbon is old. The river Tejo flows into the Atlantic. Trams run."
    train = split(question=["Where?"], context=[context], answers=[()])
    asked = split(question=["Which river flows into the Atlantic?"], context=[context], answers=[()])
    assert of("answers", "overlap of words", train, asked) == ["Tejo"]
    assert of("answers", "no answer", train, asked) == [""]
    answered = split(question=["Who?"], context=[context], answers=[("x",)])
    assert [one.applies(answered) for one in LEARNERS["answers"]] == [False, True]


def test_a_copy_of_the_source_without_its_prefix() -> None:
    texts = [("a b c d e f g h", "a b c"), ("i j k l m n o p", "i j k")]
    pairs = split(source=["pt: " + source for source, _ in texts], target=[target for _, target in texts])
    _, copy, first = learners_of("texts", ("pt: ", "pt"))
    assert copy.fit(pairs)(pairs) == [source for source, _ in texts]
    assert first.applies(pairs) and first.fit(pairs)(pairs) == [target for _, target in texts]
    recipe = {"task": "translation", "data": {name: {"memory": name} for name in ("train", "valid")}}
    scores = baseline(recipe, data={"train": texts, "valid": texts}).scores["valid"]
    expected = bleu([source for source, _ in texts], [target for _, target in texts])
    assert scores["copy of the source"]["bleu"].value == pytest.approx(expected.value)
    repeated = split(source=["x"] * 5, target=["yes", "no", "yes", "yes", "yes"])
    applying = [learner.name for learner in learners_of("texts", ()) if learner.applies(repeated)]
    assert applying == ["majority", "copy of the source"]


def test_pairs_have_learners_other_fields_none_and_who_does_not_beat_one_is_told() -> None:
    # those of a task of a program's own (found: a crash at the end of its training, of one kind of outputs)
    other = Split({"words": ["a b", "b a"], "order": ["0 1", "1 0"]}, "own")
    for outputs in (*LEARNERS, "texts"):
        assert learners_of(outputs, ()) and not any(one.applies(other) for one in learners_of(outputs, ())), outputs
    pairs = Split({"source": ["a b"], "target": ["b a"]}, "usual")
    assert "copy of the source" in [one.name for one in learners_of("texts", ()) if one.applies(pairs)]
    result = fitted("classification", TRAIN, VALID)
    learner, scores = result.best("valid")
    (line,) = compared(result, "valid", {"accuracy": 1.5})
    assert line.startswith("baseline on valid: accuracy ") and line.endswith(f"({learner}), the model 1.5000")
    assert "does not beat the baseline" in compared(result, "valid", {"accuracy": scores["accuracy"].value})[1]
    recipe = load_recipe({"task": "translation", "data": {"train": {"memory": "train"}}}, memory=["train"]).recipe
    train = split(source=["ab"] * 100, target=["c"] * 90 + ["d"] * 10)
    part = baseline_of(recipe, Data(train, train, None, ""), most=30)
    assert part.scores["valid"]["copy of the source"]["bleu"].value == 0
    pytest.importorskip("sklearn")
    pairs = [("gato preto", "o gato dorme"), ("casa velha", "uma casa"), ("rio largo", "no rio")]
    assert fitted("embedding", pairs, pairs).best("valid")[1]["mrr"].value == 1


def test_recipes_without_a_baseline(tmp_path: Path) -> None:
    (tmp_path / "a.tsv").write_text("text\tlabel\nx\ta\ny\tb\n", encoding="utf-8")
    for task, source, said in (
        ("language-modeling", "a.txt", r"mine.yaml:1:7: task language-modeling has no simple"),
        ("classification", "{file: a.tsv, text: text, label: label}", r"mine.yaml:1:7: .* no data"),
    ):
        (tmp_path / "mine.yaml").write_text(f"task: {task}\ndata: {{train: {source}}}\n", encoding="utf-8")
        fails(RecipeError, said, baseline, tmp_path / "mine.yaml")


def test_without_scikit_learn_the_others_are_scored(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("sklearn.feature_extraction.text", "sklearn.linear_model"):
        monkeypatch.setitem(sys.modules, name, None)
    result = fitted("classification", TRAIN, VALID)
    assert list(result.scores["valid"]) == ["majority"]
    assert result.missing.startswith("TF-IDF, logistic regression is left out: TF-IDF with a linear model needs sci")
    assert "pip install -e '.[eval]'" in result.missing
    fails(MissingPartError, "needs scikit-learn", fitted, "embedding", [("a", "b"), ("c", "d")], [("a", "b")])


def test_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name, records in (("train", TRAIN), ("valid", VALID)):
        text = "".join(f"{text}\t{label}\n" for text, label in records)
        Path(f"{name}.tsv").write_text(text, encoding="utf-8")
    sources = {name: {"file": f"{name}.tsv", "text": 0, "label": 1} for name in ("train", "valid")}
    Path("mine.yaml").write_text(json.dumps({"task": "classification", "data": sources}), encoding="utf-8")
    done = CliRunner().invoke(application("baseline"), ["baseline", "mine.yaml", "--json"])
    record = json.loads(done.stdout)
    assert done.exit_code == 0 and record["task"] == "classification"
    assert record["scores"]["valid"]["majority"]["accuracy"]["value"] == pytest.approx(1 / 3)
    shown = CliRunner().invoke(application("baseline"), ["baseline", "mine.yaml"]).stdout
    assert shown.startswith("valid: majority: accuracy 0.3333 [")
