"""Statistics of a store of token ids, and its overlap with other texts, equal or in shared runs, in bounded memory."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from atento.base.splitmix import hashes_of
from atento.data.store.token_store import TokenStore

NGRAM = 13  # tokens: the run that marks a test text as seen in training (Brown et al. 2020, appendix C)
_PIECE = 1 << 20  # tokens hashed at a time
_KEY = 33  # part of the key of these hashes
Ids = NDArray[np.generic]
PERCENTILES = (1, 5, 25, 50, 75, 95, 99)  # of the lengths of texts


def equal_texts(store: TokenStore, texts: Sequence[Ids]) -> list[list[int]]:
    """Return, for each of some texts, the numbers of the store's texts with the same ids, omitted ones left out.

    Args:
        store: the texts to search.
        texts: ids without special tokens.
    """
    matches: list[list[int]] = [[] for _ in texts]
    if not texts:
        return matches
    joined = np.concatenate([np.asarray(text, dtype=np.int64) for text in texts])
    ends = np.cumsum([len(text) for text in texts])  # of each text in `joined`
    signatures = _signatures(joined, np.concatenate([[0], ends]))  # (texts,)
    ranked = np.sort(signatures)  # for binary search, in `_member`
    by_signature: dict[int, list[int]] = {}
    for number, signature in enumerate(signatures.tolist()):  # texts may share one
        by_signature.setdefault(signature, []).append(number)
    omitted = frozenset(store.omitted.tolist())
    for first, ids, starts in store.shards():
        of_shard = _signatures(ids, starts.astype(np.int64))
        for text in np.flatnonzero(_member(of_shard, ranked)).tolist():  # texts that may be equal
            if first + text in omitted:
                continue
            row = ids[starts[text] : starts[text + 1]]  # ids of the text
            for number in by_signature[int(of_shard[text])]:
                if np.array_equal(row, texts[number]):  # the signature reads three ids of a text
                    matches[number].append(first + text)
    return matches


def shared_runs(store: TokenStore, texts: Sequence[Ids], size: int = NGRAM) -> NDArray[np.int64]:
    """Return, for each of some texts, how many of its runs of `size` tokens also stand in a text of the store.

    Runs are compared by 64-bit hashes: two different runs are equal with probability 2**-64. Omitted texts count.

    Args:
        store: the texts to search.
        texts: ids without special tokens.
        size: tokens of a run.
    """
    of_texts = [_runs(np.asarray(text, dtype=np.int64), size) for text in texts]
    ranked = np.unique(np.concatenate([np.empty(0, dtype=np.uint64), *of_texts]))  # (distinct runs,)
    present = np.zeros(len(ranked), dtype=np.bool_)
    for _, ids, starts in store.shards():
        for begin in range(0, max(0, len(ids) - size + 1), _PIECE):
            runs = _runs(np.array(ids[begin : begin + _PIECE + size - 1], dtype=np.int64), size)
            where = np.flatnonzero(_member(runs, ranked)) + begin
            # a run may not go on from one text to the next
            first, last = (np.searchsorted(starts, at, side="right") for at in (where, where + size - 1))
            inside = first == last
            present[np.searchsorted(ranked, runs[where[inside] - begin])] = True
    return np.array([int(present[np.searchsorted(ranked, runs)].sum()) for runs in of_texts], dtype=np.int64)


def _signatures(ids: Ids, starts: NDArray[np.int64]) -> NDArray[np.uint64]:
    """Return a number for each text, equal for equal texts: of its length and its first, middle and last id."""
    lengths = np.diff(starts)
    filled = lengths > 0  # an empty text has no first id
    signature = lengths.astype(np.uint64)
    for offset in (np.zeros_like(lengths), lengths // 2, lengths - 1):  # first, middle, last
        at = np.where(filled, starts[:-1] + offset, 0)  # 0 is read, not used
        values = ids[at].astype(np.uint64) if len(ids) else np.zeros(len(lengths), dtype=np.uint64)
        signature = hashes_of(signature * np.uint64(1 << 20) + np.where(filled, values, np.uint64(0)), _KEY)
    return signature


def _runs(ids: NDArray[np.int64], size: int) -> NDArray[np.uint64]:
    """Return a hash of each run of `size` ids."""
    count = max(0, len(ids) - size + 1)
    hashed = np.zeros(count, dtype=np.uint64)
    with np.errstate(over="ignore"):
        of_id = hashes_of(ids.astype(np.uint64), _KEY)  # (ids,)
        for offset in range(size):  # a polynomial in an odd constant, modulo 2**64
            hashed = hashed * np.uint64(0x9E3779B97F4A7C15) + of_id[offset : offset + count]
    return hashed


def _member(values: NDArray[np.uint64], ranked: NDArray[np.uint64]) -> NDArray[np.bool_]:
    """Whether each value is one of the sorted ones."""
    if not len(ranked):
        return np.zeros(len(values), dtype=np.bool_)
    return np.asarray(ranked[np.minimum(np.searchsorted(ranked, values), len(ranked) - 1)] == values)


def stored_statistics(store: TokenStore, longest: int, n_special: int) -> dict[str, Any]:
    """Return the statistics of the texts of a store, under the keys of `atento data stats`.

    Args:
        longest: `data.max_len`.
        n_special: special tokens of a text.
    """
    # how many texts of the store have each number of tokens, from 0 on; omitted texts count
    counts = np.zeros(1, dtype=np.int64)
    for _, _, starts in store.shards():
        of_shard = np.bincount(np.diff(starts.astype(np.int64)))
        larger, smaller = sorted((counts, of_shard), key=len, reverse=True)
        counts = larger.astype(np.int64)
        counts[: len(smaller)] += smaller
    ends = np.cumsum(counts)  # texts of n tokens or fewer
    total = int(ends[-1])
    # the smallest length that a share of the texts does not exceed: numpy's method "inverted_cdf"
    ranks = [max(1, -(-total * part // 100)) for part in (0, *PERCENTILES, 100)]  # ceil of the share
    lengths = np.searchsorted(ends, ranks).tolist()
    tokens = {"total": store.tokens, **dict(zip(("min", *(f"p{part}" for part in PERCENTILES), "max"), lengths))}
    over = int(counts[max(0, longest - n_special + 1) :].sum())  # + 1: more than there is room for
    return {
        "texts": total,
        "text_characters": store.characters,
        "lengths": {"text": {"tokens": tokens, "longest": f"text {_longest(store, lengths[-1])}"}},
        "over_max_len": {"max_len": longest, "records": over, "cut": "none"},
        "suspicious": {},
        "files": [],
    }


def _longest(store: TokenStore, length: int) -> int:
    """Return the number of the first text with so many tokens."""
    for first, _, starts in store.shards():
        at = np.flatnonzero(np.diff(starts.astype(np.int64)) == length)
        if len(at):
            return first + int(at[0])
    raise ValueError(f"no text has {length} tokens")


def stored_overlap(store: TokenStore, texts: Sequence[Sequence[int]]) -> dict[str, object]:
    """Return how many of some texts are in the store, and how many share a run of 13 tokens with it.

    Args:
        store: the training texts.
        texts: ids of the other texts, without special tokens.
    """
    ids = [np.array(text, dtype=np.int64) for text in texts]
    shared = shared_runs(store, ids)
    return {
        "also_in_train": sum(map(bool, equal_texts(store, ids))),
        "shared_runs": {"tokens": NGRAM, "texts": int((shared > 0).sum()), "runs": int(shared.sum())},
    }
