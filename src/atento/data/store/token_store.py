"""A memory-mapped store of token ids: shards of whole texts, their starts, blocks to shuffle, a verified manifest.

A store is a folder with the tokenizer and, for shard N, four files: `ids-N.bin`, the ids of its texts one after
another; `starts-N.bin`, where each text begins, and the end; `blocks-N.bin`, the first text of each block of at least
16,384 ids, and the end; `shard-N.json`, counts and SHA-256 of the other three. `plan.json` says what the store is made
from, and `manifest.json`, written last, what it holds. Statistics, and what a store shares with other texts, are
computed in bounded memory.
"""

import hashlib
import json
import mmap
import os
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from atento.base.errors import DataError
from atento.base.limits import open_plain, read_plain_text
from atento.base.splitmix import hashes_of

FORMAT = "atento-tokens-1"
PLAN, MANIFEST = "plan.json", "manifest.json"
BLOCK_TOKENS = 1 << 14
PARTS = ("ids", "starts", "blocks")


@dataclass(frozen=True)
class ShardRecord:
    """What `shard-N.json` says of a shard.

    Attributes:
        texts, tokens, characters, blocks: how many it has.
    """

    source: int  # number of the data source that its texts are from
    last: bool  # whether it is the last one of its source
    texts: int
    tokens: int
    characters: int
    blocks: int
    text: str  # SHA-256 of the texts, each ended by NUL
    sha256: Mapping[str, str]  # SHA-256 of the other files, by `PARTS`


class _Shard:
    """The arrays of a shard, mapped read-only."""

    def __init__(self, folder: Path, number: int, record: ShardRecord, dtype: np.dtype[np.generic], first: int) -> None:
        self.record, self.first = record, first  # the number of its first text
        self._maps: list[mmap.mmap] = []
        self.ids = self._mapped(part_path(folder, "ids", number), dtype, record.tokens)
        self.starts = self._mapped(part_path(folder, "starts", number), np.dtype("<u4"), record.texts + 1)
        self.blocks = self._mapped(part_path(folder, "blocks", number), np.dtype("<u4"), record.blocks + 1)

    def _mapped(self, path: Path, dtype: np.dtype[np.generic], count: int) -> NDArray[np.generic]:
        if count == 0:
            return np.empty(0, dtype=dtype)
        try:
            with open_plain(path) as file:
                pages = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except (OSError, ValueError) as error:  # an empty file, or none
            raise DataError(f"{path}: the store is damaged: the file cannot be mapped ({error})") from None
        if len(pages) != count * dtype.itemsize:
            raise DataError(
                f"{path}: the store is damaged: {len(pages)} bytes, and its record says {count * dtype.itemsize}"
            )
        self._maps.append(pages)
        return np.frombuffer(pages, dtype=dtype)

    def release(self) -> None:
        """Take the pages that were read out of the memory of this process; the system may keep them cached."""
        for pages in self._maps:
            if hasattr(mmap, "MADV_DONTNEED"):
                pages.madvise(mmap.MADV_DONTNEED)


class TokenStore:
    """The token ids of many texts on disk, without special tokens; text N is the Nth good record of the sources.

    Attributes:
        folder: where it is.
        plan: what it was made from.
        fingerprint: SHA-256 of plan, texts and ids.
        texts, tokens, characters: how many it holds, texts that are left out included.
        omitted: numbers of texts that are not read, in order: those held out for validation.
    """

    def __init__(self, folder: Path, omitted: Sequence[int] = (), source: int | None = None) -> None:
        """Map a complete store; `verify` also reads it.

        Args:
            folder: where it is.
            omitted: numbers of texts that are not read.
            source: read the texts of this data source alone; None: all.

        Raises DataError: there is no complete store in the folder, or a file has another size.
        """
        manifest = read_json(folder / MANIFEST)
        if manifest is None or manifest.get("format") != FORMAT:
            raise DataError(f"{folder}: holds no complete token store; `atento data tokenize` makes one")
        self.folder, self.plan = folder, dict(manifest["plan"])
        self.dtype = np.dtype(str(self.plan["dtype"]))
        self.fingerprint = str(manifest["fingerprint"])
        records = [ShardRecord(**record) for record in manifest["shards"]]
        if fingerprint_of(self.plan, records) != self.fingerprint:
            raise DataError(f"{folder / MANIFEST}: the store is damaged: the manifest was altered")
        self.records = records
        firsts: list[int] = np.cumsum([0, *(record.texts for record in records)]).tolist()  # texts before each shard
        placed = enumerate(zip(records, firsts))
        self._shards = [_Shard(folder, number, record, self.dtype, first) for number, (record, first) in placed]
        if source is not None:
            self._shards = [shard for shard in self._shards if shard.record.source == source]
        read = [shard.record for shard in self._shards]
        self._block_ends = np.cumsum([record.blocks for record in read])  # for binary search
        self.texts, self.tokens = sum(record.texts for record in read), sum(record.tokens for record in read)
        self.characters = sum(record.characters for record in read)
        first = self._shards[0].first if self._shards else 0
        self.omitted = np.array(sorted(text for text in omitted if 0 <= text - first < self.texts), dtype=np.int64)

    def __len__(self) -> int:
        return self.texts - len(self.omitted)

    @property
    def n_blocks(self) -> int:
        """Number of blocks: runs of neighbouring texts with at least 16,384 tokens together, or the end of a shard."""
        return int(self._block_ends[-1]) if len(self._block_ends) else 0

    def without(self, omitted: Sequence[int]) -> "TokenStore":
        """Return the same store without some texts."""
        return TokenStore(self.folder, omitted)

    def of_source(self, number: int) -> "TokenStore":
        """Return the texts of one data source alone."""
        return TokenStore(self.folder, self.omitted.tolist(), number)

    def rows(self, blocks: Iterable[int]) -> list[NDArray[np.generic]]:
        """Return the ids of each text of some blocks, copied into memory."""
        rows = []
        for block in blocks:
            number = int(np.searchsorted(self._block_ends, block, side="right"))  # the shard that holds the block
            shard = self._shards[number]
            local = block - int(self._block_ends[number]) + shard.record.blocks  # its number within the shard
            low, high = int(shard.blocks[local]), int(shard.blocks[local + 1])  # its texts within the shard
            starts = shard.starts[low : high + 1].astype(np.int64)  # (texts + 1,)
            flat = np.array(shard.ids[starts[0] : starts[-1]])  # one copy a block; rows are views of it
            cut = (starts - starts[0]).tolist()
            begin, end = np.searchsorted(self.omitted, [shard.first + low, shard.first + high]).tolist()
            omitted = frozenset(self.omitted[begin:end].tolist())
            texts = enumerate(pairwise(cut), start=shard.first + low)
            rows += [flat[start:end] for text, (start, end) in texts if text not in omitted]
        return rows

    def shards(self) -> Iterable[tuple[int, NDArray[np.generic], NDArray[np.generic]]]:
        """Yield each shard: the number of its first text, its ids, and the starts of its texts with the end."""
        for shard in self._shards:
            yield shard.first, shard.ids, shard.starts
            shard.release()

    def release(self) -> None:
        """Take the pages that were read out of the memory of this process."""
        for shard in self._shards:
            shard.release()

    def verify(self) -> None:
        """Read every file and compare its SHA-256, several files at a time.
        Raises DataError: a file was altered; the message names it.
        """
        parts = [(number, part) for number in range(len(self.records)) for part in PARTS]

        def wrong(pair: tuple[int, str]) -> Path | None:
            path = part_path(self.folder, pair[1], pair[0])
            return None if sha256_of(path) == self.records[pair[0]].sha256[pair[1]] else path

        with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as threads:
            for path in threads.map(wrong, parts):
                if path is not None:
                    raise DataError(
                        f"{path}: the store is damaged: its content was altered. Delete {self.folder} and make the "
                        "store again"
                    )


def part_path(folder: Path, part: str, number: int) -> Path:
    """Return the path of a part of a shard."""
    return folder / f"{part}-{number:05}.{'json' if part == 'shard' else 'bin'}"


def sha256_of(path: Path) -> str:
    """Return the SHA-256 of a file. Raises DataError: it cannot be read."""
    try:
        with open_plain(path) as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror}") from None


def fingerprint_of(plan: Mapping[str, object], records: Sequence[ShardRecord]) -> str:
    """Return the SHA-256 of what a store holds; the times and names of the files that it was made from do not count."""
    content = [plan["tokenizer"], plan["dtype"], [asdict(record) for record in records]]
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def read_json(path: Path) -> dict[str, Any] | None:
    """Return an object of a JSON file; None if there is no such file or it is something else."""
    try:
        value = json.loads(read_plain_text(path))
    except (OSError, ValueError):
        return None
    return value if isinstance(value, dict) else None


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
    of_shards = ((first, np.diff(starts.astype(np.int64))) for first, _, starts in store.shards())
    longest_text = next(first + int(own.argmax()) for first, own in of_shards if (own == lengths[-1]).any())
    return {
        "texts": total,
        "text_characters": store.characters,
        "lengths": {"text": {"tokens": tokens, "longest": f"text {longest_text}"}},
        "over_max_len": {"max_len": longest, "records": over, "cut": "none"},
        "suspicious": {},
        "files": [],
    }


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
