"""The 60 errors of the lecture notes, by number, and the rows that show them."""

import re
from dataclasses import dataclass


@dataclass(frozen=True)
class Erratum:
    """What the notes have, what is right, both in words of our own, and the rows whose remark tells it."""

    notes: str
    right: str
    rows: tuple[str, ...]


def errors_told(remark: str) -> list[int]:
    """The numbers of the errors that a remark tells: "(error 5)", "(errors 1, 2, 13)", in the order told."""
    lists = re.findall(r"\berrors? (\d+(?:(?:, | and )\d+)*)", remark)
    return [int(number) for one in lists for number in re.findall(r"\d+", one)]


def errata_of(row: str) -> dict[int, Erratum]:
    """The errors that a row tells, by number."""
    return {number: one for number, one in ERRATA.items() if row in one.rows}


def _told(rows: str, notes: str, right: str) -> Erratum:
    return Erratum(notes, right, tuple(rows.split()))


ERRATA: dict[int, Erratum] = {
    1: _told(
        "L1", "softmax of the scaled scores: .20 .20 .60", ".264458 .264458 .471083; theirs is of unscaled scores"
    ),
    2: _told("L1", "h_1 = [.20 .20 .60]", "h_1 = [.264458 .264458 .471083]: V is the identity, so A·V = A"),
    3: _told("I2 K5", "ROUGE-1 .6 and ROUGE-2 .5 for P, R and F alike", "P .5, R .667, F .571; and P .333, R .5, F .4"),
    4: _told(
        "I1 K5", "perfect copies score 1 by BLEU", "NLTK gives 1.2e-77 where a sentence has no 4-gram; sacrebleu 100"
    ),
    5: _told(
        "L2", "a word of a causal model sees what stands before it", "itself too: the row of its mask is [1 1 1 0]"
    ),
    6: _told("C16", "each of 12 layers has 12 attention layers", "one attention of 12 heads; of 16 in XLM-R"),
    7: _told(
        "C16", "a decoder needs more parameters than an encoder", "a layer of either has 7,087,872 at the same sizes"
    ),
    8: _told("C16", "BERT has about 100 million parameters", "109,482,240, with 30,522 pieces"),
    9: _told("C16", "XLM-R has about 550 million parameters", "559,890,432, with 250,002 pieces"),
    10: _told(
        "C16", "Llama 3 has 405 billion parameters", "Llama 3.1 has 405,853,388,800; Llama 3 had 8 and 70 billion"
    ),
    11: _told("D3 L3", "one word of the example is out of vocabulary", "two: its first word is not in it either"),
    12: _told(
        "D1", "subwords leave nothing out of vocabulary", "letters never seen are unknown, unless bytes stand in"
    ),
    13: _told(
        "L1", "A is first the weights, then the output", "two things, two names; their matrix called scaled is not"
    ),
    14: _told("A4", "steps without the scale, a matrix form with it", "two scores, an option here"),
    15: _told("A2", "q = W x and Q = X W with one W", "one of them has W transposed"),
    16: _told("A2", "X is N by d_k", "X is N by d; Q and K are N by d_k"),
    17: _told("A3 K1", "√d_k made in float32; no mask", "in the type of the scores; a batch with padding needs a mask"),
    18: _told("A6", "both ways means left to right and back", "all positions at once, in no direction"),
    19: _told(
        "A19", "attention both ways costs more than causal", "the square is as large; causal may skip half of it"
    ),
    20: _told("E3", "models that read both ways cannot write", "they fill masks in rounds, though not token by token"),
    21: _told("C5", "parameters grow with the input", "only the scores do, with its square"),
    22: _told("A1 J2", "y_3 compares x_3 with x_1 and x_2", "with itself too, as the formula has it"),
    23: _told("H5", "p of a nucleus is a least probability of a token", "the mass that the smallest set reaches"),
    24: _told("H3", "temperature sharpens, and costs diversity", "below 1; above 1 it flattens"),
    25: _told("D5", "the end of a sentence written in two ways", "one id"),
    26: _told("C1", "a layer norm without ε", "with ε: a flat token would divide 0 by 0"),
    27: _told("D3", "7 to 10 words a day make 30 to 100 thousand by 20", "that takes 4.1 to 13.7 a day"),
    28: _told("H8", "a beam by sums of log-probabilities", "short outputs win; divide by a power of the length"),
    29: _told("K2", "softmax(...)·V is called the weights, then multiplied by V", "V stands there once"),
    30: _told("A5 A9", "cross-attention mostly needs no mask", "every batch with padding does"),
    31: _told("A7", "the mask is binary, holds -∞ and is added", "either boolean or additive"),
    32: _told("F8", "Transformers work in parallel in training and in use", "in training; writing is one step a token"),
    33: _told("C17", "one step from output to input, so no gradient vanishes", "one at any distance; depth remains"),
    34: _told("C17", "an RNN is linear, attention quadratic", "N·d² against N²·d: attention is cheaper while N < d"),
    35: _told("B11 J4", "sinusoids are called relative", "they are absolute; products of two depend on the offset"),
    36: _told("A10", "values are made from the keys", "true of RNN attention; Transformers project the input twice"),
    37: _told("F1", 'exposure bias as "exposição ao viés"', '"viés de exposição"'),
    38: _told(
        "K4", "the best token over all positions, one sentence, divided by T", "the last position, batches, T = 0"
    ),
    39: _told(
        "K4", "a beam adds what the decoder returns", "right for log-probabilities alone; logits need log-softmax"
    ),
    40: _told("H10 K4", "BLEU is given the candidate as the reference", "the candidate is the hypothesis"),
    41: _told("H10", "each candidate against itself too, all weights alike", "both are choices that change the winner"),
    42: _told("H10", "BLEU and ROUGE are losses", "utilities; the loss is 1 - utility"),
    43: _told(
        "I3", "F1 of BLEU and ROUGE, as of precision and recall", "BLEU is no precision; the name says what is joined"
    ),
    44: _told("F4", "a report of five labels and two predictions", "unequal lengths, which is an error"),
    45: _told("F4", "training arguments with `logging_dir`", "current releases of transformers refuse it"),
    46: _told("D6", "every text padded to the longest possible", "to the longest of its batch"),
    47: _told("D5", 'the first sentinel hides "to invite"', '"for inviting"; one more sentinel closes the target'),
    48: _told(
        "J10", "T5 pretrained on many tasks, with a prefix in Portuguese", "on spans of C4 and a mixture; in English"
    ),
    49: _told("C4", "a premise is found from a hypothesis", "inference decides how the two relate"),
    50: _told("C4", "QQP has two pairs of questions, MNLI one accuracy", "two questions; matched and mismatched"),
    51: _told("J10", "tasks mixed by size without a cap", "T5 counts no set for more than K examples"),
    52: _told("L7", "the address of the course they follow", "it is that of another course"),
    53: _told("A13", "attention does not change with the order", "its outputs move with the words: equivariant"),
    54: _told("B1", "i of a sinusoid is the dimension", "the number of the pair of sine and cosine, 0 to d/2 - 1"),
    55: _told("B9", "absolute positions carry over to longer texts, and do not", "measured: they carry over poorly"),
    56: _told(
        "B1 K3", "a class of sinusoids", "an import is missing, odd widths fail, the batch index is the position"
    ),
    57: _told("K3", "a relative class", "its einsum has two letters for three dimensions"),
    58: _told("K3", "a distance's row depends on the length of the text", "one row a distance at any length"),
    59: _told("B6", "no √d_k, no value vectors, no mask, tables as wide as all heads", "as Shaw has it, head by head"),
    60: _told("B4", "R stands inside the scaling", "that is a matter of the scheme: T5's bias stands outside"),
}
