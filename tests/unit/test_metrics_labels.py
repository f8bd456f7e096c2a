"""Metrics of labels, tags, numbers and probabilities: by hand, constant vectors, and what is refused."""

import warnings

import numpy as np
import pytest

from atento import metrics
from atento.base.errors import UsageError
from atento.metrics.rankings import ndcg, recall
from atento.metrics.tag_schemes import entities
from failing import fails


def test_i4_f1_and_matthews_by_hand_and_of_constant_sides() -> None:
    """Two right of three "yes", one wrongly "yes": precision 2/3, recall 2/3; of "no" 1/2 and 1/2."""
    predicted, right = ["yes", "yes", "yes", "no", "no"], ["yes", "yes", "no", "yes", "no"]
    score = metrics.f1(predicted, right)
    assert score.value == pytest.approx((2 / 3 + 1 / 2) / 2) and score.settings == "average:macro"
    parts = {"f1_macro": 7 / 12, "f1_micro": 3 / 5, "f1_weighted": 3 / 5, "f1[no]": 1 / 2, "f1[yes]": 2 / 3}
    assert score.parts == pytest.approx(parts)
    assert metrics.f1(predicted, right, average="binary", positive="no").value == pytest.approx(1 / 2)
    tp, tn, fp, fn = 2, 1, 1, 1
    expected = (tp * tn - fp * fn) / ((tp + fp) * (tp + fn) * (tn + fp) * (tn + fn)) ** 0.5
    assert metrics.matthews(predicted, right).value == pytest.approx(expected)
    assert str(metrics.matthews(predicted, right)) == f"Matthews {expected:.4f}"
    with warnings.catch_warnings(action="error"):
        score = metrics.matthews(["a", "a"], ["a", "b"])
        assert (score.value, score.settings) == (0.0, "constant:predictions")
        assert score.interval(samples=10) == (0.0, 0.0)
        for metric in (metrics.pearson, metrics.spearman):
            score = metric([1.0, 2.0, 3.0], [0.1, 0.1, 0.1])
            assert (score.value, score.settings) == (0.0, "constant:references")
            assert metric([2, 2], [3, 3]).settings == "constant:predictions,references"
            assert metric([1, 2, 3], [2.0, 4.0, 6.0]).settings == ""
        assert metrics.pearson([1, 2, 3, 4], [1, 3, 2, 4]).interval(samples=50)[1] <= 1  # some samples are constant


def test_pearson_spearman_sets_and_entities_by_hand_and_as_a_table() -> None:
    assert metrics.pearson([1, 2, 3], [1, 2, 4]).value == pytest.approx(1.5 * 2 / (2 * 14 / 3) ** 0.5)
    assert metrics.spearman([1, 2, 3], [1, 2, 400]).value == pytest.approx(1)
    assert metrics.spearman([1, 1, 2], [1, 2, 3]).value == pytest.approx(1.5 / (1.5 * 2) ** 0.5)  # ranks 1.5, 1.5, 3
    assert metrics.spearman([3, 2, 1], [1, 5, 9]).value == pytest.approx(-1)
    predicted, right = [["a", "b"], [], ["c"]], [["b", "a"], ["a"], []]
    assert metrics.subset_accuracy(predicted, right).value == pytest.approx(1 / 3)
    score = metrics.multilabel_f1(predicted, right)
    assert score.value == pytest.approx(2 * 2 / (3 + 3)) and score.settings == "average:micro"
    assert score.parts["f1[a]"] == pytest.approx(2 / 3) and score.parts["f1_macro"] == pytest.approx(5 / 9)
    assert metrics.multilabel_f1([[], []], [[], []]).value == 0  # no label at all
    assert entities(["B-PER", "I-PER", "O", "B-LOC"]) == [("PER", 0, 2), ("LOC", 3, 4)]
    assert entities(["I-PER", "I-PER", "B-PER", "I-LOC"]) == [("PER", 0, 2), ("PER", 2, 3), ("LOC", 3, 4)]
    assert entities(["I-PER", "B-PER"], "IOB2") == [("PER", 1, 2)]  # I after nothing is no entity
    assert entities(["I-PER", "B-PER"], "IOB1") == [("PER", 0, 1), ("PER", 1, 2)]
    assert entities(["S-LOC", "B-PER", "I-PER", "B-PER", "E-PER"], "BIOES") == [("LOC", 0, 1), ("PER", 3, 5)]
    assert entities(["U-LOC", "B-PER", "L-PER"], "BILOU") == entities(["U-LOC", "B-PER", "L-PER"])
    assert entities(["B", "I", "O"]) == [("_", 0, 2)]
    fails(UsageError, r"a tag is O, or a prefix of B, I, E, S, L or U with a type.* got 'PER'", entities, ["PER"])
    fails(UsageError, "IOB2 has the prefixes I, B: got 'S-PER'", entities, ["S-PER"], "IOB2")
    fails(UsageError, "unknown scheme 'IOB'; did you mean", entities, ["O"], "IOB")
    score = metrics.report(["a", "b", "b"], ["a", "b", "c"])
    assert score.value == pytest.approx(2 / 3) and score.name == "accuracy"
    lines = metrics.report_table(score).split("\n")
    assert lines[0].split() == ["precision", "recall", "f1", "support"]
    assert lines[2].split() == ["b", "0.5000", "1.0000", "0.6667", "1"]
    assert lines[4].split() == ["macro", "average", "0.5000", "0.6667", "0.5556", "3"]


def test_entity_f1_and_tag_accuracy_by_hand_with_blank_labels() -> None:
    """One of two entities with its words and type; the other is one word too long."""
    right = [["B-PER", "I-PER", "O"], ["O", "B-LOC"]]
    predicted = [["B-PER", "I-PER", "I-PER"], ["O", "B-LOC"]]
    score = metrics.entity_f1(predicted, right)
    assert score.value == pytest.approx(0.5) and score.settings == "average:micro|scheme:any|mode:conlleval"
    assert (score.parts["f1[LOC]"], score.parts["f1[PER]"], score.parts["support[PER]"]) == (1, 0, 1)
    assert score.per_sentence() == [0, 1]
    assert metrics.tag_accuracy(predicted, right).value == pytest.approx(4 / 5)
    assert metrics.entity_f1([["O"]], [["O"]]).value == 0  # nothing to find
    # as a blank line of a file of references; a blank prediction is a wrong one
    for metric in (metrics.accuracy, metrics.f1, metrics.matthews, metrics.report):
        fails(UsageError, "right label 2 is blank: leave the example out", metric, ["a", "b"], ["a", " "])
        metric(["a", ""], ["a", "b"])
    fails(UsageError, "right label 1 is blank", metrics.calibration_error, [("a", 0.5)], [""])
    assert metrics.multilabel_f1([["a", " "]], [["a"]]).value == 1  # as "a|" in a file


def test_calibration_error_by_hand() -> None:
    """Bin (0.5, 0.6]: 0.55 and 0.6, one right; bin (0.9, 1]: 0.95, right; a probability of 0 is in the first bin."""
    score = metrics.calibration_error([("a", 0.55), ("a", 0.6), ("b", 0.95), ("a", 0.0)], ["a", "b", "b", "b"])
    assert score.value == pytest.approx((abs(1 - 1.15) + 0.05 + 0) / 4)
    assert score.parts == pytest.approx({"maximum": 0.075, "accuracy": 0.5, "confidence": 2.1 / 4})
    assert score.settings == "bins:10" and metrics.METRICS["calibration-error"].better == "lower"
    for number in range(1, 101):  # 0.07 * 100 is a little more than 7
        split = metrics.calibration_error([("a", number / 100), ("a", (number - 0.5) / 100)], ["a", "b"], bins=100)
        assert split.value == pytest.approx(abs(1 - (2 * number - 0.5) / 100) / 2)
    for p in (1.5, -0.1, float("nan")):
        fails(UsageError, "of prediction 1 must lie between 0 and 1: got", metrics.calibration_error, [("a", p)], ["a"])


LABELS = ["a", "b", "c"] * 30


def test_paired_test_of_labels_and_numbers() -> None:
    worse = ["a" if number % 3 else label for number, label in enumerate(LABELS)]
    for metric in ("accuracy", "f1", "matthews"):
        test = metrics.paired_test(metric, LABELS, worse, LABELS, samples=100)
        assert test.difference > 0.3 and test.p_value == pytest.approx(1 / 101)
        assert metrics.paired_test(metric, worse, worse, LABELS, samples=20).p_value == 1
    right = np.arange(60.0)
    noisy = np.random.default_rng(1).permutation(right)
    for metric in ("pearson", "spearman"):
        test = metrics.paired_test(metric, right**2, noisy, right, samples=100)
        assert test.difference > 0.5 and test.p_value == pytest.approx(1 / 101)
        assert f"{test.difference:+.4f}" in str(test)


@pytest.mark.parametrize(
    "name", [name for name, one in metrics.METRICS.items() if one.outputs not in ("texts", "classes")]
)
def test_unequal_lengths_and_nothing_are_refused(name: str) -> None:
    item = {"class sets": ["a"], "tags": ["O"], "answers": "a", "numbers": 1.0, "probabilities": ("a", 0.5)}
    item["vector pairs"] = ("a", 0.5)
    item["rankings"] = 1.0
    value = item[metrics.METRICS[name].outputs]
    right = {"probabilities": "a", "rankings": ("query", "document", 1.0)}.get(metrics.METRICS[name].outputs, value)
    said = r"needs its (reference|score): got 2 (predictions|scores) and 3 (references|documents)"
    fails(UsageError, said, metrics.METRICS[name].score, [value] * 2, [right] * 3)
    said = r"there is nothing to score: got 0|needs at least 2 examples: got 0"
    fails(UsageError, said, metrics.METRICS[name].score, [], [])


def test_what_is_refused_and_arrays_of_labels_are_lists_of_labels() -> None:
    a = ["a"]
    for metric, predicted, right, options, said in (
        (metrics.f1, a, a, {"average": "mean"}, "unknown average 'mean'.* Known: binary, macro, micro, weighted"),
        (metrics.f1, a, a, {"average": "binary"}, "'binary' needs the label to score: give `positive`"),
        (metrics.f1, a, a, {"average": "binary", "positive": "x"}, "`positive` is not among the labels.* got 'x'"),
        (metrics.f1, a, a, {"positive": "a"}, "`positive` is for the average 'binary': got 'a' with 'macro'"),
        (metrics.f1, a, [["a"], ["b"]], {}, "each example has one right label: got 2 reference sets"),
        (metrics.subset_accuracy, a, [a], {}, "each example has a list of labels: got the string 'a'"),
        (metrics.subset_accuracy, [a], [[1.5]], {}, "labels must be strings, whole numbers, or .* False: got 1.5"),
        (metrics.accuracy, ["a", 0.5], ["a", "b"], {}, "labels must be strings, whole numbers, or .* False: got 0.5"),
        (metrics.matthews, a, [None], {}, "labels must be strings, whole numbers, or True and False: got None"),
        (metrics.entity_f1, [["O", "O"]], [["O"]], {}, "sentence 1: each word needs its tag: got 2 tags for 1"),
        (metrics.entity_f1, ["O"], [["O"]], {}, "a sentence is a list of tags, which are strings: got 'O'"),
        (metrics.tag_accuracy, [[]], [[]], {}, "the sentences have 0 words"),
        (metrics.pearson, [1, 2], [1, float("nan")], {}, "reference 2 must be a finite number: got nan"),
        (metrics.spearman, [1, "2"], [1, 2], {}, "prediction 2 must be a finite number: got '2'"),
        (metrics.calibration_error, [("a", 1)], a, {"bins": 0}, "`bins` must be at least 1: got 0"),
    ):
        fails(UsageError, said, metric, predicted, right, **options)
    predictions, references = np.array(["a", "b", "a", "b"]), np.array(["a", "b", "b", "b"])
    assert metrics.accuracy(predictions, references).value == 0.75  # type: ignore[arg-type]
    assert metrics.f1(predictions, references).value == metrics.f1(predictions.tolist(), references.tolist()).value  # type: ignore[arg-type]


@pytest.mark.parametrize("k", [0, -1])
def test_a_ranking_is_scored_from_its_first_document_on(k: int) -> None:
    judged = [("q", "a", 1.0), ("q", "b", 0.0)]
    for metric in (ndcg, recall):
        assert metric([0.2, 0.9], judged, k=2).value > 0
        fails(UsageError, f"`k` must be at least 1: got {k}", metric, [0.2, 0.9], judged, k=k)
