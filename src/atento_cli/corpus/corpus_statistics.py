"""What is in the data: lengths and their percentiles, length ratios, records that look wrong, the columns of a file."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from atento.config.recipe import COLUMNS, SourceConfig
from atento.config.tables.formats import FORMATS, columns_of_source, format_of
from atento.config.tables.task_spec import Field
from atento.data.files.dialect import first_of
from atento.data.records.reader import Records
from atento.data.records.values import as_text, compared
from atento.data.store.token_store import PERCENTILES
from atento.metrics.tag_schemes import entities, scheme_of

_SHOWN = 3  # places of suspicious records that are named
_RATIO = 3.0  # times the median
_DEVIATIONS = 4.0  # median deviations from the median: summaries differ more than translations do
_BARS = 10  # of a histogram
_SHORT = 10  # characters: of two short texts a ratio says nothing


def percentiles(values: Sequence[float] | NDArray[np.generic]) -> dict[str, float]:
    """`min`, `p1` ... `p99` and `max`, each one of the values; empty without values."""
    if not len(values):
        return {}
    percentages = np.percentile(np.asarray(values), (0, *PERCENTILES, 100), method="inverted_cdf").tolist()
    return dict(zip(("min", *(f"p{part}" for part in PERCENTILES), "max"), percentages))


def lengths(parts: Sequence[Records], columns: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Words and characters per text of each column: totals, percentiles, and the position of the longest text."""
    result: dict[str, dict[str, object]] = {}
    for name in columns:
        texts = [as_text(value) for part in parts for value in part[name]]
        words = [len(text.split()) for text in texts]
        characters = [len(text) for text in texts]
        result[name] = {
            "words": {"total": sum(words), **percentiles(words)},
            "characters": {"total": sum(characters), **percentiles(characters)},
            "longest": _locations(parts, [int(np.argmax(words))])[0],  # the text of the most words
        }
    return result


def ratios(parts: Sequence[Records]) -> NDArray[np.float64]:
    """Characters of the target over those of the source, for each pair."""
    pairs = [(len(source), len(target)) for part in parts for source, target in zip(part["source"], part["target"])]
    sizes = np.array(pairs, dtype=np.float64).reshape(-1, 2)  # (pairs,2)
    return np.asarray(sizes[:, 1] / sizes[:, 0], dtype=np.float64)


def unusual_lengths(pairs: Sequence[tuple[str, ...]]) -> NDArray[np.bool_]:
    """Whether the ratio of the characters of source and target, none empty, is unusual, as `suspicious` says, (N,)."""
    sizes = np.array([(len(source), len(target)) for source, target in pairs], dtype=np.float64).reshape(-1, 2)
    logs = np.log(sizes[:, 1] / sizes[:, 0])  # twice and half as long are equally far
    deviation = np.abs(logs - np.median(logs))
    limit = max(np.log(_RATIO), _DEVIATIONS * float(np.median(deviation)))  # of logarithms: both ways alike
    return np.asarray((deviation > limit) & (sizes.max(axis=1) > _SHORT))  # and not of short texts


def suspicious(parts: Sequence[Records]) -> dict[str, dict[str, Any]]:
    """Suspicious records by reason: their number, and the positions of the first three.

    repeated: equal to an earlier record. equal: source and target are the same text, of letters. ratio: the lengths of
    the two sides differ more than 3 times as much as they usually do (the median ratio), and by more than 4 median
    deviations; sides of up to 10 characters aside. empty: left out when they were read; their lines are unknown.
    """
    records = [compared(record) for part in parts for record in part]
    first = {record: number for number, record in reversed(list(enumerate(records)))}  # the first of equals
    numbers_by_reason = {"repeated": [number for number, record in enumerate(records) if first[record] < number]}
    pairs = [part for part in parts if tuple(part.columns) == ("source", "target")]
    if pairs:
        numbers_by_reason["equal"] = [
            number
            for number, (source, target) in enumerate(records)
            if source.strip() == target.strip() and any(map(str.isalpha, source))
        ]
        numbers_by_reason["ratio"] = np.flatnonzero(unusual_lengths(records)).tolist()
    counted: dict[str, dict[str, object]] = {
        reason: {"count": len(numbers), "first": _locations(parts, numbers[:_SHOWN])}
        for reason, numbers in numbers_by_reason.items()
    }
    if pairs:
        counted["empty"] = {"count": sum(part.empty for part in pairs), "first": []}
    return counted


def labels_of(parts: Sequence[Records], fields: Sequence[Field]) -> dict[str, Any]:
    """What the fields that are no texts hold, by kind.

    "labels": the count of each label or tag. "entities" and "scheme": the count of each type, and how tags mark them.
    "unanswerable": the number of questions without an answer. "scores": the percentiles of numbers, their mean, and a
    histogram (lower edge, upper edge, count) of ten intervals.
    """
    found: dict[str, object] = {}
    for field in fields:
        if field.name not in parts[0].columns or field.kind in ("text", "words"):  # optional, and not there
            continue
        column = [value for part in parts for value in part[field.name]]
        if field.kind == "class":
            found["labels"] = _counts(column)
        elif field.kind in ("classes", "tags"):
            found["labels"] = _counts(label for labels in column for label in labels)
            if field.kind == "tags" and (scheme := scheme_of(column)) is not None:
                found["scheme"] = scheme
                found["entities"] = _counts(kind for tags in column for kind, _, _ in entities(tags))
        elif field.kind == "spans":
            found["unanswerable"] = sum(not spans for spans in column)
        else:
            counts, edges = np.histogram(column, bins=_BARS)  # ten intervals of equal width
            bars = list(zip(edges.tolist(), edges[1:].tolist(), counts.tolist()))
            found["scores"] = {"mean": float(np.mean(column)), **percentiles(column), "histogram": bars}
    return found


def _counts(labels: Iterable[str]) -> dict[str, int]:
    return dict(sorted(Counter(labels).items()))


def columns_seen(
    sources: Sequence[SourceConfig], folder: Path, fields: Sequence[Field] = ()
) -> list[dict[str, object]]:
    """Of each table among the sources: its name, the first record's columns or keys, and whether they are a header."""
    tables: list[dict[str, object]] = []
    for source in sources:
        form = None if source.file is None else format_of(source.file, source.format, fields)
        if source.file is None or form is None or not FORMATS[form].table:
            continue
        columns = first_of(source, form, folder)
        stated = [column for name in COLUMNS if (column := getattr(source, name)) is not None]
        used = stated or [column for column in columns_of_source(form, source, fields).values() if column is not None]
        header = not FORMATS[form].by_number or any(isinstance(column, str) for column in used)
        if columns or form != "json":  # a document of SQuAD is no table
            tables.append({"file": source.file, "columns": columns, "used": used, "header": header})
    return tables


def over(sides: Mapping[str, Sequence[int]], longest: int, n_special: int) -> dict[str, Any]:
    """Count the records with a side of more than `longest` tokens, `n_special` special ones included."""
    long = np.zeros(len(next(iter(sides.values()))), dtype=np.bool_)  # (records,)
    for tokens in sides.values():
        long |= np.asarray(tokens) + n_special > longest  # where any side is too long
    return {"max_len": longest, "records": int(long.sum())}


def _locations(parts: Sequence[Records], numbers: Sequence[int]) -> list[str]:
    """File and line of records that are numbered through all parts."""
    ends = np.cumsum([len(part) for part in parts])  # records up to the end of each part
    locations = []
    for number in numbers:
        part = int(np.searchsorted(ends, number, side="right"))  # the part that holds the record
        locations.append(parts[part].where(number - int(ends[part]) + len(parts[part])))  # its number in the part
    return locations
