"""Scores of words in common: token F1, and the notes' F1 that joins BLEU and ROUGE (docs/notes.md#i3)."""

from collections import Counter
from collections.abc import Sequence

from atento.metrics.rouge import PARTS, rouge, sides_of
from atento.metrics.score import Score
from atento.metrics.text import References, bleu, reference_streams


def token_f1(predictions: Sequence[str], references: References, *, lowercase: bool = False) -> Score:
    """Token F1, 0-100: the F-score of the words a prediction shares with its reference, in whatever order.

    Words are what white space divides, as they stand. Of many references the best counts; two texts without words
    agree, as in SQuAD's script. The score is the mean over all texts.

    Args:
        predictions: one a text.
        references: one list, or a list of lists, one list a reference set.
        lowercase: ignore case.

    Returns:
        a Score with the parts `precision`, `recall` and `f1`, each a mean.

    Raises:
        UsageError: unequal lengths, or nothing to score.
    """
    streams = reference_streams(predictions, references)
    rows = []
    for prediction, *answers in zip(predictions, *streams):
        best = max((_pair(prediction, answer, lowercase) for answer in answers), key=lambda sides: sides[2])
        rows.append([*best, 1.0])
    total = [sum(column) for column in zip(*rows)]
    parts = {name: 100 * part / len(rows) for name, part in zip(("precision", "recall", "f1"), total)}
    settings = f"nrefs:{len(streams)}|case:{'lc' if lowercase else 'mixed'}|tok:space"
    return Score("token F1", _mean_f1(total), parts, settings, rows, _mean_f1)


def f1_bleu_rouge(
    predictions: Sequence[str],
    references: References,
    *,
    tokenize: str = "unicode",
    stem: str = "none",
) -> Score:
    """F1 (BLEU, ROUGE), 0-100: 2BR / (B + R) of corpus BLEU and mean ROUGE-1 recall; 0 where both are 0.

    The notes' own definition (error 43, docs/notes.md#i3): BLEU stands for precision though it is a geometric mean with
    a penalty, so this is neither an F-score of one count nor token F1.

    Args:
        predictions: one a text.
        references: one list, or a list of lists, one list a reference set.
        tokenize, stem: of ROUGE, as in `rouge`; BLEU's are its defaults.

    Returns:
        a Score with the parts `bleu` and `rouge1_recall`.

    Raises:
        UsageError: unequal lengths, nothing to score, or an option out of range.
    """
    first = bleu(predictions, references)
    second = rouge(predictions, references, tokenize=tokenize, stem=stem)
    recall = PARTS.index("rouge1_recall")
    rows = [[*ours, row[recall], 1.0] for ours, row in zip(first.segments, second.segments)]
    width = len(rows[0]) - 2

    def combine(total: list[float]) -> float:
        return harmonic_mean(first.combine(total[:width]), 100 * total[width] / total[width + 1])

    def single(row: list[float]) -> float:
        return harmonic_mean((first.single or first.combine)(row[:width]), 100 * row[width])

    parts = {"bleu": first.value, "rouge1_recall": second.parts["rouge1_recall"]}
    settings = f"{first.settings} {second.settings}"
    return Score("F1 (BLEU, ROUGE)", harmonic_mean(*parts.values()), parts, settings, rows, combine, single)


def harmonic_mean(a: float, b: float) -> float:
    """2ab / (a + b), 0 where both are 0."""
    return 2 * a * b / (a + b) if a + b else 0.0


def _pair(prediction: str, reference: str, lowercase: bool) -> tuple[float, float, float]:
    if lowercase:
        prediction, reference = prediction.lower(), reference.lower()
    ours, theirs = Counter(prediction.split()), Counter(reference.split())
    if not ours and not theirs:
        return 1.0, 1.0, 1.0
    return sides_of((ours & theirs).total(), ours.total(), theirs.total())


def _mean_f1(total: list[float]) -> float:
    return 100 * total[2] / total[3]
