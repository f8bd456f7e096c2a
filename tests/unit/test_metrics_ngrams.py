"""N-grams in bulk and the utilities made of them, against loops over single texts."""

import math
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atento.base.errors import UsageError
from atento.metrics import mbr_utilities
from atento.metrics import ngrams as counting
from failing import fails

sentences = st.lists(st.lists(st.sampled_from(["a", "b", "c", "d", "é"]), max_size=9), min_size=1, max_size=7)
texts = st.lists(st.text("ab cé.\n", max_size=12), min_size=1, max_size=6)


def by_hand(text: list[str] | str, order: int) -> Counter[tuple[str, ...]]:
    return Counter(tuple(text[i : i + order]) for i in range(len(text) - order + 1))


@given(sentences)
def test_ngrams_are_those_of_a_counter(lists: list[list[str]]) -> None:
    """Every different n-gram of every text once, with its count; the same number for the same n-gram."""
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
        counters = [by_hand(one, order) for one in lists]
        for i, ours in enumerate(counters):
            rest = weights.sum() - left_out[i]
            share = weights - left_out[i] * (np.arange(len(lists)) == i)
            mean = {
                g: sum(w * c[g] for w, c in zip(share, counters)) / rest if rest else 0.0 for c in counters for g in c
            }
            assert matches[i] == pytest.approx(sum(min(count, mean[g]) for g, count in ours.items()), abs=1e-9)
            assert totals[i] == pytest.approx(sum(mean.values()), abs=1e-9)


def lcs(a: list[str], b: list[str]) -> int:
    table = [[0] * (len(b) + 1) for _ in range(len(a) + 1)]
    for i, x in enumerate(a):
        for j, y in enumerate(b):
            table[i + 1][j + 1] = table[i][j] + 1 if x == y else max(table[i][j + 1], table[i + 1][j])
    return table[-1][-1]


@given(sentences, sentences)
def test_common_subsequences_by_the_table(rows: list[list[str]], columns: list[list[str]]) -> None:
    assert counting.common_subsequences(rows, columns).tolist() == [[lcs(a, b) for b in columns] for a in rows]


@pytest.mark.parametrize("length", [62, 63, 64, 126, 127, 200])
def test_common_subsequences_of_long_texts(length: int) -> None:
    """Several machine numbers a text, the carry going from one to the next; and blocks of rows."""
    draw = np.random.default_rng(length)
    lists = [[str(n) for n in draw.integers(0, 5, size)] for size in (length, length - 3, 7, length)]
    lists.append(lists[0])
    assert counting.common_subsequences(lists, lists).tolist() == [[lcs(a, b) for b in lists] for a in lists]


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
    assert mbr_utilities.token_f1_utility()(ours, theirs)[0, 0] == pytest.approx(
        2 * 2 / 9
    )  # case and mark as they stand


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
