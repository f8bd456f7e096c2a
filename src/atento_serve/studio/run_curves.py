"""The curves and samples of a run, from its `metrics.jsonl` as far as it can be read, thinned to what a page draws."""

import math
import os
import zlib
from array import array
from bisect import bisect_right
from collections import deque
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO

import numpy as np
from numpy.typing import NDArray

from atento.base.errors import AtentoError
from atento.base.limits import open_plain
from atento.config.reading.loading import load_recipe
from atento.runs.run_record import planned_steps, read_object
from atento.training.metrics_log import parse_event
from atento_serve.studio.run_folders import inside

MOST_POINTS = 4_000  # of a curve, on a page
_MOST_CURVES = 64
_MOST_SAMPLES = 300
_SAMPLE = 2_000  # characters
_LONGEST = 1 << 20  # bytes of a line
_WHOLE = 8 << 20  # bytes of lines that are all taken; of more, as many lines of training
_BLOCK, _BLOCKS = 16 << 20, 32  # bytes that are held at once, and how many times before what they say is shown
_TRAIN = b'{"event": "train"'  # as a journal writes it
_TAIL = 512  # bytes before a mark by which it is known again
_NO_CURVES = ("step", "number", "seconds")


@dataclass(frozen=True)
class Mark:
    """How far a page has a run: of which file, how many bytes, a sum over the last of them, and points of a curve."""

    file: int = 0
    offset: int = 0
    tail: int = 0
    points: int = 0

    def __str__(self) -> str:
        return f"{self.file}.{self.offset}.{self.tail}.{self.points}"

    @classmethod
    def read(cls, text: str) -> "Mark":
        """The mark with this text; what is none is the beginning."""
        parts = text.split(".")
        right = len(parts) == 4 and all(part.isascii() and part.isdigit() and len(part) < 24 for part in parts)
        return cls(*map(int, parts)) if right else cls()

    def holds(self, file: IO[bytes]) -> bool:
        """Whether a file is the one that was read, and still has what was read."""
        status = os.fstat(file.fileno())
        return self.file == status.st_ino and self.offset <= status.st_size and self.tail == _tail(file, self.offset)


def _tail(file: IO[bytes], offset: int) -> int:
    file.seek(max(0, offset - _TAIL))
    return zlib.crc32(file.read(min(_TAIL, offset)))


@dataclass
class _Curve:
    """Points in the order of their lines: step, value, seconds of training (nan: unknown), and the end of the line."""

    steps: "array[float]" = field(default_factory=lambda: array("d"))
    values: "array[float]" = field(default_factory=lambda: array("d"))
    seconds: "array[float]" = field(default_factory=lambda: array("d"))
    ends: "array[int]" = field(default_factory=lambda: array("q"))

    def points(self, after: int, most: int) -> list[list[float | None]]:
        """The points of lines that end after an offset: [step, value, seconds]."""
        first = bisect_right(self.ends, after)
        times, kept = self.seconds, (thinned(np.array(self.values[first:]), most) + first).tolist()
        return [[self.steps[n], self.values[n], None if math.isnan(times[n]) else times[n]] for n in kept]


def thinned(values: NDArray[np.float64], most: int) -> NDArray[np.int64]:
    """Which of some values are kept so that at most `most` are: the ends, and the least and largest of equal parts."""
    count = len(values)
    if count <= most:
        return np.arange(count)
    kept = [0, count - 1]
    for part in np.array_split(np.arange(1, count - 1), (most - 2) // 2):
        kept += [part[np.argmin(values[part])], part[np.argmax(values[part])]]
    return np.unique(kept)


def some_lines(data: bytes, every: int) -> list[tuple[int, int]]:
    """Where lines of a part of a journal begin and end: one in `every` of training, the last one, and all others."""
    signs = np.frombuffer(data, np.uint8)
    ends = np.flatnonzero(signs == ord("\n")) + 1  # one behind each line end
    starts = np.concatenate([[0], ends[:-1]]) if len(ends) else ends
    others = np.zeros(len(starts), dtype=bool)
    for place, sign in enumerate(_TRAIN):  # lines of training begin alike; `others` differ somewhere
        others |= signs[np.minimum(starts + place, len(signs) - 1)] != sign
    others[-1:] = True  # the last line says how far the run is
    others[np.flatnonzero(~others)[::every]] = True  # of those that are no others one in `every`
    return list(zip(starts[others].tolist(), ends[others].tolist()))


class RunCurves:
    """What was read of one run; `changes` reads on.

    Args:
        folder: a run.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._begin()

    def _begin(self) -> None:
        self._curves: dict[str, _Curve] = {}
        self._samples: deque[tuple[int, dict[str, object]]] = deque(maxlen=_MOST_SAMPLES)
        self._mark, self._damaged, self._has_ended, self._every = Mark(), 0, False, 1
        self._step, self._trained, self._seconds = 0.0, 0.0, 0.0  # the last step, that of the last train event
        self._about: dict[str, object] = {}

    def changes(self, since: Mark) -> dict[str, object] | None:
        """What a page must add to what it has; with `reset`, what it must have instead; None: nothing.

        Raises:
            OSError: the journal cannot be read. UsageError: it is not in the folder.
        """
        with open_plain(inside(self.folder, "metrics.jsonl")) as file:
            if not self._mark.holds(file):
                self._begin()
            if self._mark.offset != os.fstat(file.fileno()).st_size:
                self._about = _about(self.folder)  # more steps may be planned now
            self._read_on(file)
            known = since.offset <= self._mark.offset and since.holds(file)
        if known and since.offset == self._mark.offset:
            return None
        after = since.offset if known else 0
        fresh = max((len(curve.ends) - bisect_right(curve.ends, after) for curve in self._curves.values()), default=0)
        held = since.points + fresh if known else fresh
        if known and held > MOST_POINTS:
            known, after, held = False, 0, MOST_POINTS + 1
        most = MOST_POINTS if held <= MOST_POINTS else MOST_POINTS // 2  # with room for what comes
        points = {name: rows for name, one in self._curves.items() if (rows := one.points(after, most))}
        return {
            "mark": str(replace(self._mark, points=min(held, most))),
            "reset": not known,
            "curves": points,
            "samples": [sample for end, sample in self._samples if end > after],
            "damaged": self._damaged,
            "every": self._every,
            "step": self._step,
            "ended": self._has_ended,
            "about": self._about,
        }

    def _read_on(self, file: IO[bytes]) -> None:
        offset = self._mark.offset
        every = -(-(os.fstat(file.fileno()).st_size - offset) // _WHOLE)
        if every > 1:
            offset = self._take_some(file, offset, every)
        most = offset + _WHOLE if offset == self._mark.offset else offset
        file.seek(offset)
        while offset < most and (line := file.readline(_LONGEST)):
            if not line.endswith(b"\n") and len(line) < _LONGEST:
                break  # it is being written
            offset += len(line)
            self._take(line, offset)
        self._mark = Mark(os.fstat(file.fileno()).st_ino, offset, _tail(file, offset))

    def _take_some(self, file: IO[bytes], offset: int, every: int) -> int:
        """Take one in so many lines of training, and all others; return the end of what was read."""
        self._every = max(self._every, every)
        for _ in range(_BLOCKS):
            file.seek(offset)
            data = file.read(_BLOCK)
            data = data[: data.rfind(b"\n") + 1]
            for start, end in some_lines(data, every):
                self._take(data[start:end], offset + end)
            offset += len(data)
            if not data:
                break
        return offset

    def _take(self, line: bytes, end: int) -> None:
        event = parse_event(line)
        if event is None or not 0 <= event["step"] < 1 << 53:  # whole numbers that JavaScript tells apart
            self._damaged += 1
            return
        kind, step = event["event"], float(event["step"])
        if kind == "sample":
            texts = {name: str(event.get(name, ""))[:_SAMPLE] for name in ("input", "output", "reference")}
            self._samples.append((end, {"step": step, "number": str(event.get("number"))[:20], **texts}))
        # a run may be resumed behind its end
        self._has_ended, self._step = self._has_ended or kind == "end", max(self._step, step)
        if kind not in ("train", "valid"):
            return
        if kind == "train":  # the seconds since the last such event: its targets, by their speed
            pace, batch = _finite(event.get("tokens_per_second")), _finite(self._about.get("batch_tokens"))
            if pace != 0:  # else no update was made, and its time is unknown
                self._seconds += (step - self._trained) * batch / pace if pace and batch else math.nan
                self._trained = step
        for name, value in event.items():
            number = None if name in _NO_CURVES else _finite(value)
            if number is None or (f"{kind}.{name}" not in self._curves and len(self._curves) == _MOST_CURVES):
                continue
            curve = self._curves.setdefault(f"{kind}.{name}", _Curve())
            curve.steps.append(step)
            curve.values.append(number)
            curve.seconds.append(self._seconds)  # seconds of training so far
            curve.ends.append(end)


def _finite(value: object) -> float | None:
    """A number of a journal; None: it is none, or not finite."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None


def _about(folder: Path) -> dict[str, object]:
    """What the recipe says of a run: its task, its metric, the targets of an update, the updates planned."""
    try:
        recipe = load_recipe(inside(folder, "recipe.yaml"), environment={}).recipe
        steps = planned_steps(recipe, read_object(inside(folder, "env.json")))
    except (AtentoError, OSError):
        return {}
    metric = recipe.deciding[0]
    return {"task": recipe.task, "metric": metric, "batch_tokens": recipe.training.batch_tokens, "steps": steps}
