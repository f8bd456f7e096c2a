"""BLEU, chrF and TER by sacrebleu, and exact match."""

from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from typing import TYPE_CHECKING, cast

from atento.errors import UsageError, nearest
from atento.metrics.score import Score

if TYPE_CHECKING:
    from sacrebleu.metrics.base import Metric

References = Sequence[str] | Sequence[Sequence[str]]

_SMOOTHING = ["exp", "floor", "add-k", "none"]
_TOKENIZERS = ["13a", "intl", "char", "zh", "none"]  # those of sacrebleu that need no download or package


def bleu(
    predictions: Sequence[str],
    references: References,
    *,
    tokenize: str = "13a",
    lowercase: bool = False,
    smooth: str = "exp",
    max_order: int = 4,
) -> Score:
    """Corpus BLEU, 0-100: geometric mean of clipped n-gram precisions with a brevity penalty (docs/notes.md#i1).

    Args:
        predictions: the sentences.
        references: a list of sentences, or a list of reference sets.
        tokenize: sacrebleu's tokenizer: "13a", "intl", "char", "zh" or "none".
        lowercase: whether to ignore case.
        smooth: smoothing of a precision of 0: "exp", "floor", "add-k" or "none".
        max_order: the longest n-gram.

    Returns:
        A Score whose parts are the precisions `p1` ..., the brevity penalty `bp`, and both lengths in tokens. Its
        `per_sentence` uses only the orders up to the length of a sentence (sacrebleu's effective order).

    Raises:
        UsageError: the lengths differ, there is nothing to score, or an option is not valid.

    Paper: Papineni et al. 2002, BLEU; Post 2018, A call for clarity in reporting BLEU scores.
    """
    sentence_bleu = _value_of(_bleu(tokenize, lowercase, smooth, max_order, effective_order=True))
    return _scored(
        "BLEU", _bleu(tokenize, lowercase, smooth, max_order), predictions, references, _bleu_parts, sentence_bleu
    )


def chrf(
    predictions: Sequence[str],
    references: References,
    *,
    char_order: int = 6,
    word_order: int = 0,
    beta: int = 2,
    lowercase: bool = False,
) -> Score:
    """Corpus chrF, 0-100: the F-score of character n-grams; with `word_order` 2 it is chrF++.

    Args:
        predictions: the sentences.
        references: a list of sentences, or a list of reference sets.
        char_order: the longest n-gram of characters.
        word_order: the longest n-gram of words.
        beta: the weight of recall relative to precision.
        lowercase: whether to ignore case.

    Raises:
        UsageError: the lengths differ, there is nothing to score, or an option is not valid.

    Paper: Popović 2015, chrF; Popović 2017, chrF++.
    """
    name = f"chrF{beta}{'+' * word_order}"
    return _scored(name, _chrf(char_order, word_order, beta, lowercase), predictions, references, _chrf_parts)


def ter(
    predictions: Sequence[str], references: References, *, normalized: bool = False, case_sensitive: bool = False
) -> Score:
    """Translation edit rate: edits and shifts per 100 reference words; 0 is best, and values above 100 are possible.

    Args:
        predictions: the sentences.
        references: a list of sentences, or a list of reference sets.
        normalized: whether to split punctuation from words first.
        case_sensitive: whether a difference in case is an edit.

    Raises:
        UsageError: the lengths differ, or there is nothing to score.

    Paper: Snover et al. 2006, A study of translation edit rate.
    """
    from sacrebleu.metrics.ter import TER

    metric = TER(normalized=normalized, case_sensitive=case_sensitive)
    names = ("edits", "reference_length")
    return _scored("TER", metric, predictions, references, lambda _, total: dict(zip(names, map(float, total))))


def exact_match(predictions: Sequence[str], references: References) -> Score:
    """The percentage of predictions that equal one of their references exactly, 0-100.

    Raises:
        UsageError: the lengths differ, or there is nothing to score.
    """
    streams = reference_streams(predictions, references)
    rows = [[float(guess in answers), 1.0] for guess, *answers in zip(predictions, *streams)]
    matches = sum(row[0] for row in rows)
    parts = {"matches": matches, "count": float(len(rows))}
    return Score("exact match", _share([matches, len(rows)]), parts, f"nrefs:{len(streams)}|case:mixed", rows, _share)


# sacrebleu --------------------------------------------------------------------------------------------------------


def _bleu(tokenize: str, lowercase: bool, smooth: str, max_order: int, effective_order: bool = False) -> "Metric":
    from sacrebleu.metrics.bleu import BLEU  # late: it takes 0.1 s, also in `atento --help`

    if smooth not in _SMOOTHING:
        raise UsageError(f"unknown BLEU smoothing {smooth!r}{nearest(smooth, _SMOOTHING)}")
    if tokenize not in _TOKENIZERS:
        raise UsageError(f"unknown BLEU tokenizer {tokenize!r}{nearest(tokenize, _TOKENIZERS)}")
    if max_order < 1:
        raise UsageError(f"`max_order` must be at least 1: got {max_order}")
    return BLEU(
        lowercase=lowercase,
        force=True,  # no warning about text that looks tokenised
        tokenize=tokenize,
        smooth_method=smooth,
        max_ngram_order=max_order,
        effective_order=effective_order,
    )


def _chrf(char_order: int, word_order: int, beta: int, lowercase: bool) -> "Metric":
    from sacrebleu.metrics.chrf import CHRF

    if char_order < 1 or word_order < 0 or beta < 1:
        raise UsageError(
            "`char_order` and `beta` must be at least 1 and `word_order` at least 0: "
            f"got {char_order}, {beta} and {word_order}"
        )
    return CHRF(char_order=char_order, word_order=word_order, beta=beta, lowercase=lowercase)


def _scored(
    name: str,
    metric: "Metric",
    predictions: Sequence[str],
    references: References,
    parts: Callable[["Metric", list[float]], dict[str, float]],
    single: Callable[[list[float]], float] | None = None,
) -> Score:
    """Score with sacrebleu's statistics of each segment and its score of their sum.

    Both functions have a leading underscore in sacrebleu, which has kept them since 2.0 and uses them in its own
    significance tests. Tests compare with its public results.
    """
    rows = metric._extract_corpus_statistics(list(predictions), reference_streams(predictions, references))
    combine = _value_of(metric)
    total = [sum(column) for column in zip(*rows)]  # statistics of sacrebleu add up
    return Score(name, combine(list(total)), parts(metric, total), str(metric.get_signature()), rows, combine, single)


def _value_of(metric: "Metric") -> Callable[[list[float]], float]:
    def combine(total: list[float]) -> float:
        return float(metric._compute_score_from_stats(total).score)

    return combine


def _bleu_parts(metric: "Metric", total: list[float]) -> dict[str, float]:
    score = metric._compute_score_from_stats(list(total))
    precisions = {f"p{order}": float(value) for order, value in enumerate(score.precisions, start=1)}
    return precisions | {"bp": float(score.bp), "length": float(total[0]), "reference_length": float(total[1])}


def _chrf_parts(metric: "Metric", total: list[float]) -> dict[str, float]:
    """Mean precision and recall over the orders that both sides have, from which the F-score is computed."""
    orders = [total[at : at + 3] for at in range(0, len(total), 3)]  # of each order: ours, theirs, matches
    shares = [(match / ours, match / theirs) for ours, theirs, match in orders if ours and theirs]
    precision, recall = (100 * sum(side) / len(shares) for side in zip(*shares)) if shares else (0.0, 0.0)
    return {"precision": precision, "recall": recall}


def _share(total: list[float]) -> float:
    return 100.0 * total[0] / total[1]


def reference_streams(predictions: Sequence[str], references: References) -> list[list[str]]:
    """The references as a list of reference sets, checked against the predictions."""
    if isinstance(predictions, str) or isinstance(references, str):
        raise UsageError("predictions and references must be lists of strings: got one string")
    if len(predictions) == 0:  # an array has no truth value
        raise UsageError("there is nothing to score: got 0 predictions")
    if len(references) == 0:
        raise UsageError(f"there is nothing to score against: got 0 references for {len(predictions)} predictions")
    first = next(iter(references))  # a Series of pandas has no item 0 where its index has none
    if isinstance(first, str):
        references = [cast(Sequence[str], references)]
    elif any(isinstance(stream, str) for stream in references):
        raise UsageError("references must be strings, or lists of them, one a reference set: got both")
    elif not isinstance(first, Iterable):
        raise UsageError(f"predictions and references must be strings: got {first!r}")
    streams = [list(stream) for stream in references]
    for number, stream in enumerate(streams, start=1):
        if len(stream) != len(predictions):
            subject = f"reference set {number} has" if len(streams) > 1 else "the references have"
            raise UsageError(
                f"each prediction needs its reference: got {len(predictions)} predictions, "
                f"and {subject} {len(stream)}; "
                "give lists of the same length, in the same order"
            )
    for text in chain(predictions, *streams):
        if not isinstance(text, str):
            raise UsageError(f"predictions and references must be strings: got {text!r}")
    return streams
