"""Files, or the embedded micro-world, to sentence pairs: what the pairs are, where each stands, what was left out."""

from array import array
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from hashlib import sha256
from itertools import chain, zip_longest
from pathlib import Path
from typing import Any

from atento.config.recipe import SourceConfig
from atento.data.memory import Records, called, held, records_in
from atento.data.source_lines import iter_lines, open_binary, read_lines, scan
from atento.data.source_records import Column, Found, pairs_in
from atento.errors import DataError, RecipeError, counted

__all__ = ["Origins", "Parallel", "iter_lines", "overlap", "read_lines", "read_pairs"]

FILE_KINDS = (".tsv", ".csv", ".jsonl", ".json")
_WORLD_COUNTS = {"train": 30000}
_WORLD_COUNT = 500  # every other split


@dataclass(frozen=True)
class Origins:
    """Where each kept pair stands: the names of its files and its line, from 1, the same in each."""

    names: tuple[str, ...]
    lines: "array[int]"

    def where(self, index: int) -> str:
        """`train.en:12 / train.pt:12`, or `valid.tsv:7`."""
        return " / ".join(f"{name}:{self.lines[index]}" for name in self.names)


@dataclass(frozen=True)
class Parallel:
    """Sentence pairs, in the order of their files.

    `empty` counts the pairs left out because a side was blank, `skipped` holds the messages of the broken records left
    out, `fingerprint` is SHA-256 over the exact kept records in their order (so that a resumed run can tell).
    """

    source: list[str]
    target: list[str]
    origins: Origins
    skipped: list[str]
    empty: int
    fingerprint: str

    def __len__(self) -> int:
        return len(self.source)

    def where(self, index: int) -> str:
        """File and line of a pair, for messages."""
        return self.origins.where(index)

    def warnings(self) -> list[str]:
        """What was left out, counted, a sentence each; nothing to say gives an empty list."""
        name, said = " / ".join(self.origins.names), []
        if self.empty:
            said.append(f"{name}: {counted(self.empty, 'pair')} with an empty side left out")
        if self.skipped:
            said.append(f"{name}: {counted(len(self.skipped), 'bad record')} left out, first {self.skipped[0]}")
        return said


def read_pairs(
    source: SourceConfig, folder: Path, *, skip_bad: bool = False, memory: Mapping[str, Records] | None = None
) -> Parallel:
    """Read one source of a recipe (two parallel files, one file with columns, the micro-world, or records in memory).

    Args:
        source: what to read. With `count`, reading stops once so many pairs are kept.
        folder: what relative paths are relative to.
        skip_bad: leave out and list broken records instead of refusing the file. Files of unequal length, a header
            without the column and a file in another encoding from its first byte are refused all the same.
        memory: the records that sources with `memory` name.

    Raises:
        RecipeError: the source itself makes no sense.
        DataError: names file, line and rule; also where no pair is left.
    """
    if source.world is not None:
        return _world(source)
    if source.memory is not None:
        return pairs_in_memory(held(source.memory, memory), called(source.memory), source.count, skip_bad=skip_bad)
    with ExitStack() as files:
        if source.file is not None:
            names: tuple[str, ...] = (source.file,)
            found = _one_file(source.file, source.source, source.target, folder, files)
        else:
            names, found = _two_files(source.source, source.target, folder, files)
        return _collect(found, names, source.count, skip_bad)


def pairs_in_memory(given: Records, name: str, count: int | None = None, *, skip_bad: bool = False) -> Parallel:
    """Pairs given from Python, under the rules of files; `name` is what messages call them.

    Raises:
        UsageError, DataError: as `records_in`, and where no pair is left.
    """
    return _collect(records_in(given, ("source", "target"), name), (name,), count, skip_bad)


def overlap(train: Parallel, valid: Parallel) -> int:
    """How many validation pairs also stand in the training data, source and target both equal."""
    wanted = set(zip(valid.source, valid.target))
    seen = wanted.intersection(zip(train.source, train.target))
    return sum(pair in seen for pair in zip(valid.source, valid.target)) if seen else 0


def _two_files(
    source: Column | None, target: Column | None, folder: Path, files: ExitStack
) -> tuple[tuple[str, ...], Iterator[Found]]:
    if not isinstance(source, str) or not isinstance(target, str):
        raise RecipeError(
            "a data source needs `source` and `target` (two parallel files), or `file` with two columns, or `world`: "
            f"got source {source!r} and target {target!r}"
        )
    one, other = (files.enter_context(open_binary(_path(folder, name), name)) for name in (source, target))
    return (source, target), _aligned(scan(one, source), scan(other, target), source, target)


def _aligned(
    ours: Iterator[str | DataError], theirs: Iterator[str | DataError], source: str, target: str
) -> Iterator[Found]:
    """Line N answers line N; files of unequal length are refused once both have been counted."""
    for number, (one, other) in enumerate(zip_longest(ours, theirs), start=1):
        if one is None or other is None:
            longer = number + sum(1 for _ in (theirs if one is None else ours))
            counts = (number - 1, longer) if one is None else (longer, number - 1)
            raise DataError(
                f"{source} has {counts[0]} lines and {target} has {counts[1]}, and line N of one must answer line N of "
                f"the other: {target if one is None else source}:{number} has no partner"
            )
        if isinstance(one, DataError):
            yield one
        elif isinstance(other, DataError):
            yield other
        else:
            yield number, one, other


def _one_file(
    name: str, source: Column | None, target: Column | None, folder: Path, files: ExitStack
) -> Iterator[Found]:
    kind = Path(name.removesuffix(".gz")).suffix
    if kind not in FILE_KINDS:
        known = ", ".join(FILE_KINDS)
        raise RecipeError(f"`file: {name}` must end in one of {known} (or that and .gz) to have two columns")
    if source is None or target is None:
        raise RecipeError(f"`file: {name}` needs `source` and `target`, the columns: got {source!r} and {target!r}")
    if isinstance(source, int) != isinstance(target, int):
        raise RecipeError(
            f"`file: {name}`: both columns must be numbers (no header) or both names: got {source!r} and {target!r}"
        )
    if isinstance(source, int) and kind in (".jsonl", ".json"):
        raise RecipeError(f"`file: {name}` has no column numbers; `source` and `target` must be keys: got {source!r}")
    if isinstance(source, int) and isinstance(target, int) and min(source, target) < 0:
        raise RecipeError(f"`file: {name}`: columns are counted from 0: got {source} and {target}")
    stream = files.enter_context(open_binary(_path(folder, name), name))
    return pairs_in(kind, stream, name, source, target)


def _path(folder: Path, name: str) -> Path:
    return folder / Path(name).expanduser()


def _world(source: SourceConfig) -> Parallel:
    from atento.world import write  # late: the files' readers should not load the grammar

    split = str(source.world)
    pairs = write(split, source.count or _WORLD_COUNTS.get(split, _WORLD_COUNT), source.seed)
    numbered = ((number, pair.source, pair.target) for number, pair in enumerate(pairs, start=1))
    return _collect(numbered, (f"world {split}",), None, False)


def _collect(found: Iterator[Found], names: tuple[str, ...], count: int | None, skip_bad: bool) -> Parallel:
    source: list[str] = []
    target: list[str] = []
    rest = collect(found, (source, target), names, count, skip_bad, what="sentence pair")
    return Parallel(source, target, *rest)


def collect(
    found: Iterator[Any],
    sides: tuple[list[str], ...],
    names: tuple[str, ...],
    count: int | None,
    skip_bad: bool,
    *,
    what: str,
) -> tuple[Origins, list[str], int, str]:
    """Fills `sides` with records (line, a text for each of them) up to `count`: those without a blank side.

    Returns:
        Where each kept one stands; the messages of broken ones left out; how many had a blank side; the fingerprint.

    Raises:
        DataError: a broken record, unless `skip_bad`; no `what` is left.
    """  # fmt: skip
    lines = array("L")
    skipped: list[str] = []
    empty = 0
    for item in found:
        if isinstance(item, DataError):
            if not skip_bad:
                raise item
            skipped.append(str(item))
            continue
        line, *texts = item
        if not all(text and not text.isspace() for text in texts):
            empty += 1
            continue
        for side, text in zip(sides, texts, strict=True):
            side.append(text)
        lines.append(line)
        if len(lines) == count:
            break
    if not lines:
        left = f" ({empty} empty, {len(skipped)} bad{f': {skipped[0]}' if skipped else ''})" if empty or skipped else ""
        raise DataError(f"{' / '.join(names)}: holds no {what}{left}")
    return Origins(names, lines), skipped, empty, fingerprint(*sides)


def fingerprint(*sides: list[str]) -> str:
    """SHA-256 of the records, each side ended by the NUL that no text may hold; hashed in pieces to stay small."""
    digest = sha256()
    for begin in range(0, len(sides[0]), 4096):
        texts = chain.from_iterable(zip(*(side[begin : begin + 4096] for side in sides)))
        digest.update("".join(f"{text}\0" for text in texts).encode("utf-8"))
    return digest.hexdigest()
