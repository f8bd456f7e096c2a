"""Metrics of labels, tags, numbers, answers, rankings and perplexity (row I6): by hand, and what is refused."""

import math
import random
import re
import string
import warnings
from collections import Counter

import numpy as np
import pytest

from atento import metrics
from atento.base.errors import UsageError
from atento.metrics import METRICS, perplexity, rankings, retrieval, retrieval_of_vectors, squad
from atento.metrics.rankings import ndcg, recall
from atento.metrics.tag_schemes import entities
from atento.tasks.split_evaluation import metric_options, metric_scores
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
    words = [[tag for sentence in side for tag in sentence] for side in (predicted, right)]
    table = metrics.metric_named("tag-report")(predicted, right)
    assert metrics.report_table(table) == metrics.report_table(metrics.report(*words)) and table.value == 4 / 5
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


@pytest.mark.parametrize("name", [n for n, one in metrics.METRICS.items() if one.outputs not in ("texts", "classes")])
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


def test_by_hand_with_the_answers_of_each_question_side_by_side() -> None:
    """Case, punctuation, articles and spaces do not count; of "in the year 1945" and "1945" one word of three."""
    score = squad(
        ["The Eiffel Tower!", "in the year 1945", "a  blue whale", "nobody"],
        [("Eiffel tower", "tower"), ("1945",), ("Blue, whale.", "whale"), ("Ada", "Grace Hopper")],
    )
    assert score.per_sentence() == pytest.approx([100, 100 * 2 * (1 / 3) / (1 + 1 / 3), 100, 0])
    assert score.value == pytest.approx(62.5)
    assert score.parts == pytest.approx({"exact_match": 50, "f1": 62.5})
    assert score.name == "SQuAD F1" and score.settings == "version:2.0|articles:en|case:lc"
    # words count as often as both have them
    score = squad(["york york new"], ["new york new york"])
    assert score.value == pytest.approx(100 * 2 * 3 / (3 + 4)) and score.parts["exact_match"] == 0
    tuples = squad(["x y", ""], [("x", "x y z"), ("q",)])
    assert squad(["x y", ""], [["x", "q"], ["x y z", ""]]).value == tuples.value == pytest.approx(40)
    assert squad(["x y", ""], ["x y", "q"]).value == 50


def test_questions_without_an_answer_articles_and_versions() -> None:
    score = squad(["", "guess", "", "Paris"], [(), (), ("Rome",), ("Paris", "paris, France")])
    assert score.per_sentence() == [100, 0, 0, 100]
    parts = ("exact_match", "f1", "exact_match_answerable", "f1_answerable", "exact_match_unanswerable")
    assert score.parts == pytest.approx(dict.fromkeys(parts, 50))
    assert squad(["", "x"], ["", ""]).parts["exact_match_unanswerable"] == 50
    assert squad(["", "x"], ["", ""]).value == 50
    # whole words alone: "oito" and "uma-só" keep theirs; "the" is a word of Portuguese text, and "o" of English
    assert squad(["o gato"], ["gato"], language="pt").parts["exact_match"] == 100
    assert squad(["umas casas e uns barcos"], ["casas e barcos"], language="pt_BR").value == 100
    assert squad(["oito"], ["ito"], language="PT-br").value == 0
    assert squad(["the gato"], ["gato"], language="pt").parts["exact_match"] == 0
    assert squad(["o gato"], ["gato"]).parts["exact_match"] == 0
    german = squad(["the Hund"], ["Hund"], language="de")
    assert german.parts["exact_match"] == 0 and german.settings == "version:2.0|articles:none|case:lc"
    assert squad(["à noite"], ["noite"], language="pt").parts["exact_match"] == 0  # "à" is no article here
    # the answer "A": both scripts find it equal, but 1.1 counts no common word
    assert squad(["A"], [("A",)], version="2.0").value == 100
    old = squad(["A"], [("A",)], version="1.1")
    assert (old.value, old.parts["exact_match"]) == (0, 100)
    fails(UsageError, r"question 2 has no answer: .* 1\.1", squad, ["a", "b"], [("a",), ()], version="1.1")


def plain(text: str) -> list[str]:
    text = "".join(char for char in text.lower() if char not in set(string.punctuation))
    return re.sub(r"\b(a|an|the)\b", " ", text).split()


def by_script(prediction: str, answers: tuple[str, ...], version: str) -> tuple[float, float]:
    """Exact match and F1 of a question, 0 to 1."""
    if version == "2.0":
        answers = tuple(answer for answer in answers if plain(answer)) or ("",)
    best = [0.0, 0.0]
    for answer in answers:
        ours, theirs = plain(prediction), plain(answer)
        common = (Counter(ours) & Counter(theirs)).total()
        f1 = 2 * common / (len(ours) + len(theirs)) if common else 0.0
        if version == "2.0" and (not ours or not theirs):
            f1 = float(ours == theirs)
        best = [max(best[0], float(ours == theirs)), max(best[1], f1)]
    return best[0], best[1]


@pytest.mark.parametrize("version", ["1.1", "2.0"])
def test_equal_to_the_official_rules_on_random_answers(version: str) -> None:
    draw = random.Random(4)
    words = ["a", "the", "The", "an", "cat", "cat.", "Cat", "blue-green", "'s", "1945", "--", "ação", "theatre", " "]

    def text(least: int = 0) -> str:
        return " ".join(draw.choice(words) for _ in range(draw.randint(least, 5)))

    predictions = [text() for _ in range(1000)]
    references = [tuple(text(1) for _ in range(draw.randint(version == "1.1", 3))) for _ in predictions]
    score = squad(predictions, references, version=version)
    expected = [by_script(*pair, version) for pair in zip(predictions, references)]
    assert score.per_sentence() == pytest.approx([100 * f1 for _, f1 in expected])
    assert score.parts["exact_match"] == pytest.approx(sum(exact for exact, _ in expected) / 10)
    answerable = [pair for pair, answers in zip(expected, references) if answers]
    if version == "2.0":
        assert score.parts["f1_answerable"] == pytest.approx(100 * sum(f1 for _, f1 in answerable) / len(answerable))
    assert 5 < score.value < 95


def test_what_is_refused_and_portuguese_articles_by_name() -> None:
    for predictions, references, message in (
        (["a"], [("a",), ("b",)], "got 1 predictions and 2 references"),
        (["a", "b"], [["a"]], "a reference set of 1; the right answers of one question are a tuple"),
        ([], [], "there is nothing to score: got 0 predictions"),
        (["a", 3], ["a", "b"], "must be strings: got 3"),
        (["a"], [(None,)], "must be strings: got None"),
        ("a", ["a"], "must be lists of strings: got one string"),
    ):
        fails(UsageError, message, squad, predictions, references)
    fails(UsageError, r"`version` must be 1\.1 or 2\.0: got '2'", squad, ["a"], ["a"], version="2")
    fails(UsageError, "`language` must be a code such as en: got 'English'", squad, ["a"], ["a"], language="English")
    # A recipe names a metric and no language
    predictions, references = ["o gato", "an apple"], ["um gato", "apple"]
    score = METRICS["squad-pt"].score(predictions, references)
    assert score.parts == squad(predictions, references, language="pt").parts != squad(predictions, references).parts
    assert "articles:pt" in score.settings and metric_scores(predictions, references, ["squad-pt"])["squad-pt"].value
    assert metric_options("squad-pt", "en") == {}  # and `evaluate` refuses the language


def test_mean_reciprocal_rank_by_hand() -> None:
    """The right documents 0, 1 and 2 rank first, third and second."""
    score = retrieval([[0.9, 0.1, 0.2], [0.8, 0.1, 0.2], [0.1, 0.9, 0.5]], cutoffs=(1, 2, 3))
    assert score.value == pytest.approx((1 + 1 / 3 + 1 / 2) / 3)
    assert score.parts == pytest.approx({"recall@1": 1 / 3, "recall@2": 2 / 3, "recall@3": 1})
    assert str(score) == "MRR 0.6111 ties:last"
    # they rank 1 and 4: recall@1 is a half, and the reciprocal rank is that of the first
    score = retrieval([[0.9, 0.5, 0.4, 0.3]], [[0, 3]], cutoffs=(1, 3, 4))
    assert score.value == 1 and score.parts == {"recall@1": 0.5, "recall@3": 0.5, "recall@4": 1}


def test_right_documents_may_be_arrays() -> None:
    similarities = [[0.9, 0.5, 0.4, 0.3], [0.1, 0.2, 0.3, 0.4]]
    expected = retrieval(similarities, [[0, 3], [1, 1]])
    assert retrieval(similarities, [np.array([3, 0]), np.array([1])]) == expected
    assert retrieval(similarities, np.array([[0, 3], [1, 1]])) == expected


def test_equal_similarities_earn_nothing() -> None:
    score = retrieval(np.zeros((5, 5)))
    assert score.value == pytest.approx(1 / 5) and score.parts["recall@1"] == 0 and score.parts["recall@5"] == 1


def test_vectors_are_compared_by_their_cosine_and_what_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    generator = np.random.default_rng(2)
    queries, documents = generator.normal(size=(30, 8)), generator.normal(size=(50, 8)) * generator.random((50, 1))
    relevant = [int(number) for number in generator.integers(0, 50, 30)]
    ranks = []
    for query, number in zip(queries, relevant):
        cosines = [query @ one / np.linalg.norm(query) / np.linalg.norm(one) for one in documents]
        ranks.append(1 + sorted(range(50), key=lambda n: -cosines[n]).index(number))
    for block in (4_000_000, 120):
        monkeypatch.setattr(rankings, "_BLOCK", block)
        score = retrieval_of_vectors(queries, documents, relevant)
        assert score.value == pytest.approx(np.mean([1 / rank for rank in ranks]))
        for k in (1, 5, 10):
            assert score.parts[f"recall@{k}"] == pytest.approx(np.mean([rank <= k for rank in ranks]))
    low, high = score.interval(samples=100)
    assert low < score.value < high
    for arguments, message in (
        (([1.0, 2.0],), r"must be a matrix of queries and documents: got the shape \(2,\)"),
        (([[math.nan]],), "`similarities` must be finite"),
        (([[1.0], [2.0]],), "query q has document q: got 2 queries and 1 documents"),
        (([[1.0, 2.0]], [2]), "query 0: right documents are numbers from 0 to 1: got 2"),
        (([[1.0, 2.0]], [[]]), "query 0: right documents are numbers from 0 to 1"),
        (([[1.0, 2.0]], [0.9]), "query 0: right documents are numbers from 0 to 1: got 0.9"),
        (([[1.0, 2.0]], [0, 1]), "each query needs its right documents: got 1 queries and 2"),
    ):
        fails(UsageError, message, retrieval, *arguments)
        fails(UsageError, r"one width: .* \(1, 2\) and \(1, 3\)", retrieval_of_vectors, [[1.0, 2.0]], [[1.0, 2.0, 3.0]])


def test_i6_perplexity_weights_texts_by_their_tokens_and_what_it_refuses() -> None:
    """Four tokens of probability 1/2 and one of 1/8: exp of 7 bits over 5 tokens, not the mean of 2 and 8."""
    score = perplexity([4 * math.log(1 / 2), math.log(1 / 8)], [4, 1])
    assert score.value == pytest.approx(2 ** (7 / 5))
    assert score.parts == pytest.approx({"nll": 7 / 5 * math.log(2), "bits": 7 / 5, "tokens": 5})
    assert score.per_sentence() == pytest.approx([2, 8])
    low, high = score.interval(samples=50)
    assert low == pytest.approx(2) and high == pytest.approx(8)
    draw = random.Random(1)
    texts = [(-draw.expovariate(0.1), draw.randint(1, 30)) for _ in range(500)]
    shuffled = draw.sample(texts, len(texts))
    assert perplexity(*zip(*texts)).value == perplexity(*zip(*shuffled)).value
    batches = [shuffled[start : start + 7] for start in range(0, 500, 7)]
    sums = [(math.fsum(log for log, _ in batch), sum(count for _, count in batch)) for batch in batches]
    assert perplexity(*zip(*sums)).value == pytest.approx(perplexity(*zip(*texts)).value, rel=1e-15)
    assert perplexity([-math.inf, -1.0], [1, 1]).value == math.inf
    assert perplexity([0.0, -1.0], [0, 1]).value == pytest.approx(math.e)  # an empty text
    for log_probs, counts, message in (
        ([-1.0], [1, 2], "each text needs its number of tokens: got 1 texts and 2 counts"),
        ([], [], "there is nothing to score: got 0 tokens"),
        ([0.5], [1], "the log-probability of text 1 must not be above 0: got 0.5"),
        ([math.nan], [1], "the log-probability of text 1 must not be above 0: got nan"),
        ([-1.0], [0], "the number of tokens of text 1 is not valid: got 0"),
    ):
        fails(UsageError, message, perplexity, log_probs, counts)
