"""The 60 errors of the lecture notes, by number, and the rows that show them."""

import re
from dataclasses import dataclass


@dataclass(frozen=True)
class Erratum:
    """An error of the notes: their statement, the correct one, and the rows whose remark names it."""

    notes: str
    right: str
    rows: tuple[str, ...]


def errors_named(remark: str) -> list[int]:
    """Return the numbers of the errors that a remark names, in its order: "(error 5)", "(errors 1, 2, 13)"."""
    lists = re.findall(r"\berrors? (\d+(?:(?:, | and )\d+)*)", remark)
    return [int(number) for group in lists for number in re.findall(r"\d+", group)]


def errata_of(row: str) -> dict[int, Erratum]:
    """Return the errors that a row names, by number."""
    return {number: erratum for number, erratum in ERRATA.items() if row in erratum.rows}


def _erratum(rows: str, notes: str, right: str) -> Erratum:
    return Erratum(notes, right, tuple(rows.split()))


ERRATA: dict[int, Erratum] = {
    1: _erratum("L1", "softmax of the scaled scores: .20 .20 .60", ".264458 .264458 .471083; theirs is unscaled"),
    2: _erratum("L1", "h_1 = [.20 .20 .60]", "h_1 = [.264458 .264458 .471083]: V is the identity, so A·V = A"),
    3: _erratum(
        "I2 K5", "ROUGE-1 .6 and ROUGE-2 .5 for P, R and F alike", "P .5, R .667, F .571; and P .333, R .5, F .4"
    ),
    4: _erratum(
        "I1 K5", "perfect copies score 1 by BLEU", "NLTK gives 1.2e-77 where a sentence has no 4-gram; sacrebleu 100"
    ),
    5: _erratum(
        "L2", "a word of a causal model sees the words before it", "also itself: the row of its mask is [1 1 1 0]"
    ),
    6: _erratum("C16", "each of 12 layers has 12 attention layers", "one attention of 12 heads; of 16 in XLM-R"),
    7: _erratum(
        "C16", "a decoder needs more parameters than an encoder", "a layer of either has 7,087,872 at the same sizes"
    ),
    8: _erratum("C16", "BERT has about 100 million parameters", "109,482,240, with 30,522 pieces"),
    9: _erratum("C16", "XLM-R has about 550 million parameters", "559,890,432, with 250,002 pieces"),
    10: _erratum(
        "C16", "Llama 3 has 405 billion parameters", "Llama 3.1 has 405,853,388,800; Llama 3 had 8 and 70 billion"
    ),
    11: _erratum("D3 L3", "one word of the example is out of vocabulary", "two: its first word too"),
    12: _erratum(
        "D1", "with subwords nothing is out of vocabulary", "unseen letters are unknown, unless bytes encode them"
    ),
    13: _erratum(
        "L1", "A is first the weights, then the output", "two values need two names; their matrix called scaled is not"
    ),
    14: _erratum(
        "A4", "steps without the scale, a matrix form with it", "these are two scores; here the scale is an option"
    ),
    15: _erratum("A2", "q = W x and Q = X W with one W", "one of them has W transposed"),
    16: _erratum("A2", "X is N by d_k", "X is N by d; Q and K are N by d_k"),
    17: _erratum(
        "A3 K1", "√d_k in float32; no mask", "√d_k in the type of the scores; a batch with padding needs a mask"
    ),
    18: _erratum("A6", "both ways means left to right and back", "all positions at once, in no direction"),
    19: _erratum(
        "A19", "attention both ways costs more than causal", "the square is as large; causal may skip half of it"
    ),
    20: _erratum(
        "E3", "bidirectional models cannot generate", "they can fill masks in rounds, though not token by token"
    ),
    21: _erratum("C5", "parameters grow with the input", "only the scores do, with its square"),
    22: _erratum("A1 J2", "y_3 compares x_3 with x_1 and x_2", "also with itself"),
    23: _erratum(
        "H5", "p of a nucleus is the minimum probability of a token", "the mass that the smallest set of tokens reaches"
    ),
    24: _erratum("H3", "temperature sharpens and reduces diversity", "only below 1; above it flattens"),
    25: _erratum("D5", "the end of a sentence is written in two ways", "it is one id"),
    26: _erratum("C1", "a layer norm without ε", "with ε: a flat token would divide 0 by 0"),
    27: _erratum("D3", "7 to 10 words a day make 30 to 100 thousand by 20", "that takes 4.1 to 13.7 a day"),
    28: _erratum(
        "H8", "a beam by sums of log-probabilities", "this favours short outputs; divide by a power of the length"
    ),
    29: _erratum("K2", "softmax(...)·V is called the weights, then multiplied by V", "V occurs once in the formula"),
    30: _erratum("A5 A9", "cross-attention mostly needs no mask", "every batch with padding does"),
    31: _erratum("A7", "the mask is binary, contains -∞ and is added", "a mask is either boolean or additive"),
    32: _erratum(
        "F8",
        "Transformers work in parallel in training and in use",
        "in training only; generation takes one step per token",
    ),
    33: _erratum(
        "C17",
        "one step from output to input, so no gradient vanishes",
        "one step at any distance; the depth of the network remains",
    ),
    34: _erratum("C17", "an RNN is linear, attention quadratic", "N·d² against N²·d: attention is cheaper while N < d"),
    35: _erratum("B11 J4", "sinusoids are called relative", "they are absolute; their product depends on the offset"),
    36: _erratum("A10", "values are made from the keys", "true of RNN attention; Transformers project the input twice"),
    37: _erratum("F1", 'exposure bias as "exposição ao viés"', '"viés de exposição"'),
    38: _erratum(
        "K4", "the best token over all positions, one sentence, divided by T", "the last position, batches, T = 0"
    ),
    39: _erratum(
        "K4",
        "a beam adds the values that the decoder returns",
        "right for log-probabilities only; logits need log-softmax",
    ),
    40: _erratum("H10 K4", "BLEU is given the candidate as the reference", "the candidate is the hypothesis"),
    41: _erratum(
        "H10", "each candidate is also compared with itself, with equal weights", "both choices change the winner"
    ),
    42: _erratum("H10", "BLEU and ROUGE are losses", "utilities; the loss is 1 - utility"),
    43: _erratum(
        "I3",
        "F1 of BLEU and ROUGE, as of precision and recall",
        "BLEU is not a precision; the name says what is combined",
    ),
    44: _erratum("F4 I5", "a report of five labels and two predictions", "unequal lengths are an error"),
    45: _erratum("F4", "training arguments with `logging_dir`", "current releases of transformers refuse it"),
    46: _erratum("D6", "every text padded to the longest possible", "to the longest of its batch"),
    47: _erratum("D5", 'the first sentinel hides "to invite"', '"for inviting"; one more sentinel closes the target'),
    48: _erratum(
        "J10", "T5 pretrained on many tasks, with a prefix in Portuguese", "on spans of C4 and a mixture; in English"
    ),
    49: _erratum("C4", "a premise is found from a hypothesis", "inference decides how they relate"),
    50: _erratum(
        "C4",
        "QQP has two pairs of questions, MNLI one accuracy",
        "two questions; accuracies for matched and mismatched",
    ),
    51: _erratum("J10", "tasks mixed by size without a cap", "T5 counts at most K examples of a data set"),
    52: _erratum("L7", "the address of the course they follow", "that of another course"),
    53: _erratum("A13", "attention does not change with the order", "its outputs move with the words: equivariant"),
    54: _erratum("B1", "i of a sinusoid is the dimension", "the index of the pair of sine and cosine, 0 to d/2 - 1"),
    55: _erratum(
        "B9", "absolute positions do, and do not, generalise to longer texts", "measured: they generalise poorly"
    ),
    56: _erratum(
        "B1 K3", "a class of sinusoids", "an import is missing, odd widths fail, the batch index is the position"
    ),
    57: _erratum("K3", "a relative class", "its einsum has two letters for three dimensions"),
    58: _erratum("K3", "a distance's row depends on the length of the text", "one row a distance at any length"),
    59: _erratum(
        "B6", "no √d_k, no value vectors, no mask, tables as wide as all heads", "as in Shaw et al., head by head"
    ),
    60: _erratum("B4", "R is inside the scaling", "this depends on the scheme: T5's bias is outside"),
}
