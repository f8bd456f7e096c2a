"""ROUGE: the notes' numbers, cases by hand, words in any script, and what is refused (spec row I2)."""

import subprocess
import sys
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from atento.base.errors import MissingPartError, UsageError
from atento.config.tables.tasks import TASKS
from atento.metrics import METRICS
from atento.metrics.rouge import (
    PARTS,
    rouge,
    rouge_score_words,
    subsequence_length,
    subsequence_rows,
    unicode_words,
    word_finder,
)
from atento.tasks.split_evaluation import usual_metrics
from failing import fails


@pytest.mark.parametrize("stem", ["none", "porter"])
def test_i2_pairs_of_the_notes(stem: str) -> None:
    """Spec section 3 (error 3): .5, .666667, .571429 and .333333, .5, .4; two words of four and three in order."""
    score = rouge(["a different test sentence"], ["another test sentence"], stem=stem)
    expected = {"rouge1": (1 / 2, 2 / 3, 4 / 7), "rouge2": (1 / 3, 1 / 2, 2 / 5)}
    expected |= {"rougeL": expected["rouge1"], "rougeLsum": expected["rouge1"]}
    for kind, sides in expected.items():
        found = [score.parts[f"{kind}_{side}"] for side in ("precision", "recall", "f")]
        assert found == pytest.approx([100 * one for one in sides])
    assert score.value == pytest.approx(400 / 7) and score.name == "ROUGE-L"
    assert tuple(score.parts) == PARTS and score.settings == f"nrefs:1|case:lc|tok:unicode|stem:{stem}"
    first = rouge(["this is a test"], ["this is a test"])  # the first pair is perfect
    assert set(first.parts.values()) == {100.0} and first.value == 100


def test_i2_words_of_any_script_and_accents() -> None:
    """Spec section 3: the package finds "a" and "o" in "ação", of which "nação" has one, and nothing in "é"."""
    assert rouge(["ação"], ["nação"]).parts["rouge1_f"] == 0 and rouge(["é"], ["É"]).value == 100
    as_package = {"tokenize": "rouge-score"}
    assert rouge(["ação"], ["nação"], **as_package).parts["rouge1_f"] == pytest.approx(50)
    assert rouge(["é"], ["é"], **as_package).value == 0
    assert unicode_words("Não, o avô (76) disse: “É isso_aí!”") == ["não", "o", "avô", "76", "disse", "é", "isso", "aí"]
    assert unicode_words("ac\u0327a\u0303o") == ["ação"]  # letters and marks of their own
    assert unicode_words("हिन्दी भाषा") == ["हिन्दी", "भाषा"]  # vowel signs are marks
    assert rouge_score_words("Não é isso_aí: 3.5") == ["n", "o", "isso", "a", "3", "5"]


@given(st.text(st.characters(max_codepoint=127), max_size=30))
def test_both_tokenizers_agree_on_ascii(text: str) -> None:
    assert unicode_words(text) == rouge_score_words(text)


def test_subsequences_beside_pairs_of_words_and_joined_in_a_sentence() -> None:
    """Lin's example: of two candidates with the same pair of words one keeps the order."""
    reference = ["police killed the gunman"]
    first = rouge(["police kill the gunman"], reference)
    second = rouge(["the gunman kill police"], reference)
    assert first.parts["rouge2_f"] == second.parts["rouge2_f"] == pytest.approx(100 / 3)
    assert (first.value, second.value) == pytest.approx((75, 50))
    # Lin's example for the union: w1 w3 w5 and w1 w2 of a reference of five words; 4 of 5, and 4 of 10 words
    score = rouge(["w1 w3 w8 w9 w5\nw1 w2 w6 w7 w8"], ["w1 w2 w3 w4 w5"])
    assert score.parts["rougeLsum_recall"] == pytest.approx(80)
    assert score.parts["rougeLsum_precision"] == pytest.approx(40)
    assert score.parts["rougeL_recall"] == pytest.approx(60)  # as one run of words: w1 w3 w5
    # no word counts oftener than the prediction has it
    score = rouge(["a b"], ["a b\na c"])
    assert score.parts["rougeLsum_recall"] == pytest.approx(50) and score.parts["rougeLsum_precision"] == 100


def test_many_references_means_stems_and_what_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    score = rouge(["o gato dorme"], [["gato o dorme aqui mesmo"], ["o gato"]])
    assert score.parts["rouge1_recall"] == pytest.approx(100)  # F .8 of the second against .75
    assert score.parts["rouge2_f"] == pytest.approx(100 * 2 / 3)
    assert score.settings.startswith("nrefs:2|")
    by_f = rouge(["a b c d"], [["a"], ["a b c x y"]])  # recall 1 and F .4, recall .6 and F .67
    assert by_f.parts["rouge1_recall"] == pytest.approx(60)
    assert rouge(["a b c"], [["c b a"], ["x b c"]]).parts["rougeL_recall"] == pytest.approx(100 * 2 / 3)
    score = rouge(["a b", "", "...", "x"], ["a b", "", "a", ""])
    assert score.value == pytest.approx(25) and score.per_sentence() == [100, 0, 0, 0]
    low, high = score.interval(samples=200)
    assert 0 <= low <= 25 <= high <= 100
    # Porter's and Snowball's; words of up to three letters stay
    assert word_finder("unicode", "porter")("running cats are his") == ["run", "cat", "are", "his"]
    assert rouge(["os gatinhos corriam"], ["o gatinho corria"], stem="portuguese").parts["rouge1_f"] > 60
    assert rouge(["os gatinhos corriam"], ["o gatinho corria"]).parts["rouge1_f"] == 0
    monkeypatch.setitem(sys.modules, "nltk.stem.porter", None)
    fails(MissingPartError, "stemming needs nltk: pip install", rouge, ["a"], ["a"], stem="porter")
    fails(UsageError, r"unknown ROUGE tokenizer '13a'. Known: rouge-score,", rouge, ["a"], ["a"], tokenize="13a")
    fails(UsageError, r"stemmer 'port'; did you mean 'porter'.* Known: none, porter", rouge, ["a"], ["a"], stem="port")
    fails(UsageError, "got 2 predictions, and the references have 1", rouge, ["a", "b"], ["a"])
    fails(UsageError, "there is nothing to score: got 0 predictions", rouge, [], [])


def table(a: Sequence[str], b: Sequence[str]) -> list[list[int]]:
    found = [[0] * (len(b) + 1) for _ in range(len(a) + 1)]
    for i, x in enumerate(a):
        for j, y in enumerate(b):
            found[i + 1][j + 1] = found[i][j] + 1 if x == y else max(found[i][j + 1], found[i + 1][j])
    return found


@given(st.text("abcd", max_size=80), st.text("abcd", max_size=80))
def test_bits_are_the_table(a: str, b: str) -> None:
    """Not the last cell alone: every cell of the table is in the rows of bits."""
    right, rows = table(list(a), list(b)), subsequence_rows(list(a), list(b))
    assert [[j - (row & ((1 << j) - 1)).bit_count() for j in range(len(b) + 1)] for row in rows] == right
    assert subsequence_length(list(a), list(b)) == right[-1][-1]


def test_the_usual_three_are_metrics_by_name_and_load_neither_numpy_nor_nltk() -> None:
    code = (
        "import sys; from atento.metrics.rouge import rouge; rouge(['a'], ['a']);"
        "print([name for name in ('torch', 'numpy', 'nltk', 'sacrebleu') if name in sys.modules])"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"
    predictions, references = ["a b c", "d e x"], ["a b x", "e d x"]
    parts = rouge(predictions, references).parts
    for name in ("rouge1", "rouge2"):
        score = METRICS[name].score(predictions, references)
        assert score.value == parts[f"{name}_f"]
        assert score.name == f"ROUGE-{name[-1]}" and np.mean(score.per_sentence()) == pytest.approx(score.value)
    assert usual_metrics(TASKS["summarization"], []) == ("rouge1", "rouge2", "rouge")
