"""N-grams and subsequences: ROUGE (spec row I2), and utilities in bulk, by hand and against plain loops."""

import math
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atento.base.errors import MissingPartError, UsageError
from atento.config.tables.tasks import TASKS
from atento.metrics import METRICS, mbr_utilities, rouge
from atento.metrics import ngrams as counting
from atento.metrics.rouge import PARTS, TOKENIZERS, subsequence_length, subsequence_rows, unicode_words, word_finder
from atento.tasks.split_evaluation import usual_metrics
from failing import fails

sentences = st.lists(st.lists(st.sampled_from(["a", "b", "c", "d", "é"]), max_size=9), min_size=1, max_size=7)
texts = st.lists(st.text("ab cé.\n", max_size=12), min_size=1, max_size=6)


def by_hand(text: list[str] | str, order: int) -> Counter[tuple[str, ...]]:
    return Counter(tuple(text[i : i + order]) for i in range(len(text) - order + 1))


@given(sentences)
def test_ngrams_are_those_of_a_counter(lists: list[list[str]]) -> None:
    for order, found in enumerate(counting.count_ngrams(counting.words(lists), 4), 1):
        right = [by_hand(one, order) for one in lists]
        assert found.total.tolist() == [one.total() for one in right]
        assert len(found.text) == sum(len(one) for one in right)
        assert found.kinds == len(set().union(*right))
        for text, counter in enumerate(right):
            assert sorted(found.count[found.text == text].tolist()) == sorted(counter.values())


@given(sentences, st.data())
def test_clipped_matches_are_counters_cut(lists: list[list[str]], data: st.DataObject) -> None:
    places = st.lists(st.integers(0, len(lists) - 1), min_size=1, unique=True)
    rows, columns = (np.array(data.draw(places)) for _ in range(2))
    for order, found in enumerate(counting.count_ngrams(counting.words(lists), 3), 1):
        right = [[(by_hand(lists[i], order) & by_hand(lists[j], order)).total() for j in columns] for i in rows]
        assert counting.clipped_matches(found, rows, columns).tolist() == right


def test_ngrams_of_any_length_and_number_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """As with a large vocabulary: the same entries where every order, and where none, gets new numbers."""
    draw = np.random.default_rng(1)
    lists = [[str(n) for n in draw.integers(0, 6, 30)] for _ in range(5)]
    usual = counting.count_ngrams(counting.words(lists), 4)
    monkeypatch.setattr("atento.metrics.ngrams._LARGEST", 1)
    for found, right in zip(counting.count_ngrams(counting.words(lists), 4), usual):
        for name in ("text", "gram", "count", "total", "kinds"):
            assert np.array_equal(getattr(found, name), getattr(right, name))
    monkeypatch.undo()
    # two texts that share ten words in a row, and so five runs of six of 3,300 different words
    lists = [[str(n) for n in numbers] for numbers in (range(3000), range(2990, 3300))]
    found, both = counting.count_ngrams(counting.words(lists), 6)[-1], np.arange(2)
    assert counting.clipped_matches(found, both, both).tolist() == [[2995, 5], [5, 305]]
    assert found.kinds == 2995 + 305 - 5 and found.total.tolist() == [2995, 305]
    draw = np.random.default_rng(1)
    lists = [[str(n) for n in draw.integers(0, 30, 40)] for _ in range(9)]
    ngrams, everyone = counting.count_ngrams(counting.words(lists), 2)[1], np.arange(9)
    whole = counting.clipped_matches(ngrams, everyone, everyone)
    monkeypatch.setattr("atento.metrics.ngrams._BLOCK", 50)
    assert (counting.clipped_matches(ngrams, everyone, everyone) == whole).all() and whole.max() > 5


@given(sentences, st.data())
def test_matches_with_the_mean_by_loops(lists: list[list[str]], data: st.DataObject) -> None:
    """The mean of the counts, each text's own part left out as far as asked."""
    some = st.lists(st.sampled_from([0.0, 0.5, 1.0, 3.0]), min_size=len(lists), max_size=len(lists))
    weights = np.array(data.draw(some))
    left_out = weights * np.array(data.draw(some.map(lambda ones: [float(one > 0.7) for one in ones])))
    for order, found in enumerate(counting.count_ngrams(counting.words(lists), 2), 1):
        matches, totals = counting.clipped_matches_with_mean(found, weights, left_out)
        grams = [by_hand(one, order) for one in lists]
        for i, ours in enumerate(grams):
            rest = weights.sum() - left_out[i]
            share = weights - left_out[i] * (np.arange(len(lists)) == i)
            mean = {g: sum(w * c[g] for w, c in zip(share, grams)) / rest if rest else 0.0 for c in grams for g in c}
            assert matches[i] == pytest.approx(sum(min(count, mean[g]) for g, count in ours.items()), abs=1e-9)
            assert totals[i] == pytest.approx(sum(mean.values()), abs=1e-9)


def common(a: Sequence[str], b: Sequence[str]) -> list[list[int]]:
    """The lengths of the longest common subsequences of all beginnings, as a table."""
    found = [[0] * (len(b) + 1) for _ in range(len(a) + 1)]
    for i, x in enumerate(a):
        for j, y in enumerate(b):
            found[i + 1][j + 1] = found[i][j] + 1 if x == y else max(found[i][j + 1], found[i + 1][j])
    return found


@given(sentences, sentences)
def test_common_subsequences_by_the_table(ours: list[list[str]], theirs: list[list[str]]) -> None:
    assert counting.common_subsequences(ours, theirs).tolist() == [[common(a, b)[-1][-1] for b in theirs] for a in ours]


@pytest.mark.parametrize("length", [62, 63, 64, 126, 127, 200])
def test_common_subsequences_of_long_texts(length: int) -> None:
    """Several machine numbers a text, the carry going from one to the next; and blocks of rows."""
    draw = np.random.default_rng(length)
    lists = [[str(n) for n in draw.integers(0, 5, size)] for size in (length, length - 3, 7, length)]
    lists.append(lists[0])
    assert counting.common_subsequences(lists, lists).tolist() == [[common(a, b)[-1][-1] for b in lists] for a in lists]


def test_h10_bleu_chrf_rouge_and_token_f1_by_hand() -> None:
    """Of "a b c" all is right, for brevity e^(1 - 4/3); the other way round 3/4, 2/3, 1/2, and none of one."""
    found = mbr_utilities.bleu_utility()(["a b c", "a b c d"], ["a b c", "a b c d"])
    assert found[0, 1] == pytest.approx(math.exp(-1 / 3))
    assert found[1, 0] == pytest.approx((3 / 4 * 2 / 3 * 1 / 2 * 1 / 2) ** 0.25)
    assert np.diag(found) == pytest.approx(1.0)
    # "ab" against "abc": precision 1, recall 2/3, which counts four times; three words of four and five in common
    found = mbr_utilities.chrf_utility(char_order=1)(["a b"], ["abc", "xyz", ""])
    assert found.tolist() == [[pytest.approx(5 * (2 / 3) / (4 + 2 / 3)), 0.0, 0.0]]
    ours, theirs = ["O gato dorme ali."], ["o gato preto dorme aqui"]
    assert mbr_utilities.rouge_utility("1")(ours, theirs)[0, 0] == pytest.approx(2 * 3 / 9)
    assert mbr_utilities.rouge_utility("2")(ours, theirs)[0, 0] == pytest.approx(2 * 1 / 7)
    assert mbr_utilities.rouge_utility("L")(["ali dorme o gato"], theirs)[0, 0] == pytest.approx(2 * 2 / 9)
    assert mbr_utilities.token_f1_utility()(ours, theirs)[0, 0] == pytest.approx(2 * 2 / 9)  # case and mark count


@pytest.mark.parametrize("name", mbr_utilities.UTILITIES)
@settings(max_examples=25)
@given(candidates=texts, evidence=texts)
def test_utilities_stay_in_range_and_know_no_neighbours(name: str, candidates: list[str], evidence: list[str]) -> None:
    """Each pair has its value whatever else is compared, empty and blank texts included; a text is all of itself."""
    utility = mbr_utilities.utility_named(name)
    found = utility(candidates, evidence)
    assert found.shape == (len(candidates), len(evidence))
    assert np.isfinite(found).all() and (found >= 0).all() and (found <= 1 + 1e-12).all()
    for i, one in enumerate(candidates):
        for j, other in enumerate(evidence):
            assert found[i, j] == pytest.approx(utility([one], [other])[0, 0], abs=1e-12)
    whole = "um gato preto dorme aqui"
    assert utility([whole], [whole])[0, 0] == pytest.approx(1)


@pytest.mark.parametrize("name", ["bleu", "chrf", "rouge1", "rouge2", "f1"])
@settings(max_examples=25)
@given(candidates=texts, other=st.text("ab cé.", max_size=9))
def test_aggregated_is_exact_for_one_piece_of_evidence(name: str, candidates: list[str], other: str) -> None:
    """The mean of one text is that text."""
    utility = mbr_utilities.UTILITIES[name]
    found = utility.aggregated(candidates, [other], np.array([0.3]), np.zeros(len(candidates)))  # type: ignore[attr-defined]
    assert found.tolist() == pytest.approx(utility(candidates, [other])[:, 0].tolist(), abs=1e-9)
    twice = utility.aggregated(candidates, [other] * 2, np.array([0.3, 2.0]), np.zeros(len(candidates)))  # type: ignore[attr-defined]
    assert twice.tolist() == pytest.approx(found.tolist(), abs=1e-9)


@pytest.mark.parametrize("name", ["bleu", "chrf", "rouge1", "f1"])
def test_leaving_itself_out_of_the_mean_is_a_mean_without_it(name: str) -> None:
    candidates = ["o gato dorme", "o gato preto dorme", "um cão dorme", "o gato dorme"]
    utility, weights = mbr_utilities.UTILITIES[name], np.array([1.0, 2.0, 0.5, 1.0])
    found = utility.aggregated(candidates, candidates, weights, weights)  # type: ignore[attr-defined]
    for i in range(4):
        others = [text for j, text in enumerate(candidates) if j != i]
        one = utility.aggregated([candidates[i]], others, np.delete(weights, i), np.zeros(1))  # type: ignore[attr-defined]
        assert found[i] == pytest.approx(one[0], abs=1e-9)


def test_embeddings_by_hand_and_each_text_once() -> None:
    """Vectors at 0, 90 and 180 degrees, of any length; zeros are at a right angle to all."""
    vectors = {"a": [2.0, 0.0], "b": [0.0, 0.5], "c": [-1.0, 0.0], "": [0.0, 0.0]}
    asked: list[str] = []

    def embed(texts: list[str]) -> list[list[float]]:
        asked.extend(texts)
        return [vectors[text] for text in texts]

    utility = mbr_utilities.embedding_utility(embed)
    found = utility(["a", "b", "a"], ["a", "b", "c", ""])
    assert found.tolist() == [[1, 0.5, 0, 0.5], [0.5, 1, 0.5, 0.5], [1, 0.5, 0, 0.5]]
    assert asked == ["a", "b", "c", ""]
    weights = np.array([1.0, 2.0, 0.5])
    evidence = ["a", "b", "c"]
    exact = utility(evidence, evidence) @ weights / weights.sum()
    assert utility.aggregated(evidence, evidence, weights, np.zeros(3)).tolist() == pytest.approx(exact.tolist())
    alone = (utility(evidence, evidence) @ weights - weights) / (weights.sum() - weights)
    assert utility.aggregated(evidence, evidence, weights, weights).tolist() == pytest.approx(alone.tolist())


def test_embeddings_that_cannot_be_characters_and_lower_case() -> None:
    with pytest.raises(UsageError, match=r"`embed` must give a vector for each text: got shape \(1, 2\) for 2 texts"):
        mbr_utilities.embedding_utility(lambda texts: [[1.0, 2.0]])(["a"], ["b"])
    with pytest.raises(UsageError, match="`embed` must give finite numbers: got NaN or infinity"):
        mbr_utilities.embedding_utility(lambda texts: [[math.nan]] * len(texts))(["a"], ["b"])
    fails(UsageError, r"unknown utility 'crf'; did you mean 'chrf'\? Known: bleu", mbr_utilities.utility_named, "crf")
    fails(UsageError, "`kind` must be 'L' or a digit from '1' to '9': got 'Lsum'", mbr_utilities.rouge_utility, "Lsum")
    for utility in (mbr_utilities.bleu_utility(lowercase=True), mbr_utilities.chrf_utility(lowercase=True)):
        assert utility(["Um Gato"], ["um gato"])[0, 0] == pytest.approx(1)
    for utility in (mbr_utilities.bleu_utility(), mbr_utilities.chrf_utility()):
        assert utility(["Um Gato"], ["um gato"])[0, 0] < 0.7
    found = counting.characters(["a b\tc", "", "\ud800é"])
    assert found.lengths.tolist() == [3, 0, 2] and len(found.codes) == 5


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
    assert TOKENIZERS["rouge-score"]("Não é isso_aí: 3.5") == ["n", "o", "isso", "a", "3", "5"]


@given(st.text(st.characters(max_codepoint=127), max_size=30))
def test_both_tokenizers_agree_on_ascii(text: str) -> None:
    assert unicode_words(text) == TOKENIZERS["rouge-score"](text)


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


@given(st.text("abcd", max_size=80), st.text("abcd", max_size=80))
def test_bits_are_the_table(a: str, b: str) -> None:
    """Not the last cell alone: every cell of the table is in the rows of bits."""
    right, rows = common(a, b), subsequence_rows(list(a), list(b))
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
