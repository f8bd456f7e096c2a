"""Statistics of a store of token ids, and its overlap with other texts, in memory for one shard."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from atento.data.corpus.corpus_statistics import PERCENTILES
from atento.data.store.store_overlap import NGRAM, equal_texts, shared_runs
from atento.data.store.token_store import TokenStore


def token_lengths(store: TokenStore) -> NDArray[np.int64]:
    """Return how many texts of the store have each number of tokens, from 0 on; omitted texts count."""
    counts = np.zeros(1, dtype=np.int64)
    for _, _, starts in store.shards():
        of_shard = np.bincount(np.diff(starts.astype(np.int64)))
        larger, smaller = sorted((counts, of_shard), key=len, reverse=True)
        counts = larger.astype(np.int64)
        counts[: len(smaller)] += smaller
    return counts


def stored_statistics(store: TokenStore, longest: int, n_special: int) -> dict[str, Any]:
    """Return the statistics of the texts of a store, under the keys of `atento data stats`.

    Args:
        store: the texts.
        longest: `data.max_len`.
        n_special: special tokens of a text.
    """
    counts = token_lengths(store)
    ends = np.cumsum(counts)
    total = int(ends[-1])
    # the smallest length that a share of the texts does not exceed: numpy's method "inverted_cdf"
    ranks = [max(1, -(-total * part // 100)) for part in (0, *PERCENTILES, 100)]
    lengths = np.searchsorted(ends, ranks).tolist()
    tokens = {"total": store.tokens, **dict(zip(("min", *(f"p{part}" for part in PERCENTILES), "max"), lengths))}
    over = int(counts[max(0, longest - n_special + 1) :].sum())
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
