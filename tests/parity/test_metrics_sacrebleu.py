"""BLEU, chrF, TER and the paired test against sacrebleu's public results (spec row I1)."""

import random

import pytest
from sacrebleu.metrics import BLEU, CHRF, TER
from sacrebleu.significance import PairedTest as TheirTest

from atento.metrics import bleu, chrf, paired_test, ter

WORDS = [
    *("o", "a", "gato", "gatos", "não", "está", "coração", "R$ 1.234,56", "tapete,", "(hoje)", "“sim”", ".", "é"),
    "é",
]


def sentences(seed: int, number: int = 1000, longest: int = 14) -> list[str]:
    draw = random.Random(seed)
    return [" ".join(draw.choices(WORDS, k=draw.randint(0, longest))) for _ in range(number)]


def near(seed: int, texts: list[str]) -> list[str]:
    """The texts with some words changed, so that long n-grams match too."""
    draw = random.Random(seed)
    return [" ".join(draw.choice(WORDS) if draw.random() < 0.3 else word for word in text.split()) for text in texts]


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
