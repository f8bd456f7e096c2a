"""The filters of `atento data clean`: which pairs of a file break which of them."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np

from atento.data.corpus.corpus_statistics import unusual_lengths
from atento.data.corpus.find_duplicates import marked
from atento.data.corpus.pair_evidence import FEWEST, Floats, Pair, Rows, whole_and_right
from atento.data.corpus.pair_rules import broken_rules

FILTERS = {
    "empty": "a side is blank",
    "duplicate": "the pair repeats an earlier one; with a similarity, nearly",
    "long": "a side has more words than allowed",
    "ratio": "a side is far longer beside the other than usual in the file",
    "copy": "both sides have nearly the same words",
    "characters": "misread characters, or many signs that the other side lacks",
    "language": "a side is in another language than most of the file",
    "numbers": "each side has a number that the other lacks",
    "placeholders": "placeholders differ",
    "tags": "tags differ",
    "misaligned": "the words of the sides do not translate each other",
    "truncated": "words at the end of the source have no translation",
}
_BLOCK = 1024  # pairs that are judged together


@dataclass(frozen=True)
class Cleaning:
    """What filters look for, and when they find it."""

    languages: tuple[str, str] | None = None  # codes of source and target; None: they are not compared
    max_words: int = 250  # of a side
    near: float | None = None  # Jaccard similarity of near-duplicates; None: equal pairs alone
    min_score: float = 0.5  # probability that a target belongs to its source, and that it is whole
    without: Collection[str] = ()  # filters that are left out

    def reasons(
        self,
        pairs: Sequence[Pair],
        scores: Rows | None = None,
        remember: Callable[[str, Rows], Rows] = lambda name, rows: rows,
    ) -> list[list[str]]:
        """The names of the filters that each pair does not pass; words are compared where it passes all others.

        Args:
            pairs: source and target.
            scores: of models, (N, scores), which speak for a pair as its words do.
            remember: makes of the name of a step, and of what it computes of some pairs, a function that computes
                nothing again.
        """
        found = {name: np.zeros(len(pairs), dtype=np.bool_) for name in FILTERS}

        def broken(some: Sequence[Pair]) -> Floats:
            rules = (broken_rules(pair, self.languages, self.max_words) for pair in some)
            return np.array([[float(name in of_pair) for name in FILTERS] for of_pair in rules])

        found |= zip(FILTERS, _in_blocks(remember("rules", broken), pairs).T > 0)
        filled = np.flatnonzero(~found["empty"]).tolist()
        if filled:
            found["ratio"][filled] = unusual_lengths([pairs[n] for n in filled])
        repeated = marked(((n, "\t".join(pairs[n])) for n in filled), self.near)
        found["duplicate"][filled] = [duplicate is not None for duplicate in repeated]
        for name in self.without:
            found[name][:] = False
        left = np.flatnonzero(~np.any(list(found.values()), axis=0)).tolist()
        if len(left) >= FEWEST and not {"misaligned", "truncated"} <= {*self.without}:
            some = [pairs[n] for n in left]
            learned = cache(lambda: whole_and_right(some, scores and remember("scores", scores)))
            probabilities = _in_blocks(remember("judge", lambda block: learned()(block)), some)
            for name, of_pairs in zip(("misaligned", "truncated"), probabilities.T):
                found[name][left] = (of_pairs < self.min_score) & (name not in self.without)
        return [[name for name in FILTERS if found[name][n]] for n in range(len(pairs))]


def _in_blocks(rows: Rows, pairs: Sequence[Pair]) -> Floats:
    blocks = range(0, len(pairs), _BLOCK)
    return np.concatenate([rows(pairs[begin : begin + _BLOCK]) for begin in blocks])
