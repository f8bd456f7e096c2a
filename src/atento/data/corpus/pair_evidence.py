"""Which pairs are no translations: evidence from words that translate each other, learned from the pairs themselves.

As Bicleaner does (Sánchez-Cartagena et al. 2018), a classifier tells the pairs from others that are wrong on purpose:
with the target of another pair, or with a target that ends too early. Both are made of the file, so nothing but the
file is needed. It reads probabilities of word translations (IBM Model 1, Brown et al. 1993) in both directions, from
which the counts of the pair itself are taken away, and the scores of models, if there are some.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from atento.nfc import nfc

Pair = tuple[str, str]
Floats = NDArray[np.float64]
Numbers = NDArray[np.int64]
Rows = Callable[[Sequence[Pair]], Floats]
FEWEST = 500  # pairs from which words that translate each other can be learned
_LINKS = 20_000_000  # pairs of words that are learned from at the most, of an even sample
_WORDS = 128  # words of a side that are read
_STEM = 5  # letters of a word that count, which forms of a word have in common
_ROUNDS = 5  # of expectation and maximization
_SAME = 0.3  # probability of a translation that is written as the word: a name, a number
_EXAMPLES, _SCORED = 8000, 2000  # pairs that the classifier is fitted to at the most, without and with models
_WRONG = 0.5  # wrong pairs for each good one, as the classifier is told
_STEPS = 200  # of its fitting
_LETTER = r"\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\uff66-\uff9f"
# a letter of a script without spaces, a word, or a sign
_WORD = re.compile(rf"[{_LETTER}]|[^\s!-/:-@\[-`{{-~\u00a0-\u00bf\u2000-\u206f\u3000-\u303f\uff00-\uff0f{_LETTER}]+|\S")


def words_of(text: str) -> list[str]:
    """The words of a text, as letters that its forms have in common, and its signs; a Chinese letter is a word."""
    return [word[:_STEM] for word in _WORD.findall(nfc(text[: 40 * _WORDS]).lower())][:_WORDS]


class WordTranslations:
    """Probabilities that words translate each other, in both directions.

    Args:
        pairs: source and target; most of them translations.
    """

    def __init__(self, pairs: Sequence[Pair]) -> None:
        counts = Counter(chain.from_iterable(set(words_of(text)) for pair in pairs for text in pair))
        self._ids = {word: 1 + n for n, word in enumerate(sorted(word for word in counts if counts[word] > 1))}
        alike = [len(word) > 3 or word.isdecimal() for word in self._ids]
        self._alike = np.array([False, *alike])
        self._size = 1 + len(self._ids)  # 0: a word that is seen once
        sides = [[self._read(pair[side]) for pair in pairs] for side in (0, 1)]
        self._seen = [np.bincount(np.concatenate(rows), minlength=self._size) for rows in sides]
        lasts = [np.array([row[-1] for row in rows if len(row)], dtype=np.int64) for rows in sides]
        self._last = [np.bincount(last, minlength=self._size) for last in lasts]
        self._shares = [(seen + 0.5) / (seen + 0.5).sum() for seen in self._seen]
        links = np.cumsum([len(source) * len(target) for source, target in zip(*sides)])
        step = 1 + int(links[-1]) // _LINKS
        self._learn(_Links(*(list(map(_unique, rows[::step])) for rows in sides)))

    def _read(self, text: str) -> Numbers:
        return np.array([self._ids.get(word, 0) for word in words_of(text)], dtype=np.int64)

    def _learn(self, links: "_Links") -> None:
        """Count how often words are linked, each word of a side to words of the other by their probabilities."""
        keys = links.words[0] * self._size + links.words[1]
        self._keys, at = np.unique(keys, return_inverse=True)
        ends = np.divmod(self._keys, self._size)  # the source and target of each key
        same = _SAME * ((ends[0] == ends[1]) & self._alike[ends[0]])
        self._counts = [np.bincount(at).astype(np.float64)] * 2
        for _ in range(_ROUNDS):
            self._totals = [np.bincount(end, counts, self._size) for end, counts in zip(ends, self._counts)]
            self._before = [n / total[end] + same for n, total, end in zip(self._counts, self._totals, ends)]
            shares = (self._posterior(links, side, self._before[side][at]) for side in (0, 1))
            self._counts = [np.bincount(at, share, len(self._keys)) for share in shares]
        self._totals = [np.bincount(end, counts, self._size) for end, counts in zip(ends, self._counts)]

    def _posterior(self, links: "_Links", side: int, likelihood: Floats) -> Floats:
        """The share of each link in what explains a word of the other side, which may stand there by itself too."""
        other = 1 - side
        own = self._shares[other][links.flat[other]]
        return likelihood / (np.bincount(links.places[other], likelihood, len(own)) + own)[links.places[other]]

    def evidence(self, pairs: Sequence[Pair], short: Sequence[str] = (), *, learned: bool = True) -> Floats:
        """What speaks for each pair, (N, 15).

        Args:
            pairs: source and target.
            short: read these beginnings of the targets in place of the targets.
            learned: the pairs are some of those that were learned from; their own counts do not speak for them.
        """
        read = [[self._read(pair[side]) for pair in pairs] for side in (0, 1)]
        links = _Links(*(list(map(_unique, rows)) for rows in read))
        live = np.ones(len(links.flat[1]), dtype=np.bool_)
        if short:
            read[1] = [self._read(text) for text in short]
            targets = np.split(links.flat[1], links.starts[1][1:])
            live = np.concatenate([np.isin(target, kept) for target, kept in zip(targets, read[1])])
        keys = links.words[0] * self._size + links.words[1]
        at = np.minimum(np.searchsorted(self._keys, keys), len(self._keys) - 1)
        known = self._keys[at] == keys
        same = _SAME * ((links.words[0] == links.words[1]) & self._alike[links.words[0]])
        columns: list[Floats] = []
        for side, other in ((1, 0), (0, 1)):  # what explains each word of `other`
            counts, totals = self._counts[side][at] * known, self._totals[side][links.words[side]]
            if learned:
                own = self._posterior(links, side, self._before[side][at] * known) * known
                counts = np.maximum(counts - own, 0)
                totals = totals - np.bincount(links.places[side], own, len(links.flat[side]))[links.places[side]]
            seen = live[links.places[1]]
            likelihood = (counts / np.maximum(totals + 0.5, 0.5) + same) * seen
            n = len(links.flat[other])
            explained = np.bincount(links.places[other], likelihood, n)
            explained /= 1 + np.bincount(links.places[other], seen, n)
            ratio = np.clip(np.log(0.9 * explained / self._shares[other][links.flat[other]] + 0.1), None, 5)
            columns += links.means(other, ratio, live if other else np.ones(n, dtype=np.bool_))
        for side in (0, 1):
            seen, last = self._seen[side], self._last[side]
            lasts = np.array([row[-1] if len(row) else 0 for row in read[side]])
            less = float(learned and not (short and side))
            rate = (np.maximum(last[lasts] - less, 0) + 0.5) / (np.maximum(seen[lasts] - less, 0) + 5)
            columns += [np.log(rate), np.log1p([len(row) for row in read[side]])]
        columns.append(columns[-1] - columns[-3])
        return np.stack(columns, axis=1)


def _unique(row: Numbers) -> Numbers:
    return np.array(list(dict.fromkeys(row.tolist())), dtype=np.int64)


class _Links:
    """All pairs of a word of the source and one of the target, of many pairs of texts."""

    def __init__(self, sources: Sequence[Numbers], targets: Sequence[Numbers]) -> None:
        sizes = [np.array([len(row) for row in rows], dtype=np.int64) for rows in (sources, targets)]
        self.flat = [np.concatenate([np.zeros(0, dtype=np.int64), *rows]) for rows in (sources, targets)]
        self.sizes, self.starts = sizes, [np.cumsum(size) - size for size in sizes]  # of each text among the words
        n = sizes[0] * sizes[1]
        pair = np.repeat(np.arange(len(n)), n)
        source, target = np.divmod(np.arange(n.sum()) - np.repeat(np.cumsum(n) - n, n), sizes[1][pair])
        self.places = [source + self.starts[0][pair], target + self.starts[1][pair]]  # of both words of each link
        self.words = [flat[place] for flat, place in zip(self.flat, self.places)]

    def means(self, side: int, ratio: Floats, live: NDArray[np.bool_]) -> Iterator[Floats]:
        """Yield the mean of a number of each word over a text and its last third, and the share of large ones, (N,)."""
        n, text = len(self.sizes[side]), np.repeat(np.arange(len(self.sizes[side])), self.sizes[side])
        position = np.cumsum(live) - np.concatenate([[0], np.cumsum(live)])[self.starts[side]][text] - 1
        late = live & (3 * position >= 2 * np.bincount(text, live, n)[text])
        for part, value in (
            (live, ratio),
            (live, ratio > 0.7),
            (late, ratio),
            (late, ratio > 0.7),
            (live, self.flat[side] == 0),
        ):
            yield np.bincount(text, value * part, n) / np.maximum(np.bincount(text, part, n), 1)


def whole_and_right(pairs: Sequence[Pair], scores: Rows | None = None) -> Rows:
    """Learn to tell translations from pairs that are none.

    Args:
        pairs: most of them translations; at least `FEWEST`.
        scores: further evidence for pairs, (N, scores), such as the similarity of an encoder.

    Returns:
        A function from some of the pairs to the probability that the target belongs to the source, and that it is
        whole, (N, 2).
    """
    words, draw = WordTranslations(pairs), np.random.default_rng(62)
    chosen = [pairs[n] for n in draw.permutation(len(pairs))[: _EXAMPLES if scores is None else _SCORED]]
    wrong = [(source, target) for (source, _), (_, target) in zip(chosen, [*chosen[1:], *chosen[:1]])]
    cut = [(pair, short) for pair in chosen if (short := _beginning(pair[1], draw)) is not None]
    whole = [pair for pair, _ in cut]

    def more(rows: Floats, of: Sequence[Pair]) -> Floats:
        return rows if scores is None else np.hstack([rows, scores(of)])

    good = more(words.evidence(chosen), chosen)
    shown = [(source, short) for (source, _), short in cut]
    bad = [more(words.evidence(wrong, learned=False), wrong), more(words.evidence(whole, [s for _, s in cut]), shown)]
    judges = [_Classifier(good, rows) for rows in bad]

    def judge(some: Sequence[Pair]) -> Floats:
        rows = more(words.evidence(some), some)
        return np.stack([judge(rows) for judge in judges], axis=1)

    return judge


def _beginning(text: str, draw: np.random.Generator) -> str | None:
    """A text that ends too early, half of the time with its last sign; None: it is too short."""
    words = [match.end() for match in _WORD.finditer(text[: 40 * _WORDS])]
    if len(words) < 3:
        return None
    end = words[min(len(words) - 2, int(len(words) * draw.uniform(0.2, 0.8)))]
    return text[:end] + (text.rstrip()[-1] if draw.random() < 0.5 and not text.rstrip()[-1].isalnum() else "")


class _Classifier:
    """Logistic regression on numbers and their products, fitted again without good rows that look bad."""

    def __init__(self, good: Floats, bad: Floats) -> None:
        self._mean, self._deviation = good.mean(axis=0), good.std(axis=0) + 1e-6
        rows, right = self._terms(np.vstack([good, bad])), np.repeat([1.0, 0.0], [len(good), len(bad)])
        self._weights = np.zeros(rows.shape[1])
        counts = np.repeat([1.0, _WRONG * len(good) / len(bad)], [len(good), len(bad)])
        for _ in range(2):
            # a bound of the curvature (Böhning 1992): each step is one down
            bound = (rows * counts[:, None]).T @ rows / 4 + 1e-3 * counts.sum() * np.eye(rows.shape[1])
            inverse = np.linalg.inv(bound)
            for _ in range(_STEPS):
                slope = rows.T @ (counts * (self._probabilities(rows) - right))
                self._weights -= inverse @ (slope + 1e-3 * counts.sum() * self._weights)
            counts[: len(good)] = self._probabilities(rows[: len(good)]) > 0.2

    def _terms(self, rows: Floats) -> Floats:
        z = (rows - self._mean) / self._deviation
        first, second = np.triu_indices(z.shape[1])
        return np.hstack([np.ones((len(z), 1)), z, z[:, first] * z[:, second]])

    def _probabilities(self, terms: Floats) -> Floats:
        return np.asarray(1 / (1 + np.exp(-np.clip(terms @ self._weights, -30, 30))))

    def __call__(self, rows: Floats) -> Floats:
        return self._probabilities(self._terms(rows))
