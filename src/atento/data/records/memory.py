"""Records passed from Python, in memory, also as data frames: checked by the same rules as records read from a file."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import combinations
from numbers import Real
from typing import Any

from atento.base.errors import DataError, UsageError, listed
from atento.config.tables.task_spec import Field
from atento.data.files.hub import memory_rows
from atento.data.records.values import Converter


def is_frame(data: object) -> bool:
    """Whether this is a data frame: it has names of columns, and columns with values and a mask of the present ones."""
    names = getattr(data, "columns", None)
    if isinstance(data, Mapping | str) or not isinstance(names, Iterable) or not hasattr(data, "dtypes"):
        return False
    return hasattr(data, "to_dict")


def dataset_columns(data: Any) -> list[str] | None:
    """Return the columns of a `datasets.Dataset`; None for other data, or where it does not know its columns."""
    if not type(data).__module__.startswith("datasets.") or not hasattr(data, "select_columns"):
        return None
    return getattr(data, "column_names", None)


def frame_columns(data: Any) -> dict[str, list[object]]:
    """Return the columns of a data frame by name; a missing value is None.
    Raises UsageError: two columns have one name.
    """
    names = [str(name) for name in data.columns]
    if twice := [name for number, name in enumerate(names) if name in names[:number]]:
        raise UsageError(f"the data frame has several columns {twice[0]!r}: rename or drop one")
    return {str(name): series_values(data[name]) for name in data.columns}


def series_values(series: Any) -> list[object]:
    """Return the values of a column; a missing one (NaN, NA, NaT, null) is None."""
    values: list[object] = series.to_list()
    if not hasattr(series, "notna"):  # polars: missing values are None already
        return values
    return [value if present else None for value, present in zip(values, series.notna().to_list())]


def frame_texts(data: object) -> list[tuple[object, object]] | list[object]:
    """Return the texts of a data frame: its column `text`, as pairs with `pair` if it has that too, or its only column.
    Raises UsageError: none of its columns is these.
    """
    columns = frame_columns(data)
    if "text" in columns and "pair" in columns:
        return list(zip(columns["text"], columns["pair"]))
    name = next(iter(columns)) if len(columns) == 1 else "text"
    if name not in columns:
        raise UsageError(
            f"the data frame has no column 'text'{listed(name, list(columns))}: give one of them, as df[NAME]"
        )
    return columns[name]


SPLITS = ("train", "valid", "test")
# tuples, mappings or texts; or the columns: a tuple of lists, a mapping to lists, or a data frame
MemoryRecords = Iterable[Any]
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
    """Return the records of each split in the argument `data` of `atento.train`; records alone are training records.
    Raises UsageError: a split that does not exist.
    """
    if data is None:
        return {}
    if not isinstance(data, Mapping) or is_frame(data):
        return {"train": data}
    for name in data:
        if name not in SPLITS:
            raise UsageError(f"`data` takes records for {', '.join(SPLITS)}: got {name!r}")
    return dict(data)


def with_optional(data: MemoryRecords, fields: Sequence[Field]) -> tuple[MemoryRecords, tuple[Field, ...]]:
    """Return the records and the fields that they have: an optional field if the first record has it."""
    required = tuple(field for field in fields if not field.optional)
    data = _of_frame(data, fields) if is_frame(data) else data
    data = list(map(tuple, data)) if getattr(data, "ndim", 0) == 2 else data  # rows of an array
    known = data if isinstance(data, Mapping) else dataset_columns(data)
    if known is not None:
        return data, tuple(field for field in fields if not field.optional or field.name in known)
    if len(required) == len(fields) or isinstance(data, str | bytes) or not isinstance(data, Iterable):
        return data, required
    if _columns(data, len(fields)):
        return data, tuple(fields)
    # the first record is looked at, and a generator is read once
    records = data if _columns(data, len(required)) or isinstance(data, list) else list(data)
    first = _by_name(next(iter(records), None), [field.name for field in fields])
    if isinstance(first, Mapping):
        return records, tuple(field for field in fields if not field.optional or field.name in first)
    if not isinstance(first, tuple | list) or isinstance(records, tuple):  # texts, or columns in a tuple
        return records, required
    # a tuple has all required fields, and as many optional ones as there is room for, of the kinds that it has
    optional = [field for field in fields if field.optional]
    for left_out in combinations(optional, max(0, len(fields) - len(first))):  # what it may lack
        chosen = tuple(field for field in fields if field not in left_out)
        numbers = [isinstance(value, Real) == (field.kind == "number") for field, value in zip(chosen, first)]
        if len(chosen) == len(first) and (all(numbers) or len(optional) < 2):
            return records, chosen or required
    return records, required


def records_in(data: MemoryRecords, fields: Sequence[Field], name: str) -> Iterator[Any]:
    """Yield each record as (index from 0, a value for each field); a broken record as its error, so that the caller may
    skip it.

    Args:
        data: an iterable of tuples (a named one goes by its names), of texts (for one field) or of mappings with the
            fields as keys; or the columns as a tuple of lists or arrays, in the order of the fields, as a mapping from
            their names, or as a data frame of pandas or polars with these names; or a `datasets.Dataset`, whose numbers
            of classes become names.
        fields: the fields of a record.
        name: name of the data in messages; a record is `name[index]`.

    Raises:
        UsageError: `data` has another type. DataError: the columns have different lengths.
    """
    names, converter = tuple(field.name for field in fields), Converter(fields)
    if is_frame(data):
        data = _of_frame(data, fields)
    if isinstance(data, Mapping) and _columns(tuple(data.get(column) for column in names), len(names)):
        data = tuple(data[column] for column in names) if len(names) > 1 else data[names[0]]
    if isinstance(data, str | bytes | Mapping) or not isinstance(data, Iterable):  # a mapping without these columns
        way = next((f"; its `{way}()` does" for way in ("collect", "to_pylist") if hasattr(data, way)), "")
        raise UsageError(f"{name} must be an iterable of {_shape(names)}: got {type(data).__name__}{way}")
    if len(fields) > 1 and _columns(data, len(fields)):
        sides = [list(side) for side in data]  # columns, not rows
        if len({len(side) for side in sides}) > 1:
            counts = " and ".join(f"{len(side)} {_SIDES.get(column, column)}" for side, column in zip(sides, names))
            raise DataError(f"{name} has {counts}; the numbers must be equal")
        data = zip(*sides)
    with_names = None
    if dataset_columns(data) is not None:
        data, with_names = memory_rows(data, names)
    for index, record in enumerate(data):
        try:
            named = record if with_names is None else with_names(record)
            yield index, converter.objects(_named(named, names), names)
        except ValueError as error:
            yield DataError(f"{name}[{index}]: {error}")


def memory_records(name: str, memory: Mapping[str, MemoryRecords] | None) -> MemoryRecords:
    """Return the records for a source with `memory: name`. Raises UsageError: they were not passed."""
    if memory is None or name not in memory:
        raise UsageError(
            f"this recipe reads {argument_name(name)} from memory, not from a file, so pass it again: "
            f"atento.train(..., data={{{name!r}: ...}})"
        )
    return memory[name]


def argument_name(name: str) -> str:
    """Return the name of records in memory for messages: the argument of `atento.train` that holds them."""
    return f"data[{name!r}]"


def _of_frame(data: Any, fields: Sequence[Field]) -> dict[str, list[object]]:
    """Return the columns of a data frame that are fields; a missing text is an empty one, as an empty cell of a file.
    Raises DataError: a column is missing.
    """
    columns, kinds = frame_columns(data), {field.name: field.kind for field in fields}
    for field in fields:
        if not field.optional and field.name not in columns:
            rename = f"; rename one: df.rename(columns={{...: {field.name!r}}})"
            raise DataError(f"the data frame has no column {field.name!r}{listed(field.name, list(columns))}{rename}")
    return {
        name: ["" if value is None and kinds[name] in ("text", "class") else value for value in values]
        for name, values in columns.items()
        if name in kinds
    }


def _columns(data: object, count: int) -> bool:
    """Whether `data` is a tuple of `count` lists or arrays, not of records."""
    sides = data if isinstance(data, tuple) and len(data) == count else (None,)
    return all(isinstance(side, Iterable) and not isinstance(side, str | tuple | Mapping) for side in sides)


def _shape(fields: tuple[str, ...]) -> str:
    """Return the accepted forms of records with these fields, for messages."""
    return _SHAPES.get(fields, f"dicts with the keys {', '.join(map(repr, fields))}")


def _by_name(record: object, names: Sequence[str]) -> object:
    """A named tuple as a mapping, if a field has one of its names, as a row of pandas' `itertuples` has."""
    as_mapping = getattr(record, "_asdict", None)
    if as_mapping is None or not isinstance(record, tuple):
        return record
    mapping = as_mapping()
    return record if mapping.keys().isdisjoint(names) else mapping


def _named(record: object, names: tuple[str, ...]) -> Mapping[str, object]:
    """The values of a record by the names of their fields."""
    record = _by_name(record, names)
    if isinstance(record, Mapping):
        return record
    if isinstance(record, str) and len(names) == 1:
        return {names[0]: record}
    if isinstance(record, tuple | list) and len(record) == len(names) > 1:
        return dict(zip(names, record))
    size = f" of {len(record)}" if isinstance(record, tuple | list) else ""
    raise ValueError(f"give {_shape(names)}: got {type(record).__name__}{size}")
