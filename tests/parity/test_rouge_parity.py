"""ROUGE against Google's `rouge-score`: every number of every pair, with and without stemming (spec row I2)."""

import random
from types import SimpleNamespace

import pytest
from rouge_score import rouge_scorer
from sacrebleu.tokenizers.tokenizer_zh import TokenizerZh

from atento.metrics import rouge
from atento.metrics.mbr_utilities import rouge_utility
from atento.metrics.rouge import KINDS, SIDES, rouge_of_pair, unicode_words, word_finder

WORDS = [
    *("the", "cats", "running", "quickly", "was", "3.5", "it's", "A-b", "ran", "runs", "generalizations", "ação"),
    *("não", "é", "_x_", "THE", "dog"),
]


def texts(seed: int, number: int, longest: int = 24) -> list[str]:
    """Words with sentence ends among them, blank sentences too."""
    draw = random.Random(seed)
    found = []
    for _ in range(number):
        words = draw.choices(WORDS, k=draw.randint(0, longest))
        found.append(" ".join(word + ("\n" if draw.random() < 0.2 else "") for word in words))
    return found


def near(seed: int, originals: list[str]) -> list[str]:
    draw = random.Random(seed)
    return [" ".join(draw.choice(WORDS) if draw.random() < 0.3 else w for w in one.split(" ")) for one in originals]


REFERENCES = texts(1, 1000)
PREDICTIONS = near(2, REFERENCES)


@pytest.mark.parametrize(("stem", "their_stem"), [("none", False), ("porter", True)])
def test_i2_a_thousand_pairs(stem: str, their_stem: bool) -> None:
    """Precision, recall and F of 1, 2, L and Lsum: as the package gives them to the last digit."""
    split = word_finder("rouge-score", stem)
    scorer = rouge_scorer.RougeScorer(list(KINDS), use_stemmer=their_stem)
    for prediction, reference in zip(PREDICTIONS, REFERENCES):
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
    second = near(3, REFERENCES)
    score = rouge(PREDICTIONS[:200], [REFERENCES[:200], second[:200]], tokenize="rouge-score", stem="porter")
    scorer = rouge_scorer.RougeScorer(list(KINDS), use_stemmer=True)
    found = [scorer.score_multi([a, b], p) for p, a, b in zip(PREDICTIONS[:200], REFERENCES, second)]
    for kind in KINDS:
        for side, name in zip(SIDES, ("precision", "recall", "fmeasure")):
            mean = 100 * sum(getattr(one[kind], name) for one in found) / 200
            assert score.parts[f"{kind}_{side}"] == pytest.approx(mean, abs=1e-9)


def test_i2_unicode_words_are_the_same_as_theirs_given_our_tokenizer() -> None:
    """The package takes a tokenizer: with ours it agrees on accented text too."""
    split = word_finder("unicode", "none")
    scorer = rouge_scorer.RougeScorer(list(KINDS), tokenizer=SimpleNamespace(tokenize=split))
    for prediction, reference in zip(PREDICTIONS[:300], REFERENCES):
        theirs = scorer.score(reference, prediction)
        assert rouge_of_pair(prediction, reference, split) == {kind: tuple(theirs[kind]) for kind in KINDS}


@pytest.mark.parametrize(("kind", "theirs"), [("1", "rouge1"), ("2", "rouge2"), ("L", "rougeL")])
def test_h10_utilities_are_the_f_scores_of_all_pairs(kind: str, theirs: str) -> None:
    candidates, evidence = PREDICTIONS[:25], [*REFERENCES[:20], ""]
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
        parts = rouge([first], [second]).parts
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
