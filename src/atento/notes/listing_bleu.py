"""The BLEU listing of the notes: sentence and corpus BLEU of tokenised text, as in NLTK (docs/notes.md#k5, #i1)."""

import math
import sys
from collections import Counter
from collections.abc import Sequence

from atento.base.errors import UsageError

Tokens = Sequence[str]
UNIFORM = (0.25, 0.25, 0.25, 0.25)


def sentence_bleu(references: Sequence[Tokens], hypothesis: Tokens, weights: Sequence[float] = UNIFORM) -> float:
    """Return the BLEU of one tokenised sentence, 0-1, as NLTK's function of that name without smoothing.

    Args:
        references: one or more tokenised references of this sentence.
        hypothesis: the tokenised sentence to score.
        weights: w_n of each n-gram order, from 1.

    Raises:
        UsageError: text that is not tokenised, or no reference.
    """
    return corpus_bleu([references], [hypothesis], weights)


def corpus_bleu(
    list_of_references: Sequence[Sequence[Tokens]], hypotheses: Sequence[Tokens], weights: Sequence[float] = UNIFORM
) -> float:
    """Return BP · exp(Σ w_n log p_n) over a corpus, 0-1.

    Clipped counts are summed, then divided (Papineni et al. 2002).

    As in NLTK, a sentence too short to have an n-gram of some order counts as one wrong n-gram, so a perfect copy can
    score below 1 (error 4); `atento.metrics.bleu` is the score that papers report.

    Args:
        list_of_references: the tokenised references of each sentence; their number may vary.
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
        # reject strings: NLTK silently reads a string as a list of letters
        if (
            isinstance(hypothesis, str)
            or isinstance(references, str)
            or any(isinstance(reference, str) for reference in references)
        ):
            raise UsageError(
                f"sentence {number} must be tokenised: a list of tokens, and a list of such lists as references"
            )
        if not references:
            raise UsageError(f"sentence {number} needs at least one reference: got none")
        for order in range(1, len(weights) + 1):
            count, total = clipped(references, hypothesis, order)
            matches[order - 1] += count
            totals[order - 1] += max(1, total)
        length += len(hypothesis)
        reference_length += min(
            (len(reference) for reference in references), key=lambda n: (abs(n - len(hypothesis)), n)
        )
    if not weights or matches[0] == 0:  # also an empty corpus
        return 0.0
    penalty = 1.0 if length > reference_length else math.exp(1 - reference_length / length)
    precisions = [count / total if count else sys.float_info.min for count, total in zip(matches, totals)]
    return penalty * math.exp(math.fsum(w * math.log(p) for w, p in zip(weights, precisions)))


def clipped(references: Sequence[Tokens], hypothesis: Tokens, order: int) -> tuple[int, int]:
    """Return the number of n-grams of the hypothesis that also occur in a reference, clipped to their count there,
    and the
    number of all n-grams of the hypothesis.
    """
    counts = _ngrams(hypothesis, order)
    maximum = Counter[tuple[str, ...]]()
    for reference in references:
        maximum |= _ngrams(reference, order)
    return sum(min(count, maximum[ngram]) for ngram, count in counts.items()), counts.total()


def _ngrams(tokens: Tokens, order: int) -> Counter[tuple[str, ...]]:
    return Counter(tuple(tokens[i : i + order]) for i in range(len(tokens) - order + 1))
