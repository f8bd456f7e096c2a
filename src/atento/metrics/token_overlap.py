"""Token F1, and the F1 of BLEU and ROUGE of the lecture notes (docs/notes.md#i3)."""

from collections import Counter
from collections.abc import Sequence
from functools import partial
from itertools import chain

from atento.metrics.bleu import References, Split, bleu, is_spaceless, reference_streams, split_words
from atento.metrics.rouge import PARTS, rouge, sides_of
from atento.metrics.score import Score, ratio


def token_f1(predictions: Sequence[str], references: References, *, lowercase: bool = False) -> Score:
    """Token F1, 0-100: the F-score of the words that a prediction and its reference have in common, in any order.

    Words are separated by white space, and where the references are in a script without spaces each character of such a
    script is one. With several references the best one counts. Two texts without words agree, as
    in the SQuAD script. The score is the mean over texts.

    Args:
        predictions: the texts.
        references: a list of texts, or a list of reference sets.
        lowercase: whether to ignore case.

    Returns:
        A Score with the parts `precision`, `recall` and `f1`, which are means.

    Raises:
        UsageError: the lengths differ, or there is nothing to score.
    """
    streams = reference_streams(predictions, references)
    characters = is_spaceless(chain(*streams))
    split = split_words if characters else str.split
    rows = []
    for prediction, *answers in zip(predictions, *streams):
        best = max((_pair(prediction, answer, lowercase, split) for answer in answers), key=lambda sides: sides[2])
        rows.append([*best, 1.0])
    total = [sum(column) for column in zip(*rows)]
    parts = {name: 100 * part / len(rows) for name, part in zip(("precision", "recall", "f1"), total)}
    settings = f"nrefs:{len(streams)}|case:{'lc' if lowercase else 'mixed'}|tok:{'char' if characters else 'space'}"
    return Score("token F1", parts["f1"], parts, settings, rows, partial(ratio, at=2, times=100))


def f1_bleu_rouge(
    predictions: Sequence[str], references: References, *, tokenize: str = "unicode", stem: str = "none"
) -> Score:
    """F1 of BLEU and ROUGE, 0-100: 2BR / (B + R) of corpus BLEU and mean ROUGE-1 recall; 0 if both are 0.

    This is the definition of the lecture notes (error 43, docs/notes.md#i3). BLEU is used as precision although it is a
    geometric mean with a penalty, so the result differs from token F1.

    Args:
        predictions: the texts.
        references: a list of texts, or a list of reference sets.
        tokenize: tokenizer of ROUGE, as in `rouge`; that of BLEU goes by the script of the references.
        stem: stemmer of ROUGE, as in `rouge`.

    Returns:
        A Score with the parts `bleu` and `rouge1_recall`.

    Raises:
        UsageError: the lengths differ, there is nothing to score, or an option is not valid.
    """
    first = bleu(predictions, references)
    second = rouge(predictions, references, tokenize=tokenize, stem=stem)
    recall = PARTS.index("rouge1_recall")
    # the numbers of BLEU, then of ROUGE, then 1 a text
    rows = [[*ours, row[recall], 1.0] for ours, row in zip(first.segments, second.segments)]
    width = len(rows[0]) - 2  # columns of BLEU

    def combine(total: list[float]) -> float:
        return harmonic_mean(first.combine(total[:width]), 100 * total[width] / total[width + 1])

    def single(row: list[float]) -> float:
        # BLEU of one sentence counts only the orders that it has
        return harmonic_mean((first.single or first.combine)(row[:width]), 100 * row[width])

    parts = {"bleu": first.value, "rouge1_recall": second.parts["rouge1_recall"]}
    settings = f"{first.settings} {second.settings}"
    return Score("F1 (BLEU, ROUGE)", harmonic_mean(*parts.values()), parts, settings, rows, combine, single)


def harmonic_mean(a: float, b: float) -> float:
    """2ab / (a + b); 0 if both are 0."""
    return 2 * a * b / (a + b) if a + b else 0.0


def _pair(prediction: str, reference: str, lowercase: bool, split: Split) -> tuple[float, float, float]:
    if lowercase:
        prediction, reference = prediction.lower(), reference.lower()
    ours, theirs = Counter(split(prediction)), Counter(split(reference))
    if not ours and not theirs:
        return 1.0, 1.0, 1.0
    return sides_of((ours & theirs).total(), ours.total(), theirs.total())  # the smaller count of each word
