"""Token F1 and the notes' F1 of BLEU and ROUGE: by hand, empty texts, many references, intervals (spec row I3)."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atento.base.errors import UsageError
from atento.metrics import bleu, f1_bleu_rouge, rouge, token_f1
from atento.metrics.rouge import harmonic_mean
from failing import fails


def test_i3_token_f1_and_f1_of_bleu_and_rouge_by_hand() -> None:
    """Of "a b b c" and "b b b d e": two in common, no oftener than in either."""
    score = token_f1(["a b b c"], ["b b b d e"])
    assert score.parts == pytest.approx({"precision": 50, "recall": 40, "f1": 400 / 9})
    assert score.value == pytest.approx(400 / 9) and score.name == "token F1"
    assert score.settings == "nrefs:1|case:mixed|tok:space"
    assert token_f1(["Não é."], ["não é"]).value == 0
    assert token_f1(["Não é."], ["não é."], lowercase=True).value == 100
    assert token_f1(["Não é."], ["não é."], lowercase=True).settings == "nrefs:1|case:lc|tok:space"
    score = token_f1(["", " ", "a", "a b"], [["", "a", "", "b"], ["x", "x", "x", "b a c"]])
    assert score.per_sentence() == pytest.approx([100, 0, 0, 80]) and score.value == pytest.approx(45)
    low, high = score.interval(samples=100)
    assert low <= 45 <= high
    # spec section 3: BLEU of the pair is 40.94; five words of six are there, ROUGE-1 recall 83.33
    score = f1_bleu_rouge(["o gato está no tapete"], ["o gato está sentado no tapete"])
    b, r = 100 * math.exp(-0.2) * (1 * 3 / 4 * 1 / 3 * 1 / 4) ** 0.25, 100 * 5 / 6
    assert score.parts == pytest.approx({"bleu": b, "rouge1_recall": r})
    assert score.value == pytest.approx(2 * b * r / (b + r)) and score.name == "F1 (BLEU, ROUGE)"
    assert "smooth:exp" in score.settings and "stem:none" in score.settings
    score = f1_bleu_rouge(["a b"], ["c d"])
    assert score.value == 0 and score.parts == {"bleu": 0, "rouge1_recall": 0}
    assert harmonic_mean(0, 0) == 0 and harmonic_mean(0, 50) == 0 and harmonic_mean(50, 50) == 50


words = st.lists(st.sampled_from(["o", "gato", "não", "está", "."]), max_size=7).map(" ".join)


@given(st.lists(st.tuples(words, words, words), min_size=1, max_size=8))
def test_i3_joins_what_the_two_say(triples: list[tuple[str, str, str]]) -> None:
    """Of the whole, of two reference sets, and of each sentence, with sentence BLEU."""
    predictions, *references = ([one[side] for one in triples] for side in range(3))
    score = f1_bleu_rouge(predictions, references)
    first, second = bleu(predictions, references), rouge(predictions, references)
    assert score.value == pytest.approx(harmonic_mean(first.value, second.parts["rouge1_recall"]))
    for row, (prediction, *answers) in zip(score.per_sentence(), triples):
        recall = rouge([prediction], [[one] for one in answers]).parts["rouge1_recall"]
        alone = bleu([prediction], [[one] for one in answers]).per_sentence()[0]
        assert row == pytest.approx(harmonic_mean(alone, recall))


def test_interval_is_of_both_together_and_what_is_refused() -> None:
    """Two kinds of sentences, all right and all wrong: BLEU, recall and their F1 move as one."""
    score = f1_bleu_rouge(["um gato preto dorme"] * 10 + ["x y z w"] * 10, ["um gato preto dorme"] * 20)
    low, high = score.interval(samples=300)
    assert low < score.value < high
    assert score.value == pytest.approx(50)
    for metric in (token_f1, f1_bleu_rouge):
        fails(UsageError, "got 1 predictions, and reference set 2 has 2", metric, ["a"], [["a"], ["a", "b"]])
        fails(UsageError, "must be lists of strings: got one string", metric, "ab", ["a", "b"])
    fails(UsageError, "unknown stemmer", f1_bleu_rouge, ["a"], ["a"], stem="x")
