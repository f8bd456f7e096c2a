"""N-grams of many texts at once: counted by sorting, matched by products of binary matrices."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

_BLOCK = 4_000_000  # cells of a binary matrix in memory at once: 16 MB
_LARGEST = 2**62


@dataclass(frozen=True)
class Tokens:
    """U texts as numbers: the `codes` of all tokens, equal for equal tokens, and the `lengths` of the texts."""

    codes: Ints  # (sum of lengths), 0 and up
    lengths: Ints  # (U)


@dataclass(frozen=True)
class NGrams:
    """The n-grams of one order in U texts, with an entry for each distinct n-gram of each text."""

    text: Ints  # (entries)
    gram: Ints  # (entries), ascending; equal n-grams of all texts have equal numbers
    count: Ints  # (entries), the count in the text, 1 or more
    total: Ints  # (U), the number of n-grams of each text
    kinds: int  # the number of distinct n-grams


def characters(texts: Sequence[str]) -> Tokens:
    """Texts as characters without white space, as in sacrebleu's chrF."""
    bare = ["".join(text.split()) for text in texts]
    points = np.frombuffer("".join(bare).encode("utf-32-le", "surrogatepass"), dtype="<u4")  # four bytes a character
    codes = np.unique(points, return_inverse=True)[1].astype(np.int64)  # numbers without gaps
    return Tokens(codes, np.array([len(text) for text in bare], dtype=np.int64))


def words(lists: Sequence[Sequence[str]]) -> Tokens:
    """Texts as lists of words."""
    known: dict[str, int] = {}
    codes = [known.setdefault(word, len(known)) for text in lists for word in text]  # in the order of first use
    return Tokens(np.array(codes, dtype=np.int64), np.array([len(text) for text in lists], dtype=np.int64))


def count_ngrams(tokens: Tokens, max_order: int) -> list[NGrams]:
    """The n-grams of each order from 1 to `max_order`, by one sort for each order.

    An n-gram is a number in the base of the alphabet size, with its tokens as digits. If the numbers would exceed 64
    bits, the n-grams are renumbered without gaps.
    """
    codes, lengths = tokens.codes, tokens.lengths
    texts = max(1, len(lengths))
    owner = np.repeat(np.arange(len(lengths)), lengths)  # the text of each token
    left = np.repeat(np.cumsum(lengths), lengths) - np.arange(len(codes))  # tokens to the end of the text
    position, gram = np.arange(len(codes)), codes
    bound = alphabet = int(codes.max(initial=-1)) + 1  # all numbers are below
    ngrams = []
    for order in range(1, max_order + 1):
        if order > 1:
            longer = left[position] >= order  # where an n-gram of that order still fits
            position, gram = position[longer], gram[longer]
            if bound * alphabet * texts >= _LARGEST:  # the next one would not fit into 64 bits
                different, gram = np.unique(gram, return_inverse=True)
                bound = len(different)
            gram = gram * alphabet + codes[position + order - 1]  # its tokens as digits
            bound *= alphabet
        ngrams.append(_entries(owner[position], gram, len(lengths)))
    return ngrams


def _entries(text: Ints, gram: Ints, texts: int) -> NGrams:
    """An entry for each distinct pair of text and n-gram, with the n-grams numbered without gaps."""
    pairs = np.sort(gram * max(1, texts) + text)  # n-gram first, then text: equal pairs stand together
    first = np.flatnonzero(np.diff(pairs, prepend=-1))  # where another pair begins
    count = np.diff(first, append=len(pairs))  # how often each pair occurs
    gram, text = np.divmod(pairs[first], max(1, texts))
    number = np.cumsum(np.diff(gram, prepend=-1) > 0) - 1  # numbers without gaps
    total = np.bincount(text, weights=count, minlength=texts).astype(np.int64)
    return NGrams(text, number, count, total, int(number[-1]) + 1 if len(number) else 0)


def clipped_matches(ngrams: NGrams, rows: Ints, columns: Ints) -> Floats:
    """The number of common n-grams of two texts, each counted as often as in the text that has fewer of it.

    min(a, b) is the sum over k of [a >= k] and [b >= k]. With the k-th occurrence of an n-gram as a feature, the
    matches are a product of binary matrices, over the features that at least two texts have.

    Args:
        ngrams: n-grams of U texts.
        rows: (N), the texts of the rows, each at most once.
        columns: (M), the texts of the columns, each at most once.

    Returns:
        (N,M).
    """
    texts = len(ngrams.total)
    same_sides = len(rows) == len(columns) and bool((rows == columns).all())
    matches = np.zeros((len(rows), len(columns)))  # (N,M)
    for text, feature, features in _shared_features(ngrams):
        step = max(1, _BLOCK // texts)
        for begin in range(0, features, step):
            size = min(step, features - begin)
            low, high = np.searchsorted(feature, [begin, begin + size])
            has = np.zeros((size, texts), dtype=np.float32)  # whole numbers up to 2 ** 24 are exact
            has[feature[low:high] - begin, text[low:high]] = 1  # row: feature, column: text
            row_features = _picked(has, rows)
            matches += row_features.T @ (row_features if same_sides else _picked(has, columns))
    column_of = np.full(texts, -1)  # the column of each text, -1 for none
    column_of[columns] = np.arange(len(columns))
    itself = column_of[rows] >= 0  # pairs of a text with itself
    matches[np.flatnonzero(itself), column_of[rows][itself]] = ngrams.total[rows][itself]  # all its n-grams match
    return matches


def _picked(matrix: NDArray[np.float32], columns: Ints) -> NDArray[np.float32]:
    """The given columns; the matrix itself if they are all columns, without a copy."""
    everything = len(columns) == matrix.shape[1] and bool((columns == np.arange(len(columns))).all())
    return matrix if everything else matrix[:, columns]


def _shared_features(ngrams: NGrams) -> Iterator[tuple[Ints, Ints, int]]:
    """Yield for each k the k-th occurrences that at least two texts have: (text, feature) entries and their number."""
    text, gram, count = ngrams.text, ngrams.gram, ngrams.count
    k = 1
    while len(gram):
        having = np.bincount(gram, minlength=ngrams.kinds)  # texts that have the k-th occurrence, by n-gram
        shared = having >= 2
        number = np.cumsum(shared) - 1  # features without gaps
        is_shared = shared[gram]
        yield text[is_shared], number[gram[is_shared]], int(shared.sum())
        k += 1
        more = count >= k  # those with a next occurrence
        text, gram, count = text[more], gram[more], count[more]


def clipped_matches_with_mean(ngrams: NGrams, weights: Floats, left_out: Floats) -> tuple[Floats, Floats]:
    """The clipped matches of each text with the weighted mean of the n-gram counts of all texts.

    Args:
        ngrams: n-grams of U texts.
        weights: (U), the weight of each text in the mean, 0 or more.
        left_out: (U), how much of a text's own weight is left out of the mean that it is compared with.

    Returns:
        The matches (U), and the number of n-grams of the mean (U), both 0 if no weight is left.
    """
    remaining = weights.sum() - left_out  # (U): the sum of the other weights
    share = np.divide(1.0, remaining, out=np.zeros_like(remaining), where=remaining > 0)  # 0 where no weight is left
    # (kinds): the weighted sum of the counts
    mass = np.bincount(ngrams.gram, weights=weights[ngrams.text] * ngrams.count, minlength=ngrams.kinds)
    # for each n-gram of each text, without that text
    mean = (mass[ngrams.gram] - left_out[ngrams.text] * ngrams.count) * share[ngrams.text]
    common = np.minimum(ngrams.count, np.maximum(mean, 0.0))  # min(count, mean) of each n-gram
    matches = np.bincount(ngrams.text, weights=common, minlength=len(weights))
    totals: Floats = np.maximum(0.0, (float(weights @ ngrams.total) - left_out * ngrams.total) * share)
    return matches.astype(np.float64), totals


def common_subsequences(rows: Sequence[Sequence[str]], columns: Sequence[Sequence[str]]) -> Floats:
    """The lengths (N,M) of the longest common subsequences of N and M lists of words, for all pairs at once.

    Each word of the row's text is a bit, 63 in a 64-bit number with one bit for the carry. A bit that is 0 at the end
    is a word of the common subsequence.

    Paper: Hyyrö 2004, Bit-parallel LCS-length computation revisited.
    """
    tokens = words([*rows, *columns])
    bounds = np.concatenate([[0], np.cumsum(tokens.lengths)])  # where each text begins
    coded = [tokens.codes[a:b] for a, b in pairwise(bounds.tolist())]
    theirs, lengths = coded[len(rows) :], tokens.lengths[len(rows) :]
    longest = int(lengths.max(initial=0))
    kinds = int(tokens.codes.max(initial=-1)) + 1
    across = np.full((longest, len(columns)), kinds, dtype=np.int64)  # the number `kinds` stands for no word
    for column, codes in enumerate(theirs):
        across[: len(codes), column] = codes
    result = np.zeros((len(rows), len(columns)))
    step = max(1, 65_536 // max(1, len(columns)))  # pairs that fit into the cache
    for begin in range(0, len(rows), step):
        result[begin : begin + step] = _subsequences(coded[begin : min(begin + step, len(rows))], across, kinds)
    return result


def _subsequences(ours: Sequence[Ints], across: Ints, kinds: int) -> Floats:
    """Codes of the rows, and codes of the columns by position (L,M) -> lengths (N,M)."""
    pieces = max((len(codes) + 62) // 63 for codes in ours)
    # the positions of each word in a row, as bits
    word_positions = np.zeros((pieces, kinds + 1, len(ours)), dtype=np.uint64)
    for row, codes in enumerate(ours):
        for position, code in enumerate(codes.tolist()):
            word_positions[position // 63, code, row] |= np.uint64(1 << position % 63)
    full = np.uint64((1 << 63) - 1)  # 63 bits set
    state = np.full((pieces, across.shape[1], len(ours)), full, dtype=np.uint64)
    for codes in across:  # one position of all columns
        carry = np.zeros(state.shape[1:], dtype=np.uint64)
        for piece in range(pieces):
            now = state[piece]
            matched = now & word_positions[piece][codes]  # its positions whose bit is still 1
            total = now + matched + carry
            carry = total >> np.uint64(63)  # from the 64th bit to the next piece
            state[piece] = (total | (now & ~matched)) & full  # bits that became 0 are counted at the end
    bits = np.unpackbits(state[..., None].view(np.uint8), axis=-1)  # (pieces,M,N,64), 8 bits a byte
    zeros = 63.0 * pieces - bits.sum(axis=(0, -1))  # zeros: words in common; bits beyond a text stay 1
    return np.ascontiguousarray(zeros.T)
