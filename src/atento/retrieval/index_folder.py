"""The folder of an index: immutable segments, and `index.json`, which lists them and is replaced at once.

A segment has lines with their vectors and words in one safetensors file. The words, and the values of the lines'
columns, are the terms of an inverted index: for each term the rows that have it, rising, and how often.

What `index.json` does not list does not belong to the index: a process that ends while it writes leaves the old state.
"""

import hashlib
import json
import os
import re
from array import array
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from atento.base.errors import AtentoError, CheckpointError, DataError, ModelError, UsageError
from atento.base.limits import open_plain, read_plain
from atento.metrics.rouge import unicode_words
from atento.storage.atomic_files import NewFolder
from atento.storage.lock import RunLock
from atento.storage.manifest import FileEntry, directory, strict_json, sync, write_file
from atento.storage.tensorfile import TensorFiles, safetensors_chunks, to_bytes

Array = NDArray[Any]
Postings = tuple[NDArray[np.int32], NDArray[np.int32]]  # rows (P,), rising, and how often each has the term (P,)


@dataclass(frozen=True)
class Document:
    """A line of an index.

    Attributes:
        text: the text that is searched.
        line: where it stands in its source, from 1.
        source: the name of the file it came from; empty for texts of a list.
        columns: the other columns of its row, by name.
    """

    text: str
    line: int
    source: str = ""
    columns: Mapping[str, str] = field(default_factory=dict)


def value_term(column: str, value: str) -> str:
    """The term of the lines whose column has this value; no word has a NUL character."""
    return f"\0{column}\0{value}"


def quantised(vectors: NDArray[np.float32]) -> tuple[NDArray[np.int8], NDArray[np.float32]]:
    """Vectors (N,D) in 8 bits: q (N,D) and scales (N,) with vector ≈ q · scale, rounded to the nearest of 255 steps."""
    scales = np.abs(vectors).max(axis=1, initial=0) / np.float32(127)
    steps = np.rint(vectors / np.where(scales == 0, 1, scales)[:, None])
    return steps.astype(np.int8), scales.astype(np.float32)


def write_segment(
    directory_fd: int, name: str, documents: Sequence[Document], vectors: Array, scales: NDArray[np.float32]
) -> FileEntry:
    """Write a new segment into an open folder, and return its entry.

    Args:
        documents: N lines, at least one.
        vectors, scales: (N,D), of length 1, and (N,): as of `quantised`, or float32 and ones.

    Raises OSError: it cannot be written.
    """
    records = [json.dumps(asdict(one), ensure_ascii=False).encode("utf-8") for one in documents]
    arrays: dict[str, Array] = _terms(documents) | {
        "vectors": vectors,
        "scales": scales,
        "records": np.frombuffer(b"".join(records), dtype=np.uint8).copy(),
        "record_ends": np.cumsum([len(record) for record in records], dtype=np.int64),
    }
    tensors: dict[str, Tensor] = {key: torch.from_numpy(np.ascontiguousarray(value)) for key, value in arrays.items()}
    return write_file(directory_fd, name, to_bytes(safetensors_chunks(name, tensors)))


def _terms(documents: Sequence[Document]) -> dict[str, Array]:
    """The inverted index of lines: terms in the order of their bytes, their postings, and how many words a line has."""
    known: dict[str, int] = {}
    terms, counts, sizes, lengths = array("i"), array("i"), array("i"), array("i")
    for one in documents:
        found = Counter(unicode_words(one.text))
        lengths.append(found.total())
        found.update(value_term(column, value) for column, value in one.columns.items())
        terms.extend(known.setdefault(term, len(known)) for term in found)
        counts.extend(found.values())
        sizes.append(len(found))
    spelled = [term.encode("utf-8") for term in known]
    order = sorted(range(len(spelled)), key=spelled.__getitem__)
    ranks = np.empty(len(order), dtype=np.int64)
    ranks[order] = np.arange(len(order))
    ranked = ranks[np.frombuffer(terms, dtype=np.int32)]
    by_term = np.argsort(ranked, kind="stable")  # the rows of a term stay in their order
    rows = np.repeat(np.arange(len(documents), dtype=np.int32), np.frombuffer(sizes, dtype=np.int32))
    return {
        "terms": np.frombuffer(b"".join(spelled[number] for number in order), dtype=np.uint8).copy(),
        "term_ends": np.cumsum([len(spelled[number]) for number in order], dtype=np.int64),
        "posting_ends": np.cumsum(np.bincount(ranked, minlength=len(order)), dtype=np.int64),
        "posting_rows": rows[by_term],
        "posting_counts": np.frombuffer(counts, dtype=np.int32)[by_term],
        "lengths": np.frombuffer(lengths, dtype=np.int32),
    }


class Segment:
    """A segment that is read where it is needed: its file is mapped into memory, which processes share.

    Attributes:
        vectors, scales: (N,D), float32 or int8, and (N,): a vector is the product of both.
        lengths: words of each line (N,).
        alive: false for lines that were taken out (N,).
    """

    def __init__(self, path: Path, rows: int, width: int, removed: Sequence[int]) -> None:
        """Map a segment. Raises DataError: the file is damaged."""
        try:
            entries = TensorFiles(path.parent, path.name).entries
            data = np.memmap(path, dtype=np.uint8, mode="c")  # nobody writes; PyTorch warns of what cannot be written
            arrays: dict[str, Array] = {
                name: data[at.start : at.start + at.size].view(str(at.dtype).removeprefix("torch.")).reshape(at.shape)
                for name, at in entries.items()
            }
            self.vectors, self.scales, self.lengths = arrays["vectors"], arrays["scales"], arrays["lengths"]
            self.alive = np.ones(rows, dtype=np.bool_)
            self.alive[list(removed)] = False
            self._records, self._record_ends = arrays["records"], arrays["record_ends"]
            self._terms, self._term_ends = arrays["terms"], arrays["term_ends"]
            self._postings = arrays["posting_ends"], arrays["posting_rows"], arrays["posting_counts"]
        except (ModelError, CheckpointError, KeyError, IndexError, ValueError, OSError) as error:
            raise DataError(f"the index {path.parent} is damaged: {path.name} is no segment ({error})") from None
        sizes = {len(self.lengths), len(self._record_ends), len(self.scales)}
        if self.vectors.shape != (rows, width) or sizes != {rows}:
            raise DataError(f"the index {path.parent} is damaged: {path.name} has not {rows} lines of {width} numbers")

    def document(self, row: int) -> Document:
        """The line of a row."""
        start = self._record_ends[row - 1] if row else 0
        return Document(**json.loads(self._records[start : self._record_ends[row]].tobytes()))

    def postings(self, term: str) -> Postings:
        """The rows that have a term, and how often; also of lines that were taken out."""

        def spelled(number: int) -> bytes:
            return self._terms[self._term_ends[number - 1] if number else 0 : self._term_ends[number]].tobytes()

        wanted, (ends, rows, counts) = term.encode("utf-8"), self._postings
        number = bisect_left(range(len(self._term_ends)), wanted, key=spelled)
        if number == len(self._term_ends) or spelled(number) != wanted:
            return rows[:0], counts[:0]
        part = slice(ends[number - 1] if number else 0, ends[number])
        return rows[part], counts[part]


INDEX = "index.json"
_FORMAT, _NEXT = "atento-index-1", ".index-next.json"
_OURS = re.compile(r"segment-\d{8}\.safetensors|\.index-next\.json")
_TRIES = 10  # to open an index that another process is changing


@dataclass(frozen=True)
class SegmentEntry(FileEntry):
    """A segment of an index: its file, its lines, and the rows of those that were taken out."""

    rows: int
    removed: tuple[int, ...] = ()


@dataclass(frozen=True)
class State:
    """What `index.json` says.

    Attributes:
        model, model_hash: the model of the vectors, as it is loaded again, and the SHA-256 of its files.
        width: numbers of a vector.
        vectors: how they are stored, "float32" or "int8".
        columns: the columns that each line has beside its text.
        count: segments that were ever written, of which the next has this number.
        segments: those that hold the lines, in their order.
    """

    model: str
    model_hash: str
    width: int
    vectors: str
    columns: tuple[str, ...]
    count: int = 0
    segments: tuple[SegmentEntry, ...] = ()


def read_index(folder: Path) -> tuple[State, list[Segment]]:
    """The state of an index and its segments, mapped; every file is compared with its SHA-256 (0.8 s per GiB).
    Raises UsageError: the folder has no index. DataError: half written, or damaged; names the file.
    """
    missing = ""
    for _ in range(_TRIES):
        state = read_state(folder)
        try:
            return state, [_checked(folder, entry, state.width) for entry in state.segments]
        except FileNotFoundError as error:  # perhaps the index was changed meanwhile
            missing = str(error)
    raise DataError(f"the index {folder} is damaged: {missing} is missing")


def read_state(folder: Path) -> State:
    """What `index.json` of a folder says; errors as of `read_index`."""
    if not (folder / INDEX).is_file():
        if folder.is_dir() and any(_OURS.fullmatch(path.name) for path in folder.iterdir()):
            raise DataError(f"the index {folder} is half written: {INDEX} is missing; run `atento index` once more")
        what = f"has no {INDEX}" if folder.is_dir() else "is no folder" if folder.exists() else "does not exist"
        raise UsageError(f"{folder} is no index: it {what}; `atento index CORPUS MODEL --out {folder}` makes one")
    try:
        raw = read_plain(folder / INDEX)
        body: dict[str, Any] = strict_json(raw)
        entries = [SegmentEntry(**entry | {"removed": tuple(entry["removed"])}) for entry in body["segments"]]
        known = {name: body[name] for name in State.__annotations__}
        state = State(**known | {"segments": tuple(entries), "columns": tuple(body["columns"])})
        whole = _rendered(state) == raw  # its own hash, and every other byte
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise DataError(f"the index {folder} is damaged: {INDEX} cannot be read: {error}") from None
    if not whole or not all(_OURS.fullmatch(str(entry.name)) for entry in entries):
        raise DataError(f"the index {folder} is damaged: {INDEX} was altered, its own SHA-256 does not match")
    return state


def _checked(folder: Path, entry: SegmentEntry, width: int) -> Segment:
    """A segment whose file is what the index says. Raises FileNotFoundError: there is none. DataError: damaged."""
    path = folder / entry.name
    try:
        with open_plain(path) as file:
            found = os.fstat(file.fileno()).st_size, hashlib.file_digest(file, "sha256").hexdigest()
        if found != (entry.size, entry.sha256):
            raise DataError(f"the index {folder} is damaged: {entry.name} is not what {INDEX} says, by its SHA-256")
        return Segment(path, entry.rows, width, entry.removed)
    except (OSError, DataError) as error:
        if not path.exists():
            raise FileNotFoundError(entry.name) from None
        if isinstance(error, DataError):
            raise
        raise DataError(f"the index {folder} is damaged: {entry.name} cannot be read: {error.strerror}") from None


def _rendered(state: State) -> bytes:
    """The state as canonical JSON, with the hash of the other keys as the last key."""
    body = {"format": _FORMAT, **asdict(state)}
    body["sha256"] = hashlib.sha256(json.dumps(body).encode("ascii")).hexdigest()
    return json.dumps(body).encode("ascii") + b"\n"


class IndexWriter:
    """An index that is being changed under its lock; nothing of it is seen before `commit`.

    Attributes:
        state: of the index as it is.
    """

    def __init__(self, folder: Path, directory_fd: int, state: State) -> None:
        self.folder, self.state, self._fd, self._count = folder, state, directory_fd, state.count

    def segment(self, documents: Sequence[Document], vectors: Array, scales: NDArray[np.float32]) -> SegmentEntry:
        """Write a new segment; arguments as of `write_segment`."""
        self._count += 1
        file = write_segment(self._fd, f"segment-{self._count:08}.safetensors", documents, vectors, scales)
        return SegmentEntry(**vars(file), rows=len(documents))

    def rewritten(self, entries: Sequence[SegmentEntry]) -> list[SegmentEntry]:
        """One segment of the lines of others that were not taken out; none if there is no such line."""
        segments = [Segment(self.folder / one.name, one.rows, self.state.width, one.removed) for one in entries]
        documents = [one.document(row) for one in segments for row in np.flatnonzero(one.alive).tolist()]
        vectors = np.concatenate([one.vectors[one.alive] for one in segments])
        scales = np.concatenate([one.scales[one.alive] for one in segments])
        return [self.segment(documents, vectors, scales)] if documents else []

    def commit(self, segments: Sequence[SegmentEntry]) -> None:
        """Make these segments the index."""
        self.state = replace(self.state, count=self._count, segments=tuple(segments))
        write_file(self._fd, _NEXT, [_rendered(self.state)])
        sync(self._fd)  # the segments are in the folder before the index names them
        os.rename(_NEXT, INDEX, src_dir_fd=self._fd, dst_dir_fd=self._fd)
        sync(self._fd)

    def clean(self) -> None:
        """Delete files of ours that do not belong to the index: old segments, and what a process that ended left."""
        kept = {entry.name for entry in self.state.segments}
        for path in list(self.folder.iterdir()):
            if _OURS.fullmatch(path.name) and path.name not in kept:
                with suppress(OSError):
                    path.unlink()


@contextmanager
def writing(folder: Path, new: State | None = None, made_by: str = "") -> Iterator[IndexWriter]:
    """An index to be changed in the `with` block, by one process at a time.

    Args:
        folder: the folder of an index.
        new: of a new one, for which the folder must be empty or not exist, or hold one that was left half written.
        made_by: the hash of the model of one that was opened before.

    Raises UsageError: no index, other files, or in use. AtentoError: it cannot be written; the old state stays.
    """
    if new is None:
        read_state(folder)  # before anything is written
    elif folder.exists():
        others = [path.name for path in folder.iterdir() if path.name != ".lock"] if folder.is_dir() else [folder.name]
        if INDEX in others:
            raise UsageError(f"{folder} is an index already; --add adds lines to it, or give another folder")
        if not all(map(_OURS.fullmatch, others)):
            raise UsageError(f"{folder} has other files ({min(others)}); give a new or empty folder")
    made = NewFolder(folder, (folder / INDEX).is_file)
    with RunLock(folder, "index"), made, directory(folder) as fd:
        writer = IndexWriter(folder, fd, read_state(folder) if new is None else new)
        if new is None and writer.state.model_hash != made_by:
            raise UsageError(f"the index {folder} was made anew by another model meanwhile: open it again")
        writer.clean()
        try:
            yield writer
        except OSError as error:
            raise AtentoError(f"the index {folder} cannot be written: {error.strerror or error}") from error
        finally:
            writer.clean()
