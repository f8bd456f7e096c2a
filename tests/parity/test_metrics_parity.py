"""Metrics beside sacrebleu (spec row I1), `rouge-score` (I2), scikit-learn and scipy: corpora, ties, absent classes."""

import random
import warnings
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas
import pytest
import torch
from rouge_score import rouge_scorer
from sacrebleu.metrics import BLEU, CHRF, TER
from sacrebleu.significance import PairedTest as TheirTest
from sacrebleu.tokenizers.tokenizer_zh import TokenizerZh
from scipy import stats
from sklearn import metrics as sklearn
from sklearn.calibration import calibration_curve

from atento import metrics
from atento.metrics import METRICS, accuracy, bleu, chrf, f1, matthews, paired_test, pearson, report, spearman, ter
from atento.metrics.mbr_utilities import rouge_utility
from atento.metrics.rouge import KINDS, SIDES, rouge_of_pair, unicode_words, word_finder

PORTUGUESE = ["o", "a", "gato", "gatos", "não", "está", "coração", "R$ 1.234,56", "tapete,", "(hoje)", "“sim”", "."]
PORTUGUESE += ["é", "é"]


def sentences(seed: int) -> list[str]:
    draw = random.Random(seed)
    return [" ".join(draw.choices(PORTUGUESE, k=draw.randint(0, 14))) for _ in range(1000)]


def near(seed: int, texts: list[str], words: list[str] = PORTUGUESE, between: str | None = None) -> list[str]:
    """The texts with some words changed, so that long n-grams match too."""
    draw = random.Random(seed)
    rows = [text.split(between) for text in texts]
    return [" ".join(draw.choice(words) if draw.random() < 0.3 else word for word in row) for row in rows]


REFERENCES = [sentences(1), sentences(2)]
PREDICTIONS = near(3, REFERENCES[0])


@pytest.mark.covering
@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize(
    ("ours", "theirs", "options", "their_options"),
    [
        (bleu, BLEU, {}, {}),
        (bleu, BLEU, {"lowercase": True, "tokenize": "intl"}, {"lowercase": True, "tokenize": "intl"}),
        (bleu, BLEU, {"smooth": "add-k", "max_order": 3}, {"smooth_method": "add-k", "max_ngram_order": 3}),
        (bleu, BLEU, {"smooth": "floor", "tokenize": "char"}, {"smooth_method": "floor", "tokenize": "char"}),
        (chrf, CHRF, {}, {}),
        (chrf, CHRF, {"word_order": 2, "lowercase": True}, {"word_order": 2, "lowercase": True}),
        (chrf, CHRF, {"char_order": 4, "beta": 3}, {"char_order": 4, "beta": 3}),
        (ter, TER, {}, {}),
        (ter, TER, {"normalized": True, "case_sensitive": True}, {"normalized": True, "case_sensitive": True}),
    ],
)
def test_corpus_scores_and_signatures_are_equal(ours, theirs, options, their_options, count) -> None:  # type: ignore[no-untyped-def]
    """400 random pairs, one and two reference sets."""
    number = 100 if theirs is TER else 400  # its shifts are slow
    predictions, references = PREDICTIONS[:number], [stream[:number] for stream in REFERENCES[:count]]
    score, metric = ours(predictions, references, **options), theirs(**their_options)
    expected = metric.corpus_score(predictions, references)
    assert score.value == pytest.approx(expected.score, abs=1e-12)
    assert score.settings == str(metric.get_signature())
    if theirs is BLEU:
        assert [score.parts[f"p{order}"] for order in range(1, metric.max_ngram_order + 1)] == expected.precisions
        assert (score.parts["bp"], score.parts["length"]) == (expected.bp, expected.sys_len)
        assert score.parts["reference_length"] == expected.ref_len
    elif theirs is TER:
        assert score.parts == {"edits": expected.num_edits, "reference_length": expected.ref_length}


def test_the_thousand_pairs_one_by_one() -> None:
    """Every single pair as a corpus of its own, and as a sentence."""
    references = REFERENCES[0]
    corpus, sentence = BLEU(), BLEU(effective_order=True)
    for prediction, reference in zip(PREDICTIONS, references):
        assert bleu([prediction], [reference]).value == corpus.corpus_score([prediction], [[reference]]).score
    for score, metric in [(bleu(PREDICTIONS, references), sentence), (chrf(PREDICTIONS, references), CHRF())]:
        expected = [metric.sentence_score(one, [other]).score for one, other in zip(PREDICTIONS, references)]
        assert score.per_sentence() == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize(("name", "metric"), [("bleu", BLEU()), ("chrf", CHRF()), ("ter", TER())])
def test_paired_bootstrap_p_values_are_equal(name: str, metric: object, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same draws from the same seed, so the same p-value, not just a near one."""
    monkeypatch.setenv("SACREBLEU_SEED", "7")
    references = [REFERENCES[0][:150]]
    a, b = near(5, references[0]), near(6, references[0])
    b = b[:100] + references[0][100:110] + b[110:]
    _, results = TheirTest([("b", b), ("a", a)], {name: metric}, references, test_type="bs", n_samples=300)()
    theirs = next(value for key, value in results.items() if key != "System")
    found = paired_test(name, a, b, references, samples=300, seed=7)
    assert (found.second.value, found.first.value) == pytest.approx([one.score for one in theirs], abs=1e-9)
    assert found.p_value == pytest.approx(theirs[1].p_value, abs=1e-12)
    low, high = found.first.interval(samples=300, seed=7)
    assert (high - low) / 2 == pytest.approx(theirs[1].ci, rel=0.1)  # they cut at whole samples, we interpolate


ENGLISH = ["the", "cats", "running", "quickly", "was", "3.5", "it's", "A-b", "ran", "runs", "generalizations"]
ENGLISH += ["ação", "não", "é", "_x_", "THE", "dog"]


def paragraphs() -> list[str]:
    """Words with sentence ends among them, blank sentences too."""
    draw = random.Random(1)
    rows = (draw.choices(ENGLISH, k=draw.randint(0, 24)) for _ in range(1000))
    return [" ".join(word + ("\n" if draw.random() < 0.2 else "") for word in row) for row in rows]


ORIGINALS = paragraphs()
OUTPUTS = near(2, ORIGINALS, ENGLISH, " ")


@pytest.mark.parametrize(("stem", "their_stem"), [("none", False), ("porter", True)])
def test_i2_a_thousand_pairs(stem: str, their_stem: bool) -> None:
    """Precision, recall and F of 1, 2, L and Lsum: as the package gives them to the last digit."""
    split = word_finder("rouge-score", stem)
    scorer = rouge_scorer.RougeScorer(list(KINDS), use_stemmer=their_stem)
    for prediction, reference in zip(OUTPUTS, ORIGINALS):
        ours, theirs = rouge_of_pair(prediction, reference, split), scorer.score(reference, prediction)
        assert ours == {kind: tuple(theirs[kind]) for kind in KINDS}


def test_i2_lsum_of_other_texts_than_near_ones() -> None:
    """Where the union of subsequences depends on which of several longest ones is read."""
    split, scorer = word_finder("rouge-score", "none"), rouge_scorer.RougeScorer(["rougeLsum"])
    draw = random.Random(5)
    letters = ["\n".join(" ".join(draw.choices("abc", k=6)) for _ in range(3)) for _ in range(400)]
    for prediction, reference in zip(letters[::2], letters[1::2]):
        theirs = scorer.score(reference, prediction)["rougeLsum"]
        assert rouge_of_pair(prediction, reference, split)["rougeLsum"] == tuple(theirs)


def test_i2_many_references_and_the_mean() -> None:
    """`score_multi` takes the reference of best F for each measure; the whole is the mean of the texts."""
    second = near(3, ORIGINALS, ENGLISH, " ")
    score = metrics.rouge(OUTPUTS[:200], [ORIGINALS[:200], second[:200]], tokenize="rouge-score", stem="porter")
    scorer = rouge_scorer.RougeScorer(list(KINDS), use_stemmer=True)
    found = [scorer.score_multi([a, b], p) for p, a, b in zip(OUTPUTS[:200], ORIGINALS, second)]
    for kind in KINDS:
        for side, name in zip(SIDES, ("precision", "recall", "fmeasure")):
            mean = 100 * sum(getattr(one[kind], name) for one in found) / 200
            assert score.parts[f"{kind}_{side}"] == pytest.approx(mean, abs=1e-9)


def test_i2_unicode_words_are_the_same_as_theirs_given_our_tokenizer() -> None:
    """The package takes a tokenizer: with ours it agrees on accented text too."""
    split = word_finder("unicode", "none")
    scorer = rouge_scorer.RougeScorer(list(KINDS), tokenizer=SimpleNamespace(tokenize=split))
    for prediction, reference in zip(OUTPUTS[:300], ORIGINALS):
        theirs = scorer.score(reference, prediction)
        assert rouge_of_pair(prediction, reference, split) == {kind: tuple(theirs[kind]) for kind in KINDS}


@pytest.mark.parametrize(("kind", "theirs"), [("1", "rouge1"), ("2", "rouge2"), ("L", "rougeL")])
def test_h10_utilities_are_the_f_scores_of_all_pairs(kind: str, theirs: str) -> None:
    candidates, evidence = OUTPUTS[:25], [*ORIGINALS[:20], ""]
    found = rouge_utility(kind, tokenize="rouge-score", stem="porter")(candidates, evidence)
    scorer = rouge_scorer.RougeScorer([theirs], use_stemmer=True)
    for i, candidate in enumerate(candidates):
        for j, other in enumerate(evidence):
            assert found[i, j] == pytest.approx(scorer.score(other, candidate)[theirs].fmeasure, abs=1e-12)


LETTERS = {
    "Chinese": "\u6211\u4eec\u5b66\u4e60\u8bed\u8a00",
    "Japanese": "\u308f\u305f\u3057\u306f\u30ab\u30bf\u30ca\u30fc",
    "Thai": "\u0e01\u0e02\u0e04\u0e07\u0e2d\u0e32",
    "Burmese": "\u1000\u1001\u1002\u1003\u1004",
}


@pytest.mark.parametrize("script", LETTERS)
def test_i2_scripts_without_spaces_are_scored_by_their_characters(script: str) -> None:
    """As the package scores them with a tokenizer of characters: 4 of 6 characters are no 0."""
    draw, letters = random.Random(3), LETTERS[script]
    characters = SimpleNamespace(tokenize=lambda text: [letter for letter in text if letter.isalnum()])
    scorer = rouge_scorer.RougeScorer(list(KINDS), tokenizer=characters)
    for _ in range(50):
        first, second = ("".join(draw.choices(letters, k=draw.randint(1, 20))) + "\u3002" for _ in range(2))
        theirs = scorer.score(second, first)
        parts = metrics.rouge([first], [second]).parts
        for kind in KINDS:
            expected = (theirs[kind].precision, theirs[kind].recall, theirs[kind].fmeasure)
            assert [parts[f"{kind}_{side}"] / 100 for side in SIDES] == pytest.approx(expected), (first, second, kind)


def test_i2_chinese_beside_latin_is_cut_as_by_sacrebleu() -> None:
    for text in ("BERT \u6a21\u578b\u57282018\u5e74", "\u6211\u7231NLP", "ab\u4e2d", "\u4e2d \u6587 x1\u4e2d2"):
        assert unicode_words(text) == TokenizerZh()(text.lower()).split()
    thai = ["\u0e01\u0e34", "\u0e19", "\u0e19\u0e49", "\u0e33"]
    assert unicode_words("".join(thai) + " 10 ml") == [*thai, "10", "ml"]
    assert unicode_words("\u304c\u3063\u3053\u3046") == unicode_words("\u304b\u3099\u3063\u3053\u3046")  # NFD
    korean = "\ud55c\uad6d\uc5b4 \ub2e8\uc5b4"  # which has spaces
    assert unicode_words(korean) == korean.split()


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
    ours = metrics.report_table(report(predicted, right)).split("\n")
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
        assert metrics.multilabel_f1(predicted, right, average=average).value == pytest.approx(expected, abs=1e-12)
    table = sklearn.classification_report(theirs, ours, target_names=names, digits=4, zero_division=0)
    rows = [line.split() for line in table.replace(" avg", " average").split("\n") if line and "samples" not in line]
    ours = metrics.report_table(METRICS["multilabel-report"].score(predicted, right))
    found = [line.split() for line in ours.split("\n")]
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


def bootstrapped(score: metrics.Score, number: int, value: Any, samples: int = 60, seed: int = 5) -> None:
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
    assert (
        metrics.subset_accuracy([[nfc, " a"]], [["a", nfd]]).value == metrics.multilabel_f1([[nfc]], [[nfd]]).value == 1
    )
    assert metrics.calibration_error([(nfd, 1.0)], [nfc]).value == 0
    assert metrics.tag_accuracy([[nfc]], [[nfd]]).value == metrics.entity_f1([[f"B-{nfc}"]], [[f"B-{nfd}"]]).value == 1
    assert metrics.subset_accuracy([[1, 2]], [["2", "1"]]).value == 1
