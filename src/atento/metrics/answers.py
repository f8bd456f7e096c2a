"""Scores of answers to questions about a text: exact match and F1 of SQuAD."""

import re
import string
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import chain
from unicodedata import category

from atento.base.errors import UsageError
from atento.base.nfc import tag_of
from atento.metrics.bleu import is_unsegmented, split_characters
from atento.metrics.label_counts import precision_recall_f1, summed
from atento.metrics.score import Score, check_pairs, ratio

ARTICLES = {"en": ("a", "an", "the"), "pt": ("o", "a", "os", "as", "um", "uma", "uns", "umas")}
_PUNCTUATION = str.maketrans("", "", string.punctuation)

Answers = Sequence[str] | Sequence[Sequence[str]]


def squad(predictions: Sequence[str], references: Answers, *, language: str = "en", version: str = "2.0") -> Score:
    """F1 and exact match of SQuAD, 0-100: the words that an answer has in common with the nearest right one.

    Case, the punctuation of ASCII, the articles of the language and white space do not count. Where most right answers
    are in a script without spaces, each character of such a script is a word, and no punctuation counts.

    Args:
        predictions: the answers; "" says that the text has none.
        references: for each question a right answer, or the tuple of all right answers; "" or () where the text has
            none. Or a list of lists: reference sets, as for other metrics of text.
        language: "en" or "pt", whose articles are left out; of other languages nothing is left out.
        version: "2.0" or "1.1", whose official scripts differ: 2.0 has questions without an answer, and two answers
            that nothing is left of agree, where 1.1 gives them F1 0.

    Returns:
        A Score whose value is F1, with the parts `exact_match` and `f1`. If some questions have no answer, also
        `exact_match_answerable`, `f1_answerable` and `exact_match_unanswerable`, which are means over those.

    Raises:
        UsageError: unequal lengths, nothing to score, or an option is not valid.

    Paper: Rajpurkar et al. 2016, SQuAD; Rajpurkar et al. 2018, Know what you don't know.
    """
    if version not in ("1.1", "2.0"):
        raise UsageError(f"`version` must be 1.1 or 2.0: got {version!r}")
    code = tag_of(language).partition("-")[0]  # pt_BR and pt-BR are pt here
    if not re.fullmatch(r"[a-z]{2,3}", code):
        raise UsageError(f"`language` must be a code such as en: got {language!r}")
    articles = ARTICLES.get(code, ())
    rows, every = [], _answers(predictions, references)
    characters = is_unsegmented(chain(*every))
    for number, (prediction, answers) in enumerate(zip(predictions, every), 1):
        answer_text, *right = (normalized(text, articles, characters=characters) for text in (prediction, *answers))
        if version == "2.0":
            # as the official script: what is empty without articles is no answer
            right = [answer for answer in right if answer] or [""]
        elif not any(answers):
            raise UsageError(f"question {number} has no answer: version 1.1 has no such questions, 2.0 has")
        exact = float(answer_text in right)
        overlap = max(_f1(answer_text, answer, version) for answer in right)
        answerable = float(any(answers))
        # sums, so that a bootstrap sample can be added up: all, then those with an answer
        rows.append([exact, overlap, 1.0, exact * answerable, overlap * answerable, answerable])
    total = summed(rows)
    parts = {"exact_match": 100 * total[0] / total[2], "f1": 100 * total[1] / total[2]}  # column 2: questions
    unanswerable = total[2] - total[5]  # questions without an answer
    if unanswerable and version == "2.0":
        if total[5]:
            parts |= {"exact_match_answerable": 100 * total[3] / total[5], "f1_answerable": 100 * total[4] / total[5]}
        parts["exact_match_unanswerable"] = 100 * (total[0] - total[3]) / unanswerable  # right ones among those alone
    settings = f"version:{version}|articles:{code if articles else 'none'}|case:lc{'|tok:char' if characters else ''}"
    return Score("SQuAD F1", parts["f1"], parts, settings, rows, partial(ratio, at=1, by=2, times=100))


def squad_exact(predictions: Sequence[str], references: Answers, **options: str) -> Score:
    """Exact match of SQuAD, 0-100: the share of answers that equal a right one; arguments and errors as `squad`."""
    score = squad(predictions, references, **options)
    exact = score.parts["exact_match"]
    return replace(score, name="SQuAD exact match", value=exact, combine=partial(ratio, by=2, times=100))


def normalized(text: str, articles: Sequence[str], *, characters: bool = False) -> str:
    """The words of an answer that count: in lower case, without punctuation and articles, with single spaces.

    With `characters` each character of scripts without spaces is a word, and punctuation is that of Unicode.
    """
    text = text.lower().translate(_PUNCTUATION)
    if characters:
        text = split_characters("".join(sign for sign in text if not category(sign).startswith("P")))
    if articles:
        text = re.sub(rf"\b(?:{'|'.join(articles)})\b", " ", text)
    return " ".join(text.split())


def _f1(prediction: str, answer: str, version: str) -> float:
    ours, theirs = prediction.split(), answer.split()
    if version == "2.0" and not (ours and theirs):  # two empty answers agree, in 2.0
        return float(ours == theirs)
    return precision_recall_f1((Counter(ours) & Counter(theirs)).total(), len(ours), len(theirs))[2]


def _answers(predictions: Sequence[str], references: Answers) -> list[tuple[str, ...]]:
    """The right answers of each question.
    Raises UsageError: unequal lengths, nothing to score, or something other than strings.
    """
    if isinstance(predictions, str) or isinstance(references, str):
        raise UsageError("predictions and references must be lists of strings: got one string")
    if not len(predictions):
        raise UsageError("there is nothing to score: got 0 predictions")
    if len(references) and isinstance(next(iter(references)), list):  # reference sets
        for stream in references:
            if len(stream) != len(predictions):
                raise UsageError(
                    f"each prediction needs its reference: got {len(predictions)} predictions, and a reference set of "
                    f"{len(stream)}; the right answers of one question are a tuple"
                )
        answers = [tuple(several) for several in zip(*references)]
    else:
        answers = [(answer,) if isinstance(answer, str) else tuple(answer) for answer in references]
    check_pairs(predictions, answers)
    for texts in (predictions, *answers):
        for text in texts:
            if not isinstance(text, str):
                raise UsageError(f"predictions and references must be strings: got {text!r}")
    return answers
