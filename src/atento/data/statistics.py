"""What is in the data: lengths and their percentiles, length ratios, records that look wrong, the columns of a file."""

from collections.abc import Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from atento.config.recipe import COLUMNS, SourceConfig
from atento.data.records import FILE_KINDS, Records
from atento.data.source_lines import open_binary
from atento.data.source_records import columns_of

PERCENTILES = (1, 5, 25, 50, 75, 95, 99)
_SHOWN = 3  # places of suspicious records that are named
_RATIO = 3.0  # times the median
_DEVIATIONS = 4.0  # median deviations from the median: summaries differ more than translations do
_SHORT = 10  # characters: of two short texts a ratio says nothing


def percentiles(values: Sequence[float] | NDArray[Any]) -> dict[str, float]:
    """`min`, `p1` ... `p99` and `max`, each a value that occurs; nothing where there is no value."""
    if not len(values):
        return {}
    found = np.percentile(np.asarray(values), (0, *PERCENTILES, 100), method="inverted_cdf").tolist()
    return dict(zip(("min", *(f"p{part}" for part in PERCENTILES), "max"), found))


def lengths(parts: Sequence[Records], columns: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Of each column, words and characters a text: the total and the percentiles of each, and where the longest is."""
    found: dict[str, dict[str, Any]] = {}
    for name in columns:
        texts = list(chain.from_iterable(part[name] for part in parts))
        words = [len(text.split()) for text in texts]
        characters = [len(text) for text in texts]
        found[name] = {
            "words": {"total": sum(words), **percentiles(words)},
            "characters": {"total": sum(characters), **percentiles(characters)},
            "longest": _places(parts, [int(np.argmax(words))])[0],
        }
    return found


def ratios(parts: Sequence[Records]) -> NDArray[np.float64]:
    """Characters of the target over those of the source, for each pair."""
    pairs = [(len(one), len(other)) for part in parts for one, other in zip(part["source"], part["target"])]
    sizes = np.array(pairs, dtype=np.float64).reshape(-1, 2)
    return np.asarray(sizes[:, 1] / sizes[:, 0], dtype=np.float64)


def suspicious(parts: Sequence[Records]) -> dict[str, dict[str, Any]]:
    """Records that look wrong, by reason: how many, and where the first three are.

    repeated: equal to an earlier record. equal: source and target are the same text, of letters. ratio: the lengths of
    the two sides differ more than 3 times as much as they usually do (the median ratio), and by more than 4 median
    deviations; sides of up to 10 characters aside. empty: left out when they were read; nobody keeps where.
    """
    seen: set[Any] = set()
    found: dict[str, list[int]] = {"repeated": []}
    records = [record for part in parts for record in part]
    for number, record in enumerate(records):
        if record in seen:
            found["repeated"].append(number)
        seen.add(record)
    pairs = [part for part in parts if tuple(part.columns) == ("source", "target")]
    if pairs:
        found["equal"] = [
            number
            for number, (one, other) in enumerate(records)
            if one.strip() == other.strip() and any(map(str.isalpha, one))
        ]
        logs = np.log(ratios(pairs))
        away = np.abs(logs - np.median(logs))
        limit = max(np.log(_RATIO), _DEVIATIONS * float(np.median(away)))
        long = np.array([max(map(len, record)) > _SHORT for record in records])
        found["ratio"] = np.flatnonzero((away > limit) & long).tolist()
    counted: dict[str, dict[str, Any]] = {
        reason: {"count": len(numbers), "first": _places(parts, numbers[:_SHOWN])} for reason, numbers in found.items()
    }
    if pairs:
        counted["empty"] = {"count": sum(part.empty for part in pairs), "first": []}
    return counted


def columns_seen(sources: Sequence[SourceConfig], folder: Path) -> list[dict[str, Any]]:
    """Of each table among the sources: its name, the first record's columns or keys, and whether they are a header."""
    found: list[dict[str, Any]] = []
    for source in sources:
        kind = "" if source.file is None else Path(source.file.removesuffix(".gz")).suffix
        if source.file is None or kind not in FILE_KINDS:
            continue
        with open_binary(folder / Path(source.file).expanduser(), source.file) as stream:
            columns = columns_of(kind, stream, source.file)
        used = [column for name in COLUMNS if (column := getattr(source, name)) is not None]
        header = kind in (".jsonl", ".json") or any(isinstance(column, str) for column in used)
        found.append({"file": source.file, "columns": columns, "used": used, "header": header})
    return found


def over(sides: Mapping[str, Sequence[int]], longest: int, marks: int) -> dict[str, Any]:
    """How many records have a side of more than `longest` tokens, `marks` special ones with them; tokens by side."""
    long = np.zeros(len(next(iter(sides.values()))), dtype=np.bool_)
    for tokens in sides.values():
        long |= np.asarray(tokens) + marks > longest
    return {"max_len": longest, "records": int(long.sum())}


def _places(parts: Sequence[Records], numbers: Sequence[int]) -> list[str]:
    """File and line of records that are numbered through all parts."""
    ends = np.cumsum([len(part) for part in parts])
    found = []
    for number in numbers:
        part = int(np.searchsorted(ends, number, side="right"))
        found.append(parts[part].where(number - int(ends[part]) + len(parts[part])))
    return found
