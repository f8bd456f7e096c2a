"""Row I1: BLEU as papers print it and as NLTK counts it, on the notes' own pair and on known cases."""

import math

from atento.metrics import bleu
from atento.notes.finding import Finding, compare
from atento.notes.listing_bleu import clipped, corpus_bleu, sentence_bleu

# The notes' two sentences with their references, one and two of them.
REFERENCES = [[["this", "is", "a", "test"], ["this", "is", "a", "trial"]], [["another", "test", "sentence"]]]
CANDIDATES = [["this", "is", "a", "test"], ["another", "test", "sentence"]]


def bleu_score() -> Finding:
    """I1: BP · exp(Σ w_n log p_n), with clipping; a perfect copy is 100, and less than 1 as NLTK counts short ones."""
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
        },
        {
            "copies": 100.0,
            "NLTK, sentence 1": 1.0,
            "NLTK, sentence 2": 1.2213386697554703e-77,
            "NLTK, corpus": 0.8408964152537145,
            "the × 7": [2, 7, 100 * 2 / 7],
            "no tapete": {"BLEU": by_hand, "BP": math.exp(-0.2)},
        },
        within=1e-9,
        notes={"NLTK, sentence 2": 1.0, "NLTK, corpus": 1.0},
        remark="no output is shown there and perfect copies are implied to score 1; a sentence of three words has no "
        "4-gram, which NLTK counts as one wrong; sacrebleu gives 100 (error 4)",
    )
