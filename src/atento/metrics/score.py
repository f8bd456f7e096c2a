"""`Score`: the value of a metric with parts, settings and bootstrap interval; the kinds of outputs that it scores."""

import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from html import escape
from typing import Literal

from atento.base.errors import ScoreWarning, UsageError

# What predictions and references are, one item an example:
#   texts: a string; references may be several sets     classes: a label            class sets: a list of labels
#   tags: a list of tags, one a word                    numbers: a float
#   answers: a string; references are the tuple of acceptable strings, empty where the text has no answer
#   vector pairs: two vectors (2,D); a reference is the tuple of the second text and its score, None without scores
#   probabilities: a label and its probability; references are labels
#   rankings: the score of a document, None where it was not ranked; a reference is query, document and grade
Outputs = Literal[
    "texts", "classes", "class sets", "tags", "answers", "numbers", "probabilities", "vector pairs", "rankings"
]
_BLOCK = 4_000_000  # sampled segments in memory at once: 32 MB


def warn_score(sentence: str) -> None:
    """Warn of a score that says little."""
    warnings.warn(sentence, ScoreWarning, stacklevel=3)


def check_pairs(predictions: Sequence[object], references: Sequence[object]) -> None:
    """Raises UsageError: there are not as many references as predictions."""
    if len(predictions) != len(references):
        raise UsageError(
            f"each prediction needs its reference: got {len(predictions)} predictions and {len(references)} references"
        )


@dataclass(frozen=True)
class Score:
    """The result of a metric.

    Attributes:
        name: the name in papers, such as "BLEU".
        value: the score: of text in 0-100, of labels in 0-1, a correlation in -1 to 1.
        parts: the values that it is computed from, by name.
        settings: all settings that change the value, in one line (sacrebleu's signature if there is one).
        segments: the statistics of each segment, one row each; the score is a function of their sum.
        combine: that function, from the summed row to the value.
        single: the function for the row of a single segment, if it differs.
        values_of: for a score that is no function of the summed rows, such as a rank correlation: the scores of samples
            that have segment n as often as a matrix of counts (S,N) says.
        digits: number of digits after the point in a printed score.
    """

    name: str
    value: float
    parts: dict[str, float]
    settings: str
    segments: Sequence[Sequence[float]] = field(repr=False, compare=False)
    combine: Callable[[list[float]], float] = field(repr=False, compare=False)
    single: Callable[[list[float]], float] | None = field(default=None, repr=False, compare=False)
    values_of: Callable[[object], list[float]] | None = field(default=None, repr=False, compare=False)
    digits: int = field(default=2, repr=False, compare=False)

    def interval(self, level: float = 0.95, samples: int = 1000, seed: int = 1) -> tuple[float, float]:
        """The bootstrap percentile interval, from segments that are resampled with replacement.

        Args:
            level: the share of resampled scores inside the interval, between 0 and 1.
            samples: number of bootstrap samples.
            seed: random seed.

        Returns:
            The lower and the upper bound.

        Raises:
            UsageError: `level` or `samples` is out of range.

        Paper: Koehn 2004, Statistical significance tests for machine translation evaluation.
        """
        import numpy as np

        if not 0 < level < 1:
            raise UsageError(f"`level` must lie between 0 and 1: got {level}")
        values = np.concatenate([np.array(scores) for (scores,) in resampled([self], samples, seed)])
        low, high = np.quantile(values, [(1 - level) / 2, (1 + level) / 2])  # the same share on both sides
        return float(low), float(high)

    def per_sentence(self) -> list[float]:
        """The metric of each segment. The score of a corpus is generally not their mean."""
        alone = self.single or self.combine  # `single`: for text, BLEU without missing orders
        return [alone(list(row)) for row in self.segments]

    def line(self, interval: tuple[float, float] | None = None) -> str:
        """Name, value, interval and settings in one line."""
        bounds = "" if interval is None else "[" + ", ".join(f"{bound:.{self.digits}f}" for bound in interval) + "]"
        return " ".join(filter(None, (self.name, f"{self.value:.{self.digits}f}", bounds, self.settings)))

    def __str__(self) -> str:
        return self.line()

    def __repr__(self) -> str:
        return f"Score({self.name} {_number(self.value)}, {len(self.segments):,} segments)"

    def _repr_html_(self) -> str:
        """A table for notebooks: the value, its parts and its settings."""
        rows = [(self.name, _number(self.value))]
        rows += [(name, _number(value)) for name, value in self.parts.items()]
        rows.append(("settings", self.settings))
        cells = (f'<tr><th scope="row">{escape(name)}</th><td>{escape(value)}</td></tr>' for name, value in rows)
        return f"<table>{''.join(cells)}</table>"


def ratio(total: Sequence[float], at: int = 0, by: int = -1, times: float = 1) -> float:
    """`times` a column of a summed row by another: the mean, where that one counts the segments."""
    return times * total[at] / total[by]


def _number(value: float) -> str:
    """A number with four digits; counts as integers."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def resampled(scores: Sequence[Score], samples: int, seed: int) -> Iterator[tuple[list[float], ...]]:
    """Yield in blocks the values of scores on the same resampled segments: a list for each score.

    Each block samples segments, counts how often each was sampled, and sums the rows by one matrix product. The samples
    are those of sacrebleu's paired bootstrap with the same seed.
    Raises UsageError: `samples` is below 1.
    """
    import numpy as np

    if samples < 1:
        raise UsageError(f"`samples` must be at least 1: got {samples}")
    number = len(scores[0].segments)
    if number == 1:
        warn_score("one item alone does not vary: its interval has no width, and a test of it no meaning")
    rows = [np.asarray(score.segments, dtype=np.float64) for score in scores]
    generator = np.random.default_rng(seed)
    block = max(1, _BLOCK // number)
    for begin in range(0, samples, block):
        size = min(block, samples - begin)
        drawn = generator.choice(number, size=(size, number), replace=True)  # (size,N) numbers of segments
        drawn += np.arange(size)[:, None] * number  # a range of numbers for each sample, so that one count serves all
        counts = np.bincount(drawn.ravel(), minlength=size * number).reshape(size, number).astype(np.float64)
        yield tuple(
            [score.combine(total) for total in (counts @ row).tolist()]  # (size,N) by (N,width)
            if score.values_of is None
            else score.values_of(counts)
            for score, row in zip(scores, rows)
        )
