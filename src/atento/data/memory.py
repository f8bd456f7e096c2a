"""Records given from Python, in memory: checked by the same rules as records read from a file."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from atento.data.source_records import text_of
from atento.errors import DataError, UsageError

SPLITS = ("train", "valid", "test")
MemoryRecords = Iterable[Any]  # pairs, mappings or texts; or a tuple of two lists, the sources and the targets
_SHAPES = {
    ("source", "target"): "pairs (source, target), dicts with the keys 'source' and 'target', or the tuple of two "
    "lists (sources, targets)",
    ("text",): "texts, or dicts with the key 'text'",
    ("text", "label"): "pairs (text, label), dicts with the keys 'text' and 'label', or the tuple of two lists (texts, "
    "labels)",
}


def by_split(data: MemoryRecords | Mapping[str, MemoryRecords] | None) -> dict[str, MemoryRecords]:
    """The records of each split that `atento.train` was given as `data`; records alone are those to train on.

    Raises:
        UsageError: a split that does not exist.
    """
    if data is None:
        return {}
    if not isinstance(data, Mapping):
        return {"train": data}
    for name in data:
        if name not in SPLITS:
            raise UsageError(f"`data` takes records for {', '.join(SPLITS)}: got {name!r}")
    return dict(data)


def records_in(given: MemoryRecords, fields: tuple[str, ...], name: str) -> Iterator[Any]:
    """Yield each record as (index from 0, a text for each field); a broken record as its error, so that the caller may
    skip it.

    Args:
        given: an iterable of pairs (for two fields), of texts (for one) or of mappings with the fields as keys; or a
            tuple of two lists or arrays, the columns.
        fields: ("source", "target") or ("text",).
        name: what messages call the data; a record is then `name[index]`.

    Raises:
        UsageError: no such thing. DataError: two columns of unequal length.
    """
    if isinstance(given, str | bytes | Mapping) or not isinstance(given, Iterable):
        raise UsageError(f"{name} must be an iterable of {_shape(fields)}: got {type(given).__name__}")
    if len(fields) == 2 and _columns(given):
        first, second = (list(side) for side in given)
        if len(first) != len(second):
            sides = f"{len(first)} {fields[0]}s and {len(second)} {fields[1]}s"
            raise DataError(f"{name} has {sides}; they must be as many")
        given = zip(first, second)
    for index, record in enumerate(given):
        try:
            yield index, _texts(record, fields)
        except ValueError as error:
            yield DataError(f"{name}[{index}]: {error}")


def held(name: str, memory: Mapping[str, MemoryRecords] | None) -> MemoryRecords:
    """The records that a source with `memory: name` stands for.

    Raises:
        UsageError: they were not given.
    """
    if memory is None or name not in memory:
        raise UsageError(
            f"this recipe reads {called(name)} from memory, not from a file, so it must be given again in Python: "
            f"atento.train(..., data={{{name!r}: ...}})"
        )
    return memory[name]


def called(name: str) -> str:
    """What messages call records in memory: the argument of `atento.train` that they came in."""
    return f"data[{name!r}]"


def _columns(given: object) -> bool:
    """A tuple of two that are lists or arrays, not pairs."""
    return (
        isinstance(given, tuple)
        and len(given) == 2
        and all(isinstance(side, Iterable) and not isinstance(side, str | tuple | Mapping) for side in given)
    )


def _shape(fields: tuple[str, ...]) -> str:
    """The forms of records with those fields, for messages."""
    return _SHAPES.get(fields, f"dicts with the keys {', '.join(map(repr, fields))}")


def _texts(record: object, fields: tuple[str, ...]) -> list[str]:
    if isinstance(record, Mapping):
        named = dict(record)
    elif isinstance(record, str) and len(fields) == 1:
        named = {fields[0]: record}
    elif isinstance(record, tuple | list) and len(record) == len(fields) == 2:
        named = dict(zip(fields, record))
    else:
        size = f" of {len(record)}" if isinstance(record, tuple | list) else ""
        raise ValueError(f"give {_shape(fields)}: got {type(record).__name__}{size}")
    return [str(text_of(named, field)) for field in fields]  # plain, where an array holds texts of its own kind
