"""Writes a store of token ids, shard by shard: a killed process loses the shard it was writing, and no other."""

import errno
import hashlib
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from atento.base.errors import AtentoError, DataError
from atento.data.store.token_store import (
    BLOCK_TOKENS,
    FORMAT,
    MANIFEST,
    PARTS,
    PLAN,
    ShardRecord,
    fingerprint_of,
    part_path,
    read_json,
    sha256_of,
)
from atento.text.bulk import EncodedTexts, EncodingPool

SHARD_TOKENS = 1 << 24
_BLOCK_CHARACTERS = 1 << 20  # of the texts that are encoded together
Texts = Callable[[], Iterator[str]]


class TokenWriter:
    """Writes the shards of a store, or those that are missing; a context is not needed, since each shard is whole."""

    def __init__(self, folder: Path, plan: Mapping[str, object], shard_tokens: int = SHARD_TOKENS) -> None:
        """Begin a store in a folder, or continue one.

        Args:
            folder: the folder of the store.
            plan: what it is made from, as `plan.json` stores it.
            shard_tokens: a shard ends with the first text that reaches so many.
        """
        self.folder, self.plan, self.shard_tokens = folder, dict(plan), shard_tokens
        self.dtype = np.dtype(str(plan["dtype"]))
        self._write(folder / PLAN, json.dumps(self.plan, indent=2).encode() + b"\n")
        # the shards that are written and sound, up to the first that is not; what follows them is removed
        self.records = list[ShardRecord]()
        while (record := read_json(part_path(folder, "shard", len(self.records)))) is not None:  # written last
            try:
                number = len(self.records)
                whole = all(sha256_of(part_path(folder, part, number)) == record["sha256"][part] for part in PARTS)
                shard = ShardRecord(**record)
            except (DataError, KeyError, TypeError):
                break
            if not whole:
                break
            self.records.append(shard)
        names = {part_path(folder, part, n).name for n in range(len(self.records)) for part in ("shard", *PARTS)}
        for path in folder.iterdir():
            if path.name.startswith(tuple(f"{part}-" for part in ("shard", *PARTS))) and path.name not in names:
                path.unlink()
        self.resumed = len(self.records)

    def write(self, sources: Sequence[Texts], pool: EncodingPool, report: Callable[[int, int], None]) -> None:
        """Write every shard that is missing.

        Args:
            sources: for each source, a function that returns its texts from the first one on.
            pool: encodes texts.
            report: called after each shard with the texts and characters so far.

        Raises DataError: the texts of a shard that is written have changed. AtentoError: the disk is full.
        """
        for number, texts in enumerate(sources):
            done = [record for record in self.records if record.source == number]
            if done and done[-1].last:
                continue
            left = texts()
            for record in done:  # its texts are passed over, and compared with what was written
                digest = hashlib.sha256()
                for _ in range(record.texts):
                    digest.update(f"{next(left, '')}\0".encode())
                if digest.hexdigest() != record.text:
                    raise DataError(
                        f"{self.folder}: the text has changed since a part of it was tokenized; delete the folder, or "
                        "use --force, to make the store again"
                    )
            self._write_source(number, left, pool, report)

    def finish(self, files: Sequence[Mapping[str, object]]) -> None:
        """Write the manifest.

        Args:
            files: name, size, time and SHA-256 of each file that the texts were read from.
        """
        manifest = {
            "format": FORMAT,
            "fingerprint": fingerprint_of(self.plan, self.records),
            "texts": sum(record.texts for record in self.records),
            "tokens": sum(record.tokens for record in self.records),
            "plan": self.plan,
            "files": list(files),
            "shards": [asdict(record) for record in self.records],
        }
        self._write(self.folder / MANIFEST, json.dumps(manifest, indent=1).encode() + b"\n")

    def _write_source(
        self, number: int, texts: Iterator[str], pool: EncodingPool, report: Callable[[int, int], None]
    ) -> None:
        """Write the shards of one source; a shard ends at a text, the last one where the source ends."""
        shard = _OpenShard(number)
        for block, encoded in pool.encode(_blocks(texts)):
            begin = 0
            ends = np.cumsum(encoded.lengths, dtype=np.int64)  # ids up to the end of each text
            while shard.tokens + int(ends[-1]) - (int(ends[begin - 1]) if begin else 0) >= self.shard_tokens:
                before = int(ends[begin - 1]) if begin else 0  # tokens of the block in earlier shards
                cut = 1 + int(np.searchsorted(ends, self.shard_tokens - shard.tokens + before))  # the text that fills
                shard.add(block, encoded, begin, cut, before, int(ends[cut - 1]))
                self._finish(shard, False, report)
                shard, begin = _OpenShard(number), cut
                if begin == len(block):
                    break
            if begin < len(block):
                shard.add(block, encoded, begin, len(block), int(ends[begin - 1]) if begin else 0, int(ends[-1]))
        self._finish(shard, True, report)

    def _finish(self, shard: "_OpenShard", last: bool, report: Callable[[int, int], None]) -> None:
        """Write the files of a shard, its record last."""
        number = len(self.records)
        lengths = np.concatenate([np.zeros(0, dtype=np.uint32), *shard.lengths])
        starts = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])  # (texts + 1,)
        content = {
            "ids": b"".join(shard.ids),
            "starts": starts.astype("<u4").tobytes(),
            "blocks": block_bounds(starts).astype("<u4").tobytes(),
        }
        for part, data in content.items():
            self._write(part_path(self.folder, part, number), data)
        record = ShardRecord(
            source=shard.source,
            last=last,
            texts=len(lengths),
            tokens=int(starts[-1]),
            characters=shard.characters,
            blocks=len(content["blocks"]) // 4 - 1,  # bounds of four bytes, one more than blocks
            text=shard.digest.hexdigest(),
            sha256={part: hashlib.sha256(data).hexdigest() for part, data in content.items()},
        )
        self._write(part_path(self.folder, "shard", number), json.dumps(asdict(record)).encode() + b"\n")
        self.records.append(record)
        report(sum(record.texts for record in self.records), sum(record.characters for record in self.records))

    def _write(self, path: Path, data: bytes) -> None:
        """`write_durably`.
        Raises AtentoError: it cannot be written; where the disk is full, the message says what to do.
        """
        try:
            write_durably(path, data)
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise AtentoError(
                    f"{path}: the disk is full ({len(data):,} bytes do not fit); the shards written so far are good: "
                    "free space and run the same command to continue"
                ) from error
            raise AtentoError(f"{path} cannot be written: {error.strerror}") from error


def write_durably(path: Path, content: bytes) -> None:
    """Write a file so that it is there whole or not at all, even after a power cut.
    Raises OSError: it cannot be written.
    """
    partial = path.with_name(f".{path.name}.partial")
    try:
        with partial.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    except OSError:
        partial.unlink(missing_ok=True)
        raise


class _OpenShard:
    """The texts of the next shard so far."""

    def __init__(self, source: int) -> None:
        self.source, self.tokens, self.characters = source, 0, 0
        self.ids: list[bytes] = []
        self.lengths: list[NDArray[np.uint32]] = []
        self.digest = hashlib.sha256()

    def add(self, block: list[str], encoded: EncodedTexts, begin: int, end: int, first: int, stop: int) -> None:
        """Add texts `begin` to `end` of a block, whose ids are `first` to `stop`."""
        texts = block[begin:end]
        self.ids.append(encoded.ids[first:stop].tobytes())
        self.lengths.append(encoded.lengths[begin:end])
        self.tokens += stop - first
        self.characters += sum(map(len, texts))
        self.digest.update("".join(f"{text}\0" for text in texts).encode("utf-8"))


def block_bounds(starts: NDArray[np.int64], size: int = BLOCK_TOKENS) -> NDArray[np.int64]:
    """Return the first text of each block and the number of texts; a block ends with the text that reaches `size` ids.

    Args:
        starts: (texts+1,) where each text begins, and the end.
        size: tokens of a block, at least.
    """
    n_texts = len(starts) - 1
    bounds = [0]
    while bounds[-1] < n_texts:
        bounds.append(min(n_texts, int(np.searchsorted(starts, starts[bounds[-1]] + size))))
    return np.array(bounds, dtype=np.int64)


def _blocks(texts: Iterable[str]) -> Iterator[list[str]]:
    """Group texts to be encoded together."""
    block: list[str] = []
    characters = 0
    for text in texts:
        block.append(text)
        characters += len(text)
        if characters >= _BLOCK_CHARACTERS:
            yield block
            block, characters = [], 0
    if block:
        yield block
