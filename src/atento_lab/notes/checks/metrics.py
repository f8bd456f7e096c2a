"""Checks of BLEU, ROUGE and their F1, compared with counts made by hand (docs/notes.md#i1 to #i3, #j12)."""

import math
from collections import Counter
from collections.abc import Sequence
from itertools import combinations

import torch

from atento.metrics import bleu, f1_bleu_rouge, rouge, token_f1
from atento.metrics.rouge import harmonic_mean
from atento.notes.listing_bleu import clipped, corpus_bleu, sentence_bleu
from atento_lab.notes.drawing import heat, labelled, sheet
from atento_lab.notes.finding import AtMost, Finding, compare

# The notes' two sentences with their references: two of the first, one of the second.
REFERENCES = [[["this", "is", "a", "test"], ["this", "is", "a", "trial"]], [["another", "test", "sentence"]]]
CANDIDATES = [["this", "is", "a", "test"], ["another", "test", "sentence"]]
ROUGE_PAIR = ("another test sentence", "a different test sentence")  # reference and candidate, the notes' second pair
ALMOST = AtMost(1e-9)
Words = Sequence[str]


def grams(words: Words, order: int) -> Counter[tuple[str, ...]]:
    """Count the n-grams of a text."""
    return Counter(tuple(words[i : i + order]) for i in range(len(words) - order + 1))


def random_texts(count: int, min_length: int, max_length: int, letters: str = "abcd") -> list[list[str]]:
    """Return texts of random one-letter words."""
    lengths = torch.randint(min_length, max_length + 1, (count,)).tolist()
    return [[letters[i] for i in torch.randint(len(letters), (length,)).tolist()] for length in lengths]


def bleu_by_hand(references: Sequence[Sequence[Words]], candidates: Sequence[Words]) -> tuple[float, float]:
    """Return corpus BLEU, 0-1, and its brevity penalty, without smoothing; references are [sentence][reference]."""
    logs, length = 0.0, sum(map(len, candidates))
    for order in range(1, 5):
        matches = total = 0
        for answers, words in zip(references, candidates):
            for gram, count in grams(words, order).items():
                matches += min(count, max(grams(answer, order)[gram] for answer in answers))
                total += count
        logs += math.log(matches / total) / 4 if matches else -math.inf  # 0 matches: log 0
    reference_length = 0
    for answers, words in zip(references, candidates):
        # the nearest length, of two the shorter one
        reference_length += min((abs(len(answer) - len(words)), len(answer)) for answer in answers)[1]
    penalty = min(1.0, math.exp(1 - reference_length / length))  # brevity penalty
    return penalty * math.exp(logs), penalty


def bleu_away(corpora: int = 30) -> float:
    """Return the largest error of BLEU, its penalty and the notes' corpus_bleu against counts by hand."""
    error = 0.0
    for _ in range(corpora):
        candidates = random_texts(8, 4, 9)
        references = [random_texts(2, 4, 12) for _ in candidates]
        for words, answers in zip(candidates, references):
            answers[0][:4] = words[:4]  # at least one n-gram of each order matches
        streams = [[" ".join(answers[n]) for answers in references] for n in (0, 1)]
        score = bleu([" ".join(words) for words in candidates], streams, tokenize="none", smooth="none")
        value, penalty = bleu_by_hand(references, candidates)
        listing = corpus_bleu(references, candidates)
        error = max(error, abs(score.value / 100 - value), abs(score.parts["bp"] - penalty), abs(listing - value))
    return error


def bleu_score() -> Finding:
    """I1: BP · exp(Σ w_n log p_n), with clipping; a perfect copy scores 100."""
    streams = [["this is a test", "another test sentence"], ["this is a trial", "another test sentence"]]
    copies = bleu([" ".join(words) for words in CANDIDATES], streams)
    the = bleu(["the the the the the the the"], [["the cat is on the mat"], ["there is a cat on the mat"]])
    cat = bleu(["o gato está no tapete"], ["o gato está sentado no tapete"])
    # p = 5/5, 3/4, 1/3 and none of 2, which sacrebleu's smoothing halves: 1/4; five words for six
    by_hand = 100 * math.exp(1 - 6 / 5) * (1 * 3 / 4 * 1 / 3 * 1 / 4) ** 0.25
    return compare(
        {
            "copies": copies.value,
            "NLTK, sentence 1": sentence_bleu(REFERENCES[0], CANDIDATES[0]),
            "NLTK, sentence 2": sentence_bleu(REFERENCES[1], CANDIDATES[1]),
            "NLTK, corpus": corpus_bleu(REFERENCES, CANDIDATES),
            "the × 7": [*clipped([["the"] * 2], ["the"] * 7, 1), the.parts["p1"]],
            "no tapete": {"BLEU": cat.value, "BP": cat.parts["bp"]},
            "weights 1 0 0 0": sentence_bleu([["a", "b", "c"]], ["a", "x", "c"], weights=(1.0, 0.0, 0.0, 0.0)),
            "30 random corpora away from counts by hand": bleu_away(),
        },
        {
            "copies": 100.0,
            "NLTK, sentence 1": 1.0,
            "NLTK, sentence 2": 1.2213386697554703e-77,
            "NLTK, corpus": 0.8408964152537145,
            "the × 7": [2, 7, 100 * 2 / 7],
            "no tapete": {"BLEU": by_hand, "BP": math.exp(-0.2)},
            "weights 1 0 0 0": 2 / 3,
            "30 random corpora away from counts by hand": ALMOST,
        },
        within=1e-9,
        notes={"NLTK, sentence 2": 1.0, "NLTK, corpus": 1.0},
        remark="the notes show no output and imply that perfect copies score 1; a sentence of three words has no "
        "4-gram, which NLTK counts as one wrong 4-gram; sacrebleu gives 100 (error 4)",
    )


# ROUGE ---------------------------------------------------------------------------------------------------------------


def sides(common: float, n_prediction: int, n_reference: int) -> tuple[float, float, float]:
    """Return precision, recall and F; 0 where the denominator is 0."""
    precision, recall = common / n_prediction if n_prediction else 0.0, common / n_reference if n_reference else 0.0
    return precision, recall, 2 / (1 / precision + 1 / recall) if precision and recall else 0.0


def longest_by_trying(prediction: Words, reference: Words) -> int:
    """Return the length of the longest common subsequence, by trying all subsequences of the first text."""
    for size in range(min(len(prediction), len(reference)), 0, -1):
        for chosen in combinations(prediction, size):
            remaining = iter(reference)
            if all(word in remaining for word in chosen):
                return size
    return 0


def rouge_by_hand(prediction: Words, reference: Words) -> dict[str, tuple[float, float, float]]:
    """Return ROUGE-1, -2 and -L of one pair, 0-1."""
    scores = {}
    for order in (1, 2):
        prediction_grams, reference_grams = grams(prediction, order), grams(reference, order)
        common = sum(min(count, reference_grams[gram]) for gram, count in prediction_grams.items())
        scores[f"rouge{order}"] = sides(common, prediction_grams.total(), reference_grams.total())
    scores["rougeL"] = sides(longest_by_trying(prediction, reference), len(prediction), len(reference))
    return scores


def rouge_away(pairs: int = 60) -> float:
    """Return the largest error against counts by hand, over random texts with two references.

    The reference of best F counts.
    """
    error = 0.0
    for _ in range(pairs):
        prediction, *references = random_texts(3, 1, 7)
        score = rouge([" ".join(prediction)], [[" ".join(reference)] for reference in references])
        by_hand = [rouge_by_hand(prediction, reference) for reference in references]
        for kind in ("rouge1", "rouge2", "rougeL"):
            best = max(scores[kind][2] for scores in by_hand)
            values = tuple(score.parts[f"{kind}_{side}"] / 100 for side in ("precision", "recall", "f"))
            # where references tie in F, either may be the one that counted
            nearest = [scores[kind] for scores in by_hand if abs(scores[kind][2] - best) < 1e-12]
            error = max(error, min(max(abs(a - b) for a, b in zip(values, expected)) for expected in nearest))
    return error


def rouge_parts(prediction: str, reference: str, kind: str) -> list[float]:
    """Return precision, recall and F of one pair, 0-1."""
    parts = rouge([prediction], [reference]).parts
    return [parts[f"{kind}_{side}"] / 100 for side in ("precision", "recall", "f")]


def rouge_score() -> Finding:
    """I2: ROUGE-1, -2, -L and -Lsum: precision, recall and F; words of any script, several references."""
    reference, candidate = ROUGE_PAIR
    accents = rouge(["ação"], ["nação"]).parts["rouge1_f"], rouge(["é"], ["é"]).parts["rouge1_f"]
    narrow = rouge(["ação"], ["nação"], tokenize="rouge-score").parts["rouge1_f"]
    # Lin 2004, 3.2: the reference's words on a longest common subsequence with either sentence are w1 w2 w3 w5
    union = rouge_parts("w1 w2 w6 w7 w8\nw1 w3 w8 w9 w5", "w1 w2 w3 w4 w5", "rougeLsum")
    return compare(
        {
            "second pair, ROUGE-1": rouge_parts(candidate, reference, "rouge1"),
            "second pair, ROUGE-2": rouge_parts(candidate, reference, "rouge2"),
            "second pair, ROUGE-L": rouge_parts(candidate, reference, "rougeL"),
            "the × 7": rouge_parts("the the the the the the the", "the cat on the mat", "rouge1")[:2],
            "two sentences, ROUGE-Lsum": union,
            "ação and nação, é and é": list(accents),
            "random pairs away from counts by hand": rouge_away(),
        },
        {
            "second pair, ROUGE-1": [1 / 2, 2 / 3, 4 / 7],
            "second pair, ROUGE-2": [1 / 3, 1 / 2, 2 / 5],
            "second pair, ROUGE-L": [1 / 2, 2 / 3, 4 / 7],
            "the × 7": [2 / 7, 2 / 5],
            "two sentences, ROUGE-Lsum": [4 / 10, 4 / 5, 8 / 15],
            "ação and nação, é and é": [0.0, 100.0],
            "random pairs away from counts by hand": ALMOST,
        },
        within=1e-9,
        notes={"second pair, ROUGE-1": [0.6, 0.6, 0.6], "second pair, ROUGE-2": [0.5, 0.5, 0.5]},
        remark="two of the candidate's four words and of the reference's three agree, one pair of three and of two, "
        f'with a stemmer or without (error 3); cut at letters beyond a to z, as rouge-score does, "ação" and "nação" '
        f"would agree to {narrow:.0f} %",
    )


def f1_of_both() -> Finding:
    """I3: 2BR / (B + R), and 0 where both are 0; it is not token F1."""
    texts = (
        ["o gato está no tapete", "ele gosta de ler livros"],
        ["o gato está sentado no tapete", "ele gosta de livros"],
    )
    joined, words = f1_bleu_rouge(*texts), token_f1(*texts)
    b = bleu(*texts).value
    # ROUGE-1 recall: 5 of 6 words of the first, 4 of 4 of the second
    r = 100 * (5 / 6 + 1) / 2
    return compare(
        {
            "F1 (BLEU, ROUGE)": joined.value,
            "of 40 and 60": harmonic_mean(40.0, 60.0),
            "nothing in common": f1_bleu_rouge(["um"], ["dois"]).value,
            "a copy": f1_bleu_rouge(["o gato está no tapete"], ["o gato está no tapete"]).value,
            "name": joined.name,
            "token F1 of the same": words.value,
        },
        {
            "F1 (BLEU, ROUGE)": 2 * b * r / (b + r),
            "of 40 and 60": 48.0,
            "nothing in common": 0.0,
            "a copy": 100.0,
            "name": "F1 (BLEU, ROUGE)",
            "token F1 of the same": 100 * (2 * 5 / 11 + 2 * 4 / 9) / 2,
        },
        within=1e-9,
        remark="the notes combine BLEU as if it were a precision; it is a geometric mean with a brevity penalty, so "
        "the name says what is combined (error 43)",
    )


def combined_scores_drawn() -> Finding:
    """J12: near the lower of the two, and 0 where one is 0."""
    scores = [0.0, 20.0, 40.0, 60.0, 80.0, 100.0]
    table = [[harmonic_mean(b, r) for r in scores] for b in scores]
    names = [f"{score:.0f}" for score in scores]
    return compare(
        {"F1": table, "above twice the lower one": sum(f > 2 * min(b, r) for b, r, f in _cells(scores, table))},
        {
            "F1": [[2 * b * r / (b + r) if b + r else 0.0 for r in scores] for b in scores],
            "above twice the lower one": 0,
        },
        within=1e-9,
        drawing=labelled(table, names, names, digits=0),
        figure=sheet("F1 of BLEU (rows) and ROUGE (columns)", [[heat(table, "2BR / (B + R)", names, names, digits=0)]]),
    )


def _cells(scores: Sequence[float], table: Sequence[Sequence[float]]) -> list[tuple[float, float, float]]:
    return [(b, r, f) for b, row in zip(scores, table) for r, f in zip(scores, row)]
