"""Hold out training records for validation; the choice is a function of the data."""

from collections.abc import Mapping
from typing import Any

from atento.data.shuffle import permutation
from atento.errors import DataError, counted

_BLOCK = 25  # neighbouring records are held out together, since those of a book are related
_SEED = 20


def held_out(columns: Mapping[str, list[Any]], count: int) -> tuple[list[int], list[int]]:
    """Return the numbers of the training records and of the held-out ones, both rising.

    At most `count` records and at most a tenth of all are held out (at least one), in blocks of up to 25 neighbours at
    random places. Training records that are equal to a held-out one are dropped.

    Args:
        columns: values by name, of equal length.
        count: maximum number of records to hold out.

    Raises:
        DataError: nothing is left to train on or to hold out.
    """
    records = list(zip(*columns.values()))
    valid = held_out_rows(len(records), count)
    equal = {records[row] for row in valid}
    train = [row for row, record in enumerate(records) if record not in equal]
    if not train:
        raise DataError(
            f"`data.held_out` {count} leaves nothing to train on of "
            f"{counted(len(records), 'training record')}; give more data, or `data.valid`"
        )
    return train, valid


def held_out_rows(records: int, count: int) -> list[int]:
    """Return the numbers of the records to hold out, in order.

    Args:
        records: how many there are.
        count: maximum number to hold out.
    """
    size = min(count, max(1, records // 10))
    block = max(1, min(_BLOCK, size // 4))
    chosen: list[int] = []
    for number in permutation(-(-records // block), _SEED).tolist():
        first = number * block
        chosen += range(first, min(first + block, records, first + size - len(chosen)))
        if len(chosen) == size:
            break
    return sorted(chosen)
