"""The manifest of a directory: name, size and SHA-256 of every file, written and verified."""

import contextlib
import errno
import fcntl
import hashlib
import json
import os
import re
import stat
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from atento.base.errors import CheckpointError

CONFIDENCE = "confidence.json"  # beside a model, or in its run: what its probabilities are worth
MANIFEST = "MANIFEST.json"
_FORMAT = "atento-checkpoint-1"
_NAME = re.compile(r"[A-Za-z0-9._-]+")
_HASH = re.compile(r"[0-9a-f]{64}")
_MANIFEST_LIMIT = 4 << 20  # bytes; some 30,000 files
JSON_LIMIT = 64 << 20  # bytes of config.json or state.json
_CHUNK = 16 << 20  # bytes of a write, so that a large tensor is hashed while it is still in the cache


@dataclass(frozen=True)
class FileEntry:
    """One file in the manifest; `size` in bytes, `sha256` in hexadecimal."""

    name: str
    size: int
    sha256: str


@dataclass(frozen=True)
class Manifest:
    """The files that a directory must have, and the step and the run that it belongs to."""

    step: int
    run_id: str
    files: tuple[FileEntry, ...]

    def entry(self, name: str) -> FileEntry | None:
        """The entry of that file, or None."""
        return next((entry for entry in self.files if entry.name == name), None)


def is_plain_name(name: str) -> bool:
    """Whether a checkpoint may have a file of this name: `[A-Za-z0-9._-]+`, and neither `.` nor `..`."""
    return _NAME.fullmatch(name) is not None and name not in (".", "..")


def is_plain_path(name: str) -> bool:
    """Whether it is a plain name, or two joined by `/`: a file in a folder (`1_Pooling/config.json`)."""
    parts = name.split("/")
    return len(parts) <= 2 and all(map(is_plain_name, parts))


def sync(fd: int) -> None:
    """Make the system write the file or directory behind `fd` to the disk."""
    full = getattr(fcntl, "F_FULLFSYNC", None)  # on macOS fsync stops at the drive's cache
    if full is not None:
        with contextlib.suppress(OSError):
            fcntl.fcntl(fd, full)
            return
    try:
        os.fsync(fd)
    except OSError as error:
        # Some network file systems cannot sync a directory; there the rename itself is the commit.
        if error.errno not in (errno.EINVAL, errno.ENOTSUP) or not stat.S_ISDIR(os.fstat(fd).st_mode):
            raise


@contextlib.contextmanager
def directory(path: Path) -> Iterator[int]:
    """Open a directory, so that its files are opened relative to its descriptor.
    Raises CheckpointError: there is no such directory, or it cannot be opened.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    except (FileNotFoundError, NotADirectoryError):
        raise CheckpointError(f"checkpoint {path}: there is no such directory") from None
    except OSError as error:
        raise CheckpointError(f"checkpoint {path}: cannot be opened ({error.strerror})") from error
    try:
        yield fd
    finally:
        os.close(fd)


def write_file(directory_fd: int, name: str, chunks: Iterable[bytes | memoryview]) -> FileEntry:
    """Write a new file in a directory, fsync it, and return its entry, hashed from the bytes given.
    Raises OSError: the system's error, with the file's name.
    """
    digest, size = hashlib.sha256(), 0
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW  # never over a file, never through a link
    try:
        fd = os.open(name, flags, 0o666, dir_fd=directory_fd)
        try:
            for chunk in chunks:
                content = memoryview(chunk)
                for start in range(0, len(content), _CHUNK):
                    part = content[start : start + _CHUNK]
                    digest.update(part)
                    size += len(part)
                    while part:  # a write may take only a part
                        part = part[os.write(fd, part) :]
            sync(fd)
        finally:
            os.close(fd)
    except OSError as error:
        raise OSError(error.errno, error.strerror, name) from error
    return FileEntry(name, size, digest.hexdigest())


def write_manifest(
    path: Path, *, step: int = 0, run_id: str = "", entries: Sequence[FileEntry] | None = None
) -> Manifest:
    """Write `MANIFEST.json` for the files of a directory and fsync it.

    Args:
        path: the directory.
        step, run_id: what the directory belongs to.
        entries: the files; None: the files are read and hashed.

    Raises CheckpointError: a name outside `[A-Za-z0-9._-]+`, something that is not a plain file, or a manifest exists.
    OSError: the system's error.
    """
    with directory(path) as fd:
        if entries is None:
            entries = [_hashed(path, fd, name) for name in _names(path, fd) if name != MANIFEST]
        manifest = Manifest(step, run_id, tuple(sorted(entries, key=lambda entry: entry.name)))
        for entry in manifest.files:
            if not is_plain_path(entry.name):
                raise CheckpointError(
                    f"checkpoint {path}: the name {entry.name!r} is not made of A-Z a-z 0-9 . _ - alone"
                )
        try:
            write_file(fd, MANIFEST, [_render(manifest)])
        except FileExistsError:
            raise CheckpointError(f"checkpoint {path}: there is a {MANIFEST} already") from None
    return manifest


def read_manifest(path: Path) -> Manifest:
    """The manifest of a directory, verified by its own hash; the files are not read.
    Raises CheckpointError: it is missing, malformed or altered, or has a file name that is not allowed.
    """
    with directory(path) as fd:
        return _read_manifest(path, fd)


def verify(path: Path) -> Manifest:
    """Verify that a directory has exactly the files of its manifest, bit for bit; takes 0.8 s per GiB.

    `confidence.json` may be there without being listed: it is fitted to a model that is already written.
    Raises CheckpointError: names the first file that is missing, extra, of the wrong size or content, or not a plain
    file. Where the system could not read it, so that nothing is known of the content, the OSError is its cause.
    """
    with directory(path) as fd:
        manifest = _read_manifest(path, fd)
        listed = {entry.name for entry in manifest.files} | {MANIFEST}
        present = _names(path, fd)
        for name in sorted(listed - present):
            raise CheckpointError(f"checkpoint {path}: {name} is missing")
        for name in sorted(present - listed - {CONFIDENCE}):
            raise CheckpointError(f"checkpoint {path}: {name} does not belong to it ({MANIFEST} does not list it)")
        for entry in sorted(manifest.files, key=lambda entry: entry.size):  # small ones first: faults show quickly
            if _hashed(path, fd, entry.name, entry.size) != entry:
                raise CheckpointError(
                    f"checkpoint {path}: {entry.name} was altered: its SHA-256 is not that of {MANIFEST}"
                )
    return manifest


def read_json(path: Path, manifest: Manifest, name: str) -> dict[str, Any]:
    """One JSON object of a checkpoint, verified against the manifest.
    Raises CheckpointError: it is missing, altered, malformed or too long.
    """
    entry = manifest.entry(name)
    if entry is None:
        raise CheckpointError(f"checkpoint {path}: {name} is not part of it")
    if entry.size > JSON_LIMIT:
        raise CheckpointError(f"checkpoint {path}: {name} has {entry.size} bytes, more than the {JSON_LIMIT} allowed")
    with directory(path) as fd, _plain_file(path, fd, name) as file:
        content = _read(path, name, file, entry.size)
    if len(content) != entry.size or hashlib.sha256(content).hexdigest() != entry.sha256:
        raise CheckpointError(f"checkpoint {path}: {name} was altered: its SHA-256 is not that of {MANIFEST}")
    try:
        value = strict_json(content)
    except ValueError as error:
        raise CheckpointError(f"checkpoint {path}: {name} is malformed: {error}") from None
    if not isinstance(value, dict):
        raise CheckpointError(f"checkpoint {path}: {name} is malformed: it must be one object")
    return value


def strict_json(text: bytes) -> Any:
    """Parse JSON by the standard alone: UTF-8, no NaN or infinity, no key twice.
    Raises ValueError: says what is wrong.
    """

    def refuse(constant: str) -> None:
        raise ValueError(f"{constant} is no JSON number")

    def unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
        value = dict(pairs)
        if len(value) != len(pairs):
            raise ValueError("a key occurs twice in one object")
        return value

    try:
        return json.loads(text.decode("utf-8"), parse_constant=refuse, object_pairs_hook=unique)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def _render(manifest: Manifest) -> bytes:
    """The manifest as canonical JSON, with the hash of the other keys as the last key."""
    body: dict[str, object] = {"format": _FORMAT, "step": manifest.step, "run_id": manifest.run_id}
    body["files"] = [{"name": entry.name, "size": entry.size, "sha256": entry.sha256} for entry in manifest.files]
    body["sha256"] = hashlib.sha256(json.dumps(body, indent=1).encode("ascii")).hexdigest()
    return json.dumps(body, indent=1).encode("ascii") + b"\n"


def _read_manifest(path: Path, directory_fd: int) -> Manifest:
    with _plain_file(path, directory_fd, MANIFEST) as file:
        raw = _read(path, MANIFEST, file, _MANIFEST_LIMIT)
    try:
        manifest = _parse(strict_json(raw))
    except ValueError as error:
        raise CheckpointError(f"checkpoint {path}: {MANIFEST} is malformed: {error}") from None
    # Rendered again it must be the same bytes: this verifies its own hash, and spaces and line ends as well.
    if _render(manifest) != raw:
        raise CheckpointError(f"checkpoint {path}: {MANIFEST} was altered: its own SHA-256 does not match")
    return manifest


def _parse(body: object) -> Manifest:
    """A manifest from its JSON, with every field checked. Raises ValueError."""
    keys = ["format", "step", "run_id", "files", "sha256"]
    if not isinstance(body, dict) or list(body) != keys:
        raise ValueError(f"its keys must be {', '.join(keys)}")
    if body["format"] != _FORMAT:
        raise ValueError(f"its format must be {_FORMAT!r}: got {body['format']!r}")
    if not _is_count(body["step"]) or not isinstance(body["run_id"], str) or not isinstance(body["files"], list):
        raise ValueError("`step` must be a number, `run_id` text and `files` a list")
    files: list[FileEntry] = []
    for item in body["files"]:
        if not isinstance(item, dict) or list(item) != ["name", "size", "sha256"]:
            raise ValueError("a file must have name, size, sha256 and nothing else")
        name, size, sha256 = item.values()
        if not isinstance(name, str) or not is_plain_path(name) or name == MANIFEST:
            raise ValueError(f"the file name {name!r} is not made of A-Z a-z 0-9 . _ - alone")
        if not _is_count(size) or not isinstance(sha256, str) or not _HASH.fullmatch(sha256):
            raise ValueError(f"{name}: size or sha256 is not one")
        files.append(FileEntry(name, size, sha256))
    if [entry.name for entry in files] != sorted({entry.name for entry in files}):
        raise ValueError("its files must be in order, each once")
    return Manifest(body["step"], body["run_id"], tuple(files))


def _names(path: Path, directory_fd: int) -> set[str]:
    try:
        with os.scandir(directory_fd) as entries:
            is_folder = {entry.name: entry.is_dir(follow_symlinks=False) for entry in entries}
        names = {name for name, folder in is_folder.items() if not folder}
        for name in sorted(is_folder.keys() - names):
            inside = {f"{name}/{file.name}" for file in (path / name).iterdir()}
            names |= inside or {name}
        return names
    except OSError as error:
        raise CheckpointError(f"checkpoint {path}: cannot be read ({error.strerror})") from error


def _is_count(value: object) -> bool:
    return type(value) is int and 0 <= value < 1 << 63


@contextlib.contextmanager
def _plain_file(path: Path, directory_fd: int, name: str) -> Iterator[int]:
    """A file of the directory, open for reading; a link, a pipe or a socket is refused."""
    try:
        # O_NONBLOCK: opening a pipe in a file's place must not wait for ever.
        fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=directory_fd)
    except FileNotFoundError:
        raise CheckpointError(f"checkpoint {path}: {name} is missing") from None
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.EMLINK, errno.ENXIO):  # a link; on BSD a link; a socket
            raise CheckpointError(f"checkpoint {path}: {name} is not a plain file") from None
        raise CheckpointError(f"checkpoint {path}: {name} cannot be read ({error.strerror})") from error
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise CheckpointError(f"checkpoint {path}: {name} is not a plain file")
        yield fd
    finally:
        os.close(fd)


def _hashed(path: Path, directory_fd: int, name: str, size: int | None = None) -> FileEntry:
    """The entry of a file as it is on the disk; a wrong size is found before anything is read."""
    with _plain_file(path, directory_fd, name) as fd:
        actual = os.fstat(fd).st_size
        if size is not None and actual != size:
            raise CheckpointError(f"checkpoint {path}: {name} has {actual} bytes where {MANIFEST} says {size}")
        try:
            with os.fdopen(fd, "rb", buffering=0, closefd=False) as file:
                return FileEntry(name, actual, hashlib.file_digest(file, "sha256").hexdigest())
        except OSError as error:
            raise CheckpointError(f"checkpoint {path}: {name} cannot be read ({error.strerror})") from error


def _read(path: Path, name: str, fd: int, limit: int) -> bytes:
    """The content of an open file. Raises CheckpointError: it has more than `limit` bytes."""
    try:
        with os.fdopen(fd, "rb", closefd=False) as file:
            content = file.read(limit + 1)
    except OSError as error:
        raise CheckpointError(f"checkpoint {path}: {name} cannot be read ({error.strerror})") from error
    if len(content) > limit:
        raise CheckpointError(f"checkpoint {path}: {name} is longer than {limit} bytes")
    return content
