"""Data frames of pandas and polars as columns of plain values, and data sets in memory; without importing a library."""

from collections.abc import Iterable, Mapping
from typing import Any

from atento.errors import UsageError, listed


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

    Raises:
        UsageError: two columns have one name.
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

    Raises:
        UsageError: none of its columns is these.
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
