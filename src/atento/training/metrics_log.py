"""`metrics.jsonl`: one JSON object per event; a failure to write it never stops training."""

import contextlib
import errno
import hashlib
import json
import logging
import math
import os
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypedDict

from atento.base.errors import DataError, TrainingError, UsageError
from atento.base.limits import read_plain
from atento.storage.manifest import sync

_MOST = 8 << 30  # bytes of a journal
_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EIO}
_log = logging.getLogger(__name__)


class Mark(TypedDict):
    """The length of the events up to a checkpoint, and their SHA-256."""

    bytes: int
    sha256: str


class MetricsLog:
    """Writes the events of a run. An incomplete last line, as a power cut leaves it, is removed on opening.

    Raises:
        UsageError: the file cannot be opened for another reason than a full disk.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.lost = 0  # events not written since the disk was full
        self._warned = False
        self._fd: int | None = None
        self._held: list[Mapping[str, object]] | None = None
        self._digest: Any = None  # running SHA-256 of the first `_hashed` bytes of the file; None: not begun
        self._hashed = 0
        self._checkpoints: set[int] | None = None  # steps of the checkpoint events in the file; None: not read yet
        self.listener: Callable[[Mapping[str, object]], None] | None = None  # also called with each event
        self._open()

    def hold(self) -> None:
        """Hold events back until `release`: those of steps behind a checkpoint that is still being written."""
        self._held = []

    def release(self) -> None:
        """Append the events that were held back."""
        events, self._held = self._held or [], None
        for event in events:
            self.append(event)

    def append(self, event: Mapping[str, object], *, held: bool = True) -> None:
        """Append one event; it has at least `event` and `step`. With `held` false it is not held back.

        A number that is not finite is written as null, and `note` names it. On a full disk the event is lost with one
        warning, and training continues. A checkpoint's event and the last one are flushed to the disk itself.
        Raises ValueError: `event` or `step` is missing, or a value is not plain data.
        """
        kind, step = event.get("event"), event.get("step")
        if not isinstance(kind, str) or type(step) is not int:  # bool is an int
            raise ValueError(f"an event needs `event` (text) and `step` (a whole number): got {dict(event)!r}")
        if held and self._held is not None:
            self._held.append(event)
            return
        if self.listener is not None:
            self.listener(event)
        notes: list[str] = []
        record = _finite(dict(event), "", notes)
        if notes:
            record["note"] = "; ".join([*([str(record["note"])] if record.get("note") else []), *notes])
        try:
            line = json.dumps(record, ensure_ascii=False, allow_nan=False).encode("utf-8") + b"\n"
        except TypeError as error:
            raise ValueError(f"an event must be plain data: {error}") from None
        try:
            self._write(line)
        except OSError as error:
            self.lost += 1
            if not self._warned:  # once, until writing works again
                self._warned = True
                _log.warning("%s cannot be written (%s); training continues without events", self.path, error.strerror)
            return
        if self.lost:  # the first event after the fault
            _log.warning("%s is written again; %d events were lost", self.path, self.lost)
            self.lost, self._warned = 0, False
        if kind == "checkpoint" and self._checkpoints is not None:
            self._checkpoints.add(step)
        if kind in ("checkpoint", "end"):
            with contextlib.suppress(OSError):  # the event is written, if perhaps not on the disk
                self.flush()

    @property
    def gone(self) -> bool:
        """Whether the file that was opened is no longer there."""
        return self._fd is not None and not self.path.exists()

    def flush(self) -> None:
        """Flush the file to disk. Raises OSError."""
        if self._fd is not None:
            sync(self._fd)

    def mark(self) -> Mark | None:
        """The length and SHA-256 of the file, which a checkpoint keeps; None if the disk fails. See `changed_since`."""
        try:
            if self._digest is None or self._hashed != self.path.stat().st_size:
                content = self._content()
                self._digest, self._hashed = hashlib.sha256(content), len(content)
        except OSError:
            return None
        return {"bytes": self._hashed, "sha256": self._digest.hexdigest()}

    def cut(self, after_step: int) -> int:
        """Remove the events after a step, and `end` events, when a run resumes; return how many were removed.

        Lines that are no events are removed with a warning. The file is replaced atomically.
        Raises TrainingError: the file cannot be read, or the new one cannot be written; the old one is unchanged.
        """
        try:
            content = self._content()
        except FileNotFoundError:
            return 0
        except OSError as error:
            raise TrainingError(f"{self.path} cannot be read: {error.strerror}") from error
        remaining, lines = [], content.split(b"\n")
        for number, line in enumerate(lines[:-1], start=1):  # what follows the last line end is no whole line
            event = parse_event(line)
            if event is None:
                _log.warning("%s:%d is not an event and was removed", self.path, number)
            elif event["step"] <= after_step and event["event"] != "end":
                remaining.append(line)
        removed = len(lines) - 1 - len(remaining)  # the last piece of `lines` is no whole line
        if removed:
            self._checkpoints, self._digest = None, None
            temporary = self.path.with_name(f".{self.path.name}-{uuid.uuid4().hex}")
            try:
                with temporary.open("xb") as file:
                    file.writelines(line + b"\n" for line in remaining)
                    file.flush()  # on the disk before it takes the place of the old one
                    sync(file.fileno())
                self.close()
                temporary.replace(self.path)
                parent = os.open(self.path.parent, os.O_RDONLY)
                try:
                    sync(parent)  # so is the name in its folder
                finally:
                    os.close(parent)
            except OSError as error:
                with contextlib.suppress(OSError):
                    temporary.unlink()
                raise TrainingError(f"{self.path} cannot be cut: {error.strerror}") from error
            self._open()
        return removed

    def _content(self) -> bytes:
        """The bytes of the file; none where a process beside the first one writes to the null device."""
        return b"" if self.path == Path(os.devnull) else read_plain(self.path, _MOST)

    def has_checkpoint(self, step: int) -> bool:
        """Whether the file has the event of the checkpoint of a step; the file is read once, at the first call."""
        if self._checkpoints is None:
            try:
                lines = self._content().split(b"\n")
            except OSError:
                return False  # `append` warns
            events = [event for line in lines if (event := parse_event(line)) is not None]
            self._checkpoints = {event["step"] for event in events if event["event"] == "checkpoint"}
        return step in self._checkpoints

    def close(self) -> None:
        """Close the file; another `append` opens it again."""
        self.release()
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def __enter__(self) -> "MetricsLog":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _open(self) -> None:
        try:
            fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)
        except OSError as error:
            if error.errno in _FULL:
                return  # `append` tries again and warns
            raise UsageError(f"{self.path} cannot be opened: {error.strerror}") from error
        self._fd = fd
        with contextlib.suppress(OSError):
            size = os.fstat(fd).st_size
            tail = b""
            while b"\n" not in tail and len(tail) < size:  # from behind, until a line end is found
                start = max(0, size - len(tail) - 65536)
                tail = os.pread(fd, size - len(tail) - start, start) + tail  # at a place: the file's own position stays
            torn = tail[tail.rfind(b"\n") + 1 :]  # all behind the last line end
            if torn and parse_event(torn) is not None:
                os.write(fd, b"\n")  # whole but for its line end
            elif torn:
                os.ftruncate(fd, size - len(torn))  # cut off by a crash

    def _write(self, line: bytes) -> None:
        """Write the whole line, or nothing of it. Raises OSError."""
        if self._fd is None:
            self._open()
        if self._fd is None:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        end = os.fstat(self._fd).st_size
        remaining = line
        try:
            while remaining:
                remaining = remaining[os.write(self._fd, remaining) :]
        except OSError:
            with contextlib.suppress(OSError):
                os.ftruncate(self._fd, end)  # nothing of the line, not a part of it
            raise
        if self._digest is not None:
            self._digest.update(line)
            self._hashed += len(line)


def changed_since(path: Path, mark: Mark | None) -> str:
    """What happened to the events up to a checkpoint since it was saved beside them; empty: nothing.

    Args:
        path: `metrics.jsonl`, which may have further events.
        mark: that of `MetricsLog.mark` in the checkpoint; None: an older checkpoint has none.
    """
    if mark is None or not mark["bytes"]:
        return ""
    try:
        content = read_plain(path, _MOST)
    except FileNotFoundError:
        content = b""
    except OSError as error:
        return f"cannot be read ({error.strerror})"
    if not content:
        return "was removed"
    if len(content) < mark["bytes"]:
        return f"was cut to {len(content):,} of {mark['bytes']:,} bytes"
    return "" if hashlib.sha256(content[: mark["bytes"]]).hexdigest() == mark["sha256"] else "was changed"


def read_journal(path: Path) -> list[dict[str, Any]]:
    """Read every event of a `metrics.jsonl`, oldest first; an incomplete last line is skipped.
    Raises DataError: the file cannot be read, or a line is no event; names file and line.
    """
    try:
        lines = read_plain(path, _MOST).split(b"\n")
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}") from error
    events = []
    for number, line in enumerate(lines, start=1):
        event = parse_event(line)
        if event is not None:
            events.append(event)
        elif number < len(lines):
            raise DataError(f"{path}:{number}: not an event: a JSON object with `event` and `step`")
    return events


def parse_event(line: bytes) -> dict[str, Any] | None:
    """The event of a line; None: the line is incomplete or damaged."""
    try:
        event = json.loads(line.decode("utf-8"))
    except (ValueError, RecursionError):
        return None
    if not isinstance(event, dict) or not isinstance(event.get("event"), str) or type(event.get("step")) is not int:
        return None
    return event


def _finite(value: object, where: str, notes: list[str]) -> Any:
    """Replace numbers that are not finite by null; append a note on each to `notes`."""
    if isinstance(value, float) and not math.isfinite(value):
        notes.append(f"{where} was {value}")
        return None
    if isinstance(value, Mapping):
        return {key: _finite(item, f"{where}.{key}" if where else str(key), notes) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item, f"{where}.{index}", notes) for index, item in enumerate(value)]
    return value
