"""The ROUGE listing of the notes: a scorer of pairs of texts (docs/notes.md#k5, #i2)."""

from collections.abc import Sequence
from typing import NamedTuple

from atento.errors import UsageError, nearest
from atento.metrics.rouge import KINDS, rouge_of_pair, word_finder


class RougeScore(NamedTuple):
    """Precision, recall and F of one measure, 0-1."""

    precision: float
    recall: float
    fmeasure: float


class RougeScorer:
    """ROUGE of a candidate and its reference, called as `rouge_score.rouge_scorer.RougeScorer` is (Lin 2004).

    The notes' expected output for their second pair is wrong (error 3): `docs/notes.md#k5`.

    Args:
        rouge_types: some of "rouge1", "rouge2", "rougeL" and "rougeLsum".
        use_stemmer: compare English word stems (Porter); needs nltk.
        tokenize: "unicode" finds words in any script; "rouge-score" a to z and 0 to 9 alone, as that package.

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
        """The measures of `prediction` against one reference, by name."""
        found = rouge_of_pair(prediction, target, self._split)
        return {name: RougeScore(*found[name]) for name in self.rouge_types}

    def score_multi(self, targets: Sequence[str], prediction: str) -> dict[str, RougeScore]:
        """The same against several references: each measure is that of the reference with the best F.

        Raises:
            UsageError: no reference.
        """
        if not targets:
            raise UsageError("`targets` must hold at least one reference: got none")
        found = [self.score(target, prediction) for target in targets]
        return {name: max((one[name] for one in found), key=lambda one: one.fmeasure) for name in self.rouge_types}
