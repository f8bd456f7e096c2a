"""The ROUGE listing of the notes: a scorer of pairs of texts (docs/notes.md#k5, #i2)."""

from collections.abc import Sequence
from typing import NamedTuple

from atento.base.errors import UsageError, nearest
from atento.metrics.rouge import KINDS, rouge_of_pair, word_finder


class RougeScore(NamedTuple):
    """Precision, recall and F of one measure, 0-1."""

    precision: float
    recall: float
    fmeasure: float


class RougeScorer:
    """ROUGE of a candidate and its reference, with the interface of `rouge_score.rouge_scorer.RougeScorer` (Lin 2004).

    The notes' expected output for their second pair is wrong (error 3): `docs/notes.md#k5`.

    Args:
        rouge_types: some of "rouge1", "rouge2", "rougeL" and "rougeLsum".
        use_stemmer: compare English word stems (Porter); needs nltk.
        tokenize: "unicode" finds words in any script; "rouge-score" only a to z and 0 to 9, as that package.

    Raises:
        UsageError: an unknown measure or tokenizer. MissingPartError: stemming without nltk.
    """

    def __init__(self, rouge_types: Sequence[str], use_stemmer: bool = False, *, tokenize: str = "unicode") -> None:
        for name in rouge_types:
            if name not in KINDS:
                raise UsageError(f"unknown ROUGE measure {name!r}{nearest(name, list(KINDS))}")
        self.rouge_types = tuple(rouge_types)
        self._split = word_finder(tokenize, "porter" if use_stemmer else "none")

    def score(self, target: str, prediction: str) -> dict[str, RougeScore]:
        """Return the measures of `prediction` against one reference, by name."""
        scores = rouge_of_pair(prediction, target, self._split)
        return {name: RougeScore(*scores[name]) for name in self.rouge_types}

    def score_multi(self, targets: Sequence[str], prediction: str) -> dict[str, RougeScore]:
        """Return the measures against several references; each measure is that of the reference with the highest F.

        Raises:
            UsageError: no reference.
        """
        if not targets:
            raise UsageError("`targets` must hold at least one reference: got none")
        scores = [self.score(target, prediction) for target in targets]
        return {
            name: max((score[name] for score in scores), key=lambda score: score.fmeasure) for name in self.rouge_types
        }
