"""Which pairs are no translations: evidence of words that translate each other, learned from the pairs themselves.

As Bicleaner does (Sánchez-Cartagena et al. 2018), a classifier tells the pairs from others that are wrong on purpose:
with the target of another pair, or with a target that ends too early. It reads probabilities of word translations (IBM
Model 1, Brown et al. 1993) in both directions, without the counts of the pair itself, and the scores of models.
"""

import re
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from atento.base.nfc import nfc

Pair = tuple[str, str]
Floats = NDArray[np.float64]
Numbers = NDArray[np.int64]
Rows = Callable[[Sequence[Pair]], Floats]  # N pairs -> (N, numbers)
FEWEST = 500  # pairs from which words that translate each other can be learned
_LINKS = 20_000_000  # pairs of words that are learned from at the most, of an even sample
_WORDS = 128  # words of a side that are read
_STEM = 5  # letters of a word that count, which forms of a word have in common
_SAME = 0.3  # probability of a translation that is written as the word: a name, a number
_EXAMPLES, _SCORED = 8000, 2000  # pairs that the classifier is fitted to at the most, without and with models
_WRONG = 0.5  # wrong pairs for each good one, as the classifier is told
_LETTER = r"\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\uff66-\uff9f"
# a letter of a script without spaces, a word, or a sign
_WORD = re.compile(rf"[{_LETTER}]|[^\s!-/:-@\[-`{{-~\u00a0-\u00bf\u2000-\u206f\u3000-\u303f\uff00-\uff0f{_LETTER}]+|\S")


def words_of(text: str) -> list[str]:
    """The first words of a text, as the letters that their forms share, and its signs; a Chinese letter is a word."""
    return [word[:_STEM] for word in _WORD.findall(nfc(text[: 40 * _WORDS]).lower())][:_WORDS]


class _Links:
    """All pairs of a word of the source and one of the target, of many pairs of texts: each word once a text."""

    def __init__(self, *sides: Sequence[Numbers]) -> None:
        rows = [[np.array(list(dict.fromkeys(row.tolist())), dtype=np.int64) for row in side] for side in sides]
        self.words = [np.concatenate(side) for side in rows]  # of all texts, by side
        sizes = [np.array([len(row) for row in side]) for side in rows]
        self.texts = [np.repeat(np.arange(len(size)), size) for size in sizes]  # the text of each word
        n = sizes[0] * sizes[1]
        text = np.repeat(np.arange(len(n)), n)
        inside = np.divmod(np.arange(n.sum()) - np.repeat(np.cumsum(n) - n, n), sizes[1][text])
        # the place of both words of each link, and the words
        self.places = [at + (np.cumsum(size) - size)[text] for at, size in zip(inside, sizes)]
        self.ends = [words[place] for words, place in zip(self.words, self.places)]

    def sums(self, side: int, of_links: NDArray[np.generic]) -> Floats:
        """The sum of a number of each link over the links of each word of a side."""
        return np.bincount(self.places[side], of_links, len(self.words[side])).astype(np.float64)

    def shares(self, side: int, likelihood: Floats, alone: Floats) -> Floats:
        """The share of each link in what explains the word of a side, which may also stand there by itself."""
        return np.asarray(likelihood / (self.sums(side, likelihood) + alone[self.words[side]])[self.places[side]])


class WordTranslations:
    """Probabilities that words translate each other, in both directions.

    Args:
        pairs: source and target; most of them translations.
    """

    def __init__(self, pairs: Sequence[Pair]) -> None:
        counts = Counter(chain.from_iterable(set(words_of(text)) for pair in pairs for text in pair))
        self._ids = {word: 1 + n for n, word in enumerate(sorted(word for word in counts if counts[word] > 1))}
        self._size = 1 + len(self._ids)  # 0: a word that is seen once
        self._alike = np.array([False, *(len(word) > 3 or word.isdecimal() for word in self._ids)])
        sides = [[self._read(pair[side]) for pair in pairs] for side in (0, 1)]
        self._seen = [np.bincount(np.concatenate(rows), minlength=self._size) + 0.5 for rows in sides]
        self._last = [np.bincount([row[-1] for row in rows if len(row)], minlength=self._size) for rows in sides]
        self._alone = [seen / seen.sum() for seen in self._seen]
        step = 1 + sum(len(source) * len(target) for source, target in zip(*sides)) // _LINKS
        links = _Links(*(rows[::step] for rows in sides))
        self._keys, at = np.unique(links.ends[0] * self._size + links.ends[1], return_inverse=True)
        ends = np.divmod(self._keys, self._size)
        same = _SAME * ((ends[0] == ends[1]) & self._alike[ends[0]])
        # of each key, by the side that is explained: how often it is linked, and its probability in the round before
        self._counts: list[Floats] = [np.bincount(at).astype(np.float64)] * 2
        for _ in range(5):  # expectation and maximization
            totals = self._totals(ends)
            self._before = [self._counts[n] / totals[n][ends[1 - n]] + same for n in (0, 1)]
            shares = (links.shares(n, before[at], self._alone[n]) for n, before in enumerate(self._before))
            self._counts = [np.bincount(at, share, len(self._keys)).astype(np.float64) for share in shares]
        self._all = self._totals(ends)

    def _totals(self, ends: Sequence[Numbers]) -> list[Floats]:
        return [np.bincount(ends[1 - n], self._counts[n], self._size).astype(np.float64) for n in (0, 1)]

    def _read(self, text: str) -> Numbers:
        return np.array([self._ids.get(word, 0) for word in words_of(text)], dtype=np.int64)

    def evidence(self, pairs: Sequence[Pair], short: Sequence[str] = (), *, learned: bool = True) -> Floats:
        """What speaks for each pair, (N, 15).

        Args:
            pairs: source and target.
            short: read these beginnings of the targets in place of the targets.
            learned: the pairs are some of those that were learned from; their own counts do not speak for them.
        """
        read = [[self._read(pair[side]) for pair in pairs] for side in (0, 1)]
        links = _Links(*read)
        live = [np.ones(len(words), dtype=np.bool_) for words in links.words]
        if short:
            read[1] = [self._read(text) for text in short]
            kept = np.concatenate([text * self._size + row for text, row in enumerate(read[1])])
            live[1] = np.isin(links.texts[1] * self._size + links.words[1], kept)
        keys = links.ends[0] * self._size + links.ends[1]
        at = np.minimum(np.searchsorted(self._keys, keys), len(self._keys) - 1)
        known = self._keys[at] == keys
        same = _SAME * ((links.ends[0] == links.ends[1]) & self._alike[links.ends[0]])
        columns: list[Floats] = []
        for side in (1, 0):  # the side whose words are explained by those of the other
            counts, totals = self._counts[side][at] * known, self._all[side][links.ends[1 - side]]
            if learned:
                own = links.shares(side, self._before[side][at] * known, self._alone[side]) * known
                counts, totals = counts - own, totals - links.sums(1 - side, own)[links.places[1 - side]]
            seen = live[1][links.places[1]]
            likelihood = (np.maximum(counts, 0) / np.maximum(totals + 0.5, 0.5) + same) * seen
            explained = links.sums(side, likelihood) / (1 + links.sums(side, seen))
            ratio = np.minimum(np.log(0.9 * explained / self._alone[side][links.words[side]] + 0.1), 5)
            n, text = len(pairs), links.texts[side]
            sizes = np.bincount(text, live[side], n)
            position = np.cumsum(live[side]) - 1 - (np.cumsum(sizes) - sizes)[text]
            late = live[side] & (3 * position >= 2 * sizes[text])  # the last third
            numbers = [(ratio, live[side]), (ratio > 0.7, live[side]), (links.words[side] == 0, live[side])]
            for number, part in [*numbers, (ratio, late), (ratio > 0.7, late)]:
                columns.append(np.bincount(text, number * part, n) / np.maximum(np.bincount(text, part, n), 1))
        for side in (0, 1):  # how often the last word is the last one
            lasts = np.array([row[-1] if len(row) else 0 for row in read[side]])
            less = float(learned and not (short and side))
            rate = (np.maximum(self._last[side][lasts] - less, 0) + 0.5) / (self._seen[side][lasts] + 4.5)
            columns += [np.log(rate), np.log1p([len(row) for row in read[side]])]
        return np.stack([*columns, columns[-1] - columns[-3]], axis=1)


def whole_and_right(pairs: Sequence[Pair], scores: Rows | None = None) -> Rows:
    """Learn to tell translations from pairs that are none.

    Args:
        pairs: most of them translations; at least `FEWEST`.
        scores: further evidence, such as the similarity of an encoder.

    Returns:
        A function from some of the pairs to the probability that the target belongs to the source, and that it is
        whole, (N, 2).
    """
    words, draw = WordTranslations(pairs), np.random.default_rng(62)
    chosen = [pairs[n] for n in draw.permutation(len(pairs))[: _SCORED if scores else _EXAMPLES]]
    wrong = [(source, target) for (source, _), (_, target) in zip(chosen, [*chosen[1:], *chosen[:1]])]
    whole = [pair for pair in chosen if len(words_of(pair[1])) > 2]
    short = [_beginning(target, draw) for _, target in whole]

    def evidence(rows: Floats, of: Sequence[Pair]) -> Floats:
        return np.hstack([rows, scores(of)]) if scores else rows

    good = evidence(words.evidence(chosen), chosen)
    cut = evidence(words.evidence(whole, short), [(pair[0], text) for pair, text in zip(whole, short)])
    right = [_classifier(good, bad) for bad in (evidence(words.evidence(wrong, learned=False), wrong), cut)]

    def judge(some: Sequence[Pair]) -> Floats:
        rows = evidence(words.evidence(some), some)
        return np.stack([probability(rows) for probability in right], axis=1)

    return judge


def _beginning(text: str, draw: np.random.Generator) -> str:
    """A text of three words at least that ends too early, half of the time with its last sign."""
    ends, last = [match.end() for match in _WORD.finditer(text[: 40 * _WORDS])], text.rstrip()[-1]
    end = ends[min(len(ends) - 2, int(len(ends) * draw.uniform(0.2, 0.8)))]
    return text[:end] + last * bool(draw.random() < 0.5 and not last.isalnum())


def _classifier(good: Floats, bad: Floats) -> Callable[[Floats], Floats]:
    """Logistic regression on numbers and their products, fitted again without good rows that look bad."""
    every = np.vstack([good, bad])
    mean, deviation = every.mean(axis=0), every.std(axis=0) + 1e-6
    products = np.triu_indices(good.shape[1] if len(every) > 3000 else 0)  # fewer rows say too little of them

    def terms(rows: Floats) -> Floats:
        z = np.clip((rows - mean) / deviation, -4, 4)
        return np.hstack([np.ones((len(z), 1)), z, z[:, products[0]] * z[:, products[1]]])

    def probabilities(of_terms: Floats) -> Floats:
        return np.asarray(1 / (1 + np.exp(-np.clip(of_terms @ weights, -30, 30))))

    rows, right = terms(every), np.repeat([1.0, 0.0], [len(good), len(bad)])
    counts = np.repeat([1.0, _WRONG * len(good) / len(bad)], [len(good), len(bad)])
    weights = np.zeros(rows.shape[1])
    for _ in range(3):
        decay = 0.03 * counts.sum()
        # a bound of the curvature (Böhning 1992): each step goes down
        inverse = np.linalg.inv((rows * counts[:, None]).T @ rows / 4 + decay * np.eye(rows.shape[1]))
        for _ in range(200):
            weights = weights - inverse @ (rows.T @ (counts * (probabilities(rows) - right)) + decay * weights)
        counts[: len(good)] = probabilities(rows[: len(good)]) > 0.3
    return lambda some: probabilities(terms(some))
