"""Records given from Python, in memory: checked by the same rules as records read from a file."""

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from typing import Any

from atento.config.tasks import Field
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
    ("text", "pair", "label"): "tuples (text, pair, label), dicts with these keys, or the tuple of three lists",
}
_SIDES = {"source": "sources", "target": "targets", "text": "texts", "pair": "pairs", "label": "labels"}


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


def with_optional(given: MemoryRecords, fields: Sequence[Field]) -> tuple[MemoryRecords, tuple[Field, ...]]:
    """The records, and the fields that they have: an optional one if the first record has it."""
    required = tuple(one for one in fields if not one.optional)
    if len(required) == len(fields) or isinstance(given, str | bytes | Mapping) or not isinstance(given, Iterable):
        return given, required
    if _columns(given, len(fields)):
        return given, tuple(fields)
    records = given if _columns(given, len(required)) or isinstance(given, list) else list(given)
    first = next(iter(records), None)
    if isinstance(first, Mapping):
        return records, tuple(one for one in fields if not one.optional or one.name in first)
    whole = isinstance(first, tuple | list) and len(first) == len(fields) and not isinstance(records, tuple)
    return records, tuple(fields) if whole else required


def records_in(given: MemoryRecords, fields: tuple[str, ...], name: str, classes: Container[str] = ()) -> Iterator[Any]:
    """Yield each record as (index from 0, a text for each field); a broken record as its error, so that the caller may
    skip it.

    Args:
        given: an iterable of pairs (for two fields), of texts (for one) or of mappings with the fields as keys; or a
            tuple of two lists or arrays, the columns.
        fields: ("source", "target"), ("text",), ("text", "label") ...
        name: what messages call the data; a record is then `name[index]`.
        classes: the fields that may hold whole numbers.

    Raises:
        UsageError: no such thing. DataError: two columns of unequal length.
    """
    if isinstance(given, str | bytes | Mapping) or not isinstance(given, Iterable):
        raise UsageError(f"{name} must be an iterable of {_shape(fields)}: got {type(given).__name__}")
    if len(fields) > 1 and _columns(given, len(fields)):
        sides = [list(side) for side in given]
        if len({len(side) for side in sides}) > 1:
            counts = " and ".join(f"{len(side)} {_SIDES[field]}" for side, field in zip(sides, fields))
            raise DataError(f"{name} has {counts}; they must be as many")
        given = zip(*sides)
    for index, record in enumerate(given):
        try:
            yield index, _texts(record, fields, classes)
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


def _columns(given: object, count: int) -> bool:
    """A tuple of that many lists or arrays, not of records."""
    return (
        isinstance(given, tuple)
        and len(given) == count
        and all(isinstance(side, Iterable) and not isinstance(side, str | tuple | Mapping) for side in given)
    )


def _shape(fields: tuple[str, ...]) -> str:
    """The forms of records with those fields, for messages."""
    return _SHAPES.get(fields, f"dicts with the keys {', '.join(map(repr, fields))}")


def _texts(record: object, fields: tuple[str, ...], classes: Container[str]) -> list[str]:
    if isinstance(record, Mapping):
        named = dict(record)
    elif isinstance(record, str) and len(fields) == 1:
        named = {fields[0]: record}
    elif isinstance(record, tuple | list) and len(record) == len(fields) > 1:
        named = dict(zip(fields, record))
    else:
        size = f" of {len(record)}" if isinstance(record, tuple | list) else ""
        raise ValueError(f"give {_shape(fields)}: got {type(record).__name__}{size}")
    return [
        str(text_of(named, field, field in classes)) for field in fields
    ]  # plain, where an array holds texts of its own kind
