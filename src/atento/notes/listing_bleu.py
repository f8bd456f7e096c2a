"""The BLEU listing of the notes: sentence and corpus BLEU of tokenised text, as in NLTK (docs/notes.md#k5, #i1)."""

import math
import sys
from collections import Counter
from collections.abc import Sequence

from atento.errors import UsageError

Tokens = Sequence[str]
UNIFORM = (0.25, 0.25, 0.25, 0.25)


def sentence_bleu(references: Sequence[Tokens], hypothesis: Tokens, weights: Sequence[float] = UNIFORM) -> float:
    """BLEU of one tokenised sentence, 0-1, as NLTK's function of that name without smoothing.

    Args:
        references: tokenised references of this sentence, as many as there are.
        hypothesis: the tokenised sentence to score.
        weights: w_n of each n-gram order, from 1.

    Raises:
        UsageError: text that is not tokenised, or no reference.
    """
    return corpus_bleu([references], [hypothesis], weights)


def corpus_bleu(
    list_of_references: Sequence[Sequence[Tokens]], hypotheses: Sequence[Tokens], weights: Sequence[float] = UNIFORM
) -> float:
    """BP · exp(Σ w_n log p_n) over a corpus, 0-1: clipped counts are summed first, then divided (Papineni et al. 2002).

    As in NLTK, a sentence too short to have an n-gram of some order counts one that is wrong, so a perfect copy can
    score below 1 (spec error 4); `atento.metrics.bleu` is the score that papers print.

    Args:
        list_of_references: for each sentence its tokenised references; their number may differ.
        hypotheses: the tokenised sentences to score.
        weights: w_n of each n-gram order, from 1.

    Raises:
        UsageError: text that is not tokenised, unequal lengths, or a sentence without a reference.
    """
    if len(list_of_references) != len(hypotheses):
        raise UsageError(
            f"each hypothesis needs its list of references: got {len(hypotheses)} and {len(list_of_references)}"
        )
    matches, totals = [0] * len(weights), [0] * len(weights)
    length = reference_length = 0
    for number, (references, hypothesis) in enumerate(zip(list_of_references, hypotheses), 1):
        _check(number, references, hypothesis)
        for order in range(1, len(weights) + 1):
            found, total = clipped(references, hypothesis, order)
            matches[order - 1] += found
            totals[order - 1] += max(1, total)
        length += len(hypothesis)
        reference_length += min((len(one) for one in references), key=lambda n: (abs(n - len(hypothesis)), n))
    if not weights or matches[0] == 0:
        return 0.0
    penalty = 1.0 if length > reference_length else math.exp(1 - reference_length / length)
    precisions = [found / total if found else sys.float_info.min for found, total in zip(matches, totals)]
    return penalty * math.exp(math.fsum(w * math.log(p) for w, p in zip(weights, precisions)))


def clipped(references: Sequence[Tokens], hypothesis: Tokens, order: int) -> tuple[int, int]:
    """How many n-grams of the hypothesis a reference has too, none counted oftener than there; and of how many."""
    counts = _ngrams(hypothesis, order)
    most = Counter[tuple[str, ...]]()
    for reference in references:
        most |= _ngrams(reference, order)
    return sum(min(count, most[ngram]) for ngram, count in counts.items()), counts.total()


def _ngrams(tokens: Tokens, order: int) -> Counter[tuple[str, ...]]:
    return Counter(tuple(tokens[i : i + order]) for i in range(len(tokens) - order + 1))


def _check(number: int, references: Sequence[Tokens], hypothesis: Tokens) -> None:
    """NLTK takes a string for a list of letters, in silence."""
    if isinstance(hypothesis, str) or isinstance(references, str) or any(isinstance(one, str) for one in references):
        raise UsageError(
            f"sentence {number} must be tokenised: a list of tokens, and a list of such lists as references"
        )
    if not references:
        raise UsageError(f"sentence {number} needs at least one reference: got none")
