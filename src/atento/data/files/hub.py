"""Data sets of the library `datasets`: a local folder, a .parquet file, or a name on the hub."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from atento.base.errors import DataError, RecipeError, install_hint, nearest
from atento.base.limits import refuse_swelling_rows
from atento.config.recipe import SourceConfig
from atento.config.tables.task_spec import Field
from atento.data.records.values import Converter, as_written

_FILES = {".parquet": "parquet", ".arrow": "arrow"}  # ending: the library's reader of single files
_ROWS = 1000  # read at a time
_SAVED = ("dataset_info.json", "dataset_dict.json", "state.json")  # of a folder that `save_to_disk` wrote


def dataset_rows(
    source: SourceConfig, fields: Sequence[Field], folder: Path
) -> tuple[str, Iterator[tuple[int, list[Any]] | DataError]]:
    """Open a data set; return its name for messages and its rows, numbered from 0. Numbers of classes become names.
    Raises RecipeError: the library is not installed. DataError: no such data set, split or column.
    """
    data = opened(source, folder)
    name = str(source.dataset) if source.split is None else f"{source.dataset}[{source.split}]"
    keys = [as_written(str(getattr(source, field.name) or field.name), data.column_names) for field in fields]
    for field, key in zip(fields, keys):
        column = key if key in data.column_names else key.split(".")[0]  # a key may name a part of an object
        if column not in data.column_names:
            known = ", ".join(map(repr, data.column_names))
            raise DataError(f"{name}: has no column {column!r} for `{field.name}`; its columns are {known}")
    return name, _rows(data, name, keys, Converter(fields, source.separator))


def _rows(data: Any, name: str, keys: list[str], converter: Converter) -> Iterator[tuple[int, list[Any]] | DataError]:
    """The rows of a data set as values."""
    chosen = list(dict.fromkeys(key if key in data.column_names else key.split(".")[0] for key in keys))
    data = data.select_columns(chosen).with_format(None)  # plain values, whatever format was set
    named = {column: _namer(data.features[column]) for column in chosen}  # numbers of classes become names
    number = 0
    for begin in range(0, len(data), _ROWS):  # decoded in slices, not row by row
        batch = data[begin : begin + _ROWS]
        for row in zip(*(batch[column] for column in chosen)):
            try:
                record = {column: named[column](value) for column, value in zip(chosen, row)}
                yield number, converter.objects(record, keys)
            except ValueError as error:
                yield DataError(f"{name}:{number}: {error}")
            number += 1


def memory_rows(data: Any, names: Sequence[str]) -> tuple[Iterable[Any], Callable[[Any], object]]:
    """Return the rows of a `datasets.Dataset`, with those of the columns that it has, and what names their classes."""
    columns = data.column_names
    chosen = [name for name in names if name in columns] or columns
    named = {column: _namer((data.features or {}).get(column)) for column in chosen}
    return data.select_columns(chosen).with_format(None), lambda row: {c: named[c](row[c]) for c in chosen}


def _namer(feature: object) -> Callable[[Any], object]:
    """What makes the values of a column: names of the numbers of classes, in lists and objects too."""
    import datasets  # late: an extra

    if isinstance(feature, datasets.ClassLabel):
        return partial(_class_name, feature.names)
    if isinstance(feature, Mapping):
        inner = {key: _namer(part) for key, part in feature.items()}  # an object in an object
        return lambda value: value if value is None else {key: inner[key](part) for key, part in value.items()}
    element = feature[0] if isinstance(feature, list) else getattr(feature, "feature", None)
    if element is None or isinstance(element, Mapping):
        return _same
    of_element = _namer(element)  # of a list
    return _same if of_element is _same else lambda value: value if value is None else [of_element(v) for v in value]


def _class_name(names: Sequence[str], value: Any) -> object:
    """The name of a class by its number; None stays. Test sets without labels have -1.
    Raises ValueError: there is no such class.
    """
    if value is not None and not 0 <= value < len(names):
        raise ValueError(f"{value} is not the number of a class: there are {len(names)}, {', '.join(names[:5])} ...")
    return None if value is None else names[value]


def _same(value: object) -> object:
    return value


def opened(source: SourceConfig, folder: Path) -> Any:
    """The split of a data set.
    Raises RecipeError: the library is not installed. DataError: it cannot be opened, or has several splits.
    """
    try:
        import datasets  # late: an extra
        from pyarrow.parquet import read_metadata
    except ImportError:
        raise RecipeError(f"`dataset` needs the library datasets: {install_hint('data')}") from None
    name = str(source.dataset)
    path = folder / Path(name).expanduser()
    if not path.exists() and (name.startswith((".", "/", "~")) or name.count("/") > 1):
        raise DataError(f"{name}: no such folder (looked for {path.absolute()})")
    if path.is_file() and path.suffix not in _FILES:
        raise DataError(f"{name}: is a file, and `dataset` is a folder, a .parquet file or a name; give it as `file`")
    datasets.disable_progress_bars()
    try:
        for file in [path, *path.rglob("*.parquet")]:
            if file.suffix == ".parquet" and file.is_file():
                refuse_swelling_rows(f"{file}", read_metadata(file))
        if path.is_file():
            data = datasets.load_dataset(_FILES[path.suffix], data_files=str(path), split="train")
        elif any((path / file).is_file() for file in _SAVED):
            data = datasets.load_from_disk(str(path))
        else:
            data = datasets.load_dataset(str(path) if path.is_dir() else name)
    except DataError:
        raise
    except Exception as error:  # of many kinds: of the library, of Arrow, of the network
        reason = " ".join(str(error).split()) or type(error).__name__
        raise DataError(f"{name}: the data set cannot be read: {reason}") from None
    if isinstance(data, datasets.Dataset):
        if source.split is not None and not path.is_file() and str(data.split) != source.split:
            raise DataError(f"{name}: is one split, {data.split}, and `split` is {source.split!r}")
        return data
    if source.split is None and len(data) == 1:
        return next(iter(data.values()))
    if source.split not in data:
        problem = (
            "has several splits: name one as `split`" if source.split is None else f"has no split {source.split!r}"
        )
        close = "" if source.split is None else nearest(source.split, list(data)).partition(" Known:")[0].rstrip(".")
        raise DataError(f"{name}: {problem}{close}; its splits are {', '.join(map(repr, data))}")
    return data[source.split]
