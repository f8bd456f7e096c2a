"""SQuAD's exact match and F1: by hand, and beside the rules of both official scripts written out again."""

import random
import re
import string
from collections import Counter

import pytest

from atento.base.errors import UsageError
from atento.metrics import METRICS, paired_test, squad
from atento.tasks.split_evaluation import metric_options, metric_scores
from failing import fails


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


def overlap(prediction: list[str], gold: list[str]) -> float:
    common = sum(min(count, Counter(gold)[word]) for word, count in Counter(prediction).items())
    if not common:
        return 0.0
    precision, recall = common / len(prediction), common / len(gold)
    return 2 * precision * recall / (precision + recall)


def by_script(prediction: str, answers: tuple[str, ...], version: str) -> tuple[float, float]:
    """Exact match and F1 of a question, 0 to 1."""
    if version == "2.0":
        answers = tuple(answer for answer in answers if plain(answer)) or ("",)
    best = [0.0, 0.0]
    for answer in answers:
        ours, theirs = plain(prediction), plain(answer)
        f1 = overlap(ours, theirs)
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


def test_interval_and_paired_test() -> None:
    answers = [(f"answer {number}",) for number in range(100)]
    good = [answer if number % 10 else "x" for number, (answer,) in enumerate(answers)]
    poor = [answer if number % 2 else "x" for number, (answer,) in enumerate(answers)]
    low, high = squad(good, answers).interval(samples=200)
    assert 80 < low < 90 < high < 98
    test = paired_test("squad", good, poor, answers, samples=200)
    assert test.difference == pytest.approx(40) and test.p_value == pytest.approx(1 / 201)


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
