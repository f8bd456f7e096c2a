"""Metrics of labels and numbers beside scikit-learn and scipy: random data, ties, absent classes, constant vectors."""

import warnings
from functools import partial
from typing import Any

import numpy as np
import pandas
import pytest
import torch
from scipy import stats
from sklearn import metrics as sklearn
from sklearn.calibration import calibration_curve

from atento import metrics
from atento.metrics import (
    METRICS,
    Score,
    accuracy,
    f1,
    matthews,
    multilabel_f1,
    pearson,
    report,
    report_table,
    spearman,
)

GENERATOR = np.random.default_rng(3)


def labels(number: int, classes: str, absent: str = "") -> list[str]:
    return [str(label) for label in GENERATOR.choice([name for name in classes if name not in absent], number)]


CLASSES = {
    "two": (labels(200, "01"), labels(200, "01")),
    "five": (labels(300, "abcde"), labels(300, "abcde")),
    "one is never predicted": (labels(300, "abcde", "b"), labels(300, "abcde")),
    "one is never right": (labels(300, "abcde"), labels(300, "abcde", "e")),
    "nothing in common": (labels(40, "ab"), labels(40, "cd")),
    "constant predictions": (["a"] * 50, labels(50, "abc")),
    "constant on both sides": (["a"] * 50, ["a"] * 50),
    "one example": (["a"], ["b"]),
}


@pytest.mark.parametrize("name", CLASSES)
def test_classes_equal_scikit_learn(name: str) -> None:
    predicted, right = CLASSES[name]
    assert accuracy(predicted, right).value == pytest.approx(sklearn.accuracy_score(right, predicted), abs=1e-12)
    with warnings.catch_warnings(action="ignore"):  # scikit-learn's, of one label alone
        expected = sklearn.matthews_corrcoef(right, predicted)
    assert matthews(predicted, right).value == pytest.approx(expected, abs=1e-12)
    for average in ("macro", "micro", "weighted"):
        expected = sklearn.f1_score(right, predicted, average=average, zero_division=0)
        score = f1(predicted, right, average=average)
        assert score.value == pytest.approx(expected, abs=1e-12)
        assert f1(predicted, right).parts[f"f1_{average}"] == score.value
    expected = sklearn.classification_report(right, predicted, output_dict=True, zero_division=0)
    parts = report(predicted, right).parts
    for label in {*predicted, *right}:
        for side, theirs in (("precision",) * 2, ("recall",) * 2, ("f1", "f1-score"), ("support",) * 2):
            assert parts[f"{side}[{label}]"] == pytest.approx(expected[label][theirs], abs=1e-12)
    for average in ("macro", "weighted"):
        for side, theirs in (("precision",) * 2, ("recall",) * 2, ("f1", "f1-score")):
            assert parts[f"{side}_{average}"] == pytest.approx(expected[f"{average} avg"][theirs], abs=1e-12)


def test_binary_f1_is_that_of_the_positive_label() -> None:
    predicted, right = CLASSES["two"]
    for positive in "01":
        expected = sklearn.f1_score(right, predicted, pos_label=positive)
        assert f1(predicted, right, average="binary", positive=positive).value == pytest.approx(expected)
        assert f1(predicted, right).parts[f"f1[{positive}]"] == pytest.approx(expected)


def test_the_table_of_a_report_has_the_numbers_of_scikit_learns() -> None:
    predicted, right = CLASSES["five"]
    theirs = sklearn.classification_report(right, predicted, digits=4, zero_division=0).split("\n")
    ours = report_table(report(predicted, right)).split("\n")
    for label in "abcde":
        (expected,) = [line.split() for line in theirs if line.split()[:1] == [label]]
        assert expected in [line.split() for line in ours]


def test_sets_of_labels_equal_scikit_learn() -> None:
    names = np.array(list("abcde"))
    ours, theirs = GENERATOR.random((2, 200, 5)) < 0.3
    predicted, right = ([names[row].tolist() for row in side] for side in (ours, theirs))
    assert metrics.subset_accuracy(predicted, right).value == pytest.approx(sklearn.accuracy_score(theirs, ours))
    for average in ("micro", "macro", "weighted"):
        expected = sklearn.f1_score(theirs, ours, average=average, zero_division=0)
        assert multilabel_f1(predicted, right, average=average).value == pytest.approx(expected, abs=1e-12)
    table = sklearn.classification_report(theirs, ours, target_names=names, digits=4, zero_division=0)
    rows = [line.split() for line in table.replace(" avg", " average").split("\n") if line and "samples" not in line]
    found = [line.split() for line in report_table(METRICS["multilabel-report"].score(predicted, right)).split("\n")]
    assert sorted(found[1:]) == sorted(rows[1:])


NUMBERS = {
    "normal": GENERATOR.normal(size=(2, 300)),
    "near": (lambda x: (x, x + GENERATOR.normal(size=200) / 10))(GENERATOR.normal(size=200)),
    "ties": GENERATOR.integers(0, 5, size=(2, 300)) / 5,
    "far from zero": GENERATOR.normal(size=(2, 100)) + 1e6,
    "large and small": (GENERATOR.normal(size=100) * 1e150, GENERATOR.normal(size=100) * 1e-150),
    "two examples": (np.array([1.0, 2.0]), np.array([5.0, 3.0])),
}


@pytest.mark.parametrize("name", NUMBERS)
def test_correlations_equal_scipy(name: str) -> None:
    x, y = NUMBERS[name]
    tolerance = 1e-9 if name == "far from zero" else 1e-12
    assert pearson(x, y).value == pytest.approx(stats.pearsonr(x, y).statistic, abs=tolerance)
    assert spearman(x.tolist(), y.tolist()).value == pytest.approx(stats.spearmanr(x, y).statistic, abs=1e-12)


def bootstrapped(score: Score, number: int, value: Any, samples: int = 60, seed: int = 5) -> None:
    """The interval is that of the same draws, scored one by one by the other library."""
    drawn = np.random.default_rng(seed).choice(number, size=(samples, number), replace=True)
    low, high = np.quantile([value(row) for row in drawn], [0.1, 0.9])
    assert score.interval(level=0.8, samples=samples, seed=seed) == pytest.approx((low, high), abs=1e-9)


def test_intervals_are_those_of_a_plain_bootstrap() -> None:
    predicted, right = (np.array(side) for side in CLASSES["five"])
    theirs = partial(sklearn.f1_score, average="macro")
    bootstrapped(f1(predicted.tolist(), right.tolist()), 300, lambda row: theirs(right[row], predicted[row]))
    theirs = sklearn.matthews_corrcoef
    bootstrapped(matthews(predicted.tolist(), right.tolist()), 300, lambda row: theirs(right[row], predicted[row]))
    x, y = NUMBERS["ties"]
    bootstrapped(pearson(x, y), 300, lambda row: stats.pearsonr(x[row], y[row]).statistic)
    bootstrapped(spearman(x, y), 300, lambda row: stats.spearmanr(x[row], y[row]).statistic)


def test_calibration_error_by_scikit_learns_bins() -> None:
    """In two classes the bins of `calibration_curve` and the sizes of the bins give the error."""
    confidence = GENERATOR.random(500) * 0.98 + 0.01
    right = GENERATOR.random(500) < confidence**2
    predicted = [("yes", float(share)) for share in confidence]
    rates, means = calibration_curve(right, confidence, n_bins=10)
    sizes = np.histogram(confidence, bins=10, range=(0, 1))[0]
    score = metrics.calibration_error(predicted, ["yes" if hit else "no" for hit in right])
    assert score.value == pytest.approx(float((np.abs(rates - means) * sizes).sum() / 500))
    assert score.parts["maximum"] == pytest.approx(float(np.abs(rates - means).max()))


def _forms() -> dict[str, tuple[Any, Any]]:
    """Labels as users of scikit-learn pass them, of 60 examples."""
    ours, theirs = GENERATOR.integers(0, 4, 60), GENERATOR.integers(0, 4, 60)
    shuffled = GENERATOR.permutation(60) + 100  # an index without 0, as train_test_split leaves
    return {
        "whole numbers": (ours.tolist(), theirs.tolist()),
        "an array": (ours, theirs),
        "a series": (pandas.Series(ours, index=shuffled), pandas.Series(theirs, index=shuffled)),
        "a tensor": (torch.tensor(ours), torch.tensor(theirs)),
        "negative numbers": ((ours - 2).tolist(), (theirs - 2).tolist()),
        "booleans": ((ours > 1).tolist(), (theirs > 1).tolist()),
        "an array of booleans": (ours > 1, theirs > 1),
        "booleans beside numbers": ((ours > 1).tolist(), (theirs > 1).astype(int).tolist()),
        "an array of strings": (ours.astype(str), theirs.astype(str)),
    }


@pytest.mark.parametrize("form", _forms())
def test_i4_labels_as_the_users_of_scikit_learn_pass_them(form: str) -> None:
    predictions, references = _forms()[form]
    assert accuracy(predictions, references).value == pytest.approx(sklearn.accuracy_score(references, predictions))
    for average in ("macro", "micro", "weighted"):
        expected = sklearn.f1_score(references, predictions, average=average)
        assert f1(predictions, references, average=average).value == pytest.approx(expected)
    assert matthews(predictions, references).value == pytest.approx(sklearn.matthews_corrcoef(references, predictions))
    assert report(predictions, references).value == accuracy(predictions, references).value
    counts = tuple(map(tuple, sklearn.confusion_matrix(references, predictions).tolist()))
    assert metrics.confusion(predictions, references).counts == counts or form == "negative numbers"  # of another order
    if "boolean" in form:
        positive = True if "beside" not in form else 1
        expected = sklearn.f1_score(references, predictions)
        assert f1(predictions, references, average="binary", positive=positive).value == pytest.approx(expected)


def test_i4_what_looks_the_same_is_one_label_to_every_metric_of_labels() -> None:
    """NFC and NFD, and white space around: one class, as in the training data."""
    nfc, nfd = "não", "na\u0303o"
    predictions, references = [nfc, f"{nfd} ", "sim"], [nfd, f" {nfc}", "sim\t"]
    assert accuracy(predictions, references).value == matthews(predictions, references).value == 1
    assert f1(predictions, references).value == f1(predictions, references, average="binary", positive=nfd).value == 1
    assert metrics.subset_accuracy([[nfc, " a"]], [["a", nfd]]).value == multilabel_f1([[nfc]], [[nfd]]).value == 1
    assert metrics.calibration_error([(nfd, 1.0)], [nfc]).value == 0
    assert metrics.tag_accuracy([[nfc]], [[nfd]]).value == metrics.entity_f1([[f"B-{nfc}"]], [[f"B-{nfd}"]]).value == 1
    assert metrics.subset_accuracy([[1, 2]], [["2", "1"]]).value == 1
