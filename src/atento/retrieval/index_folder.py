"""The folder of an index: immutable segments, and `index.json`, which lists them and is replaced at once.

What `index.json` does not list does not belong to the index: a process that ends while it writes leaves the old state.
"""

import hashlib
import json
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from atento.base.errors import AtentoError, DataError, UsageError
from atento.base.limits import open_plain, read_plain
from atento.retrieval.index_segments import Array, Document, Segment, write_segment
from atento.storage.lock import RunLock
from atento.storage.manifest import FileEntry, directory, strict_json, sync, write_file
from atento.storage.whole_file import NewFolder

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
