"""Hold out training records for validation; the choice is a function of the data."""

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence

from atento.base.errors import DataError, counted
from atento.base.splitmix import permutation
from atento.data.records.values import compared

_BLOCK = 25  # neighbouring records are held out together, since those of a book are related
_SEED = 20


def held_out(
    columns: Mapping[str, list[object]], count: int, labels: Sequence[Collection[str]] = ()
) -> tuple[list[int], list[int]]:
    """Return the numbers of the training records and of the held-out ones, both rising.

    At most `count` records and at most a tenth of all are held out (at least one), in blocks of up to 25 neighbours at
    random places. Where each record has one label, the labels have the shares that they have in all records, also in a
    file that is sorted by them. Training records that are equal to a held-out one are dropped. A record whose label no
    training record would have is not held out.

    Args:
        columns: values by name, of equal length.
        count: maximum number of records to hold out.
        labels: the labels of each record; none: the records have no labels.

    Raises:
        DataError: nothing is left to train on or to hold out.
    """
    records = [compared(record) for record in zip(*columns.values())]  # accented letters in one piece
    valid = held_out_rows(len(records), count, labels)
    valid = _of_known_labels(records, valid, labels) if labels else valid
    equal = {records[row] for row in valid}
    train = [row for row, record in enumerate(records) if record not in equal]  # an equal one would be known
    if not train or not valid:
        left, of = "train on" if valid else "hold out (each label needs a training record)", len(records)
        different = len(set(records))
        same = "" if different == of else f" ({different:,} different)" if different > 1 else ", which are all equal"
        raise DataError(
            f"`data.held_out` {count} leaves nothing to {left} of {counted(of, 'training record')}{same}; give more "
            "data, or `data.valid`"
        )
    return train, valid


def held_out_lines(valid: int, total: int, noun: str, asked: int, equal: int) -> Iterator[str]:
    """What a run says of its held-out records: `valid` of `total`, of `asked`; `equal` are equal to one of them."""
    also = f"; {equal} equal to one of them {'are' if equal > 1 else 'is'} not trained on" if equal else ""
    yield f"{valid:,} of {total:,} training {noun} held out for validation{also}"
    if asked > max(1, total // 10):
        yield f"`data.held_out` {asked} holds out at most a tenth; `data.valid` takes records of your own"


def _of_known_labels(
    records: Sequence[tuple[object, ...]], valid: Sequence[int], labels: Sequence[Collection[str]]
) -> list[int]:
    """Return the numbers of held-out records without the first of each label that no other record would teach."""
    held_out_records = {records[row] for row in valid}
    known = {label for row, record in enumerate(records) if record not in held_out_records for label in labels[row]}
    kept: set[tuple[object, ...]] = set()
    for row in valid:
        if not known.issuperset(labels[row]):
            known.update(labels[row])
            kept.add(records[row])
    return [row for row in valid if records[row] not in kept]


def held_out_rows(records: int, count: int, labels: Sequence[Collection[str]] = ()) -> list[int]:
    """Return the numbers of the records to hold out, in order.

    Args:
        records: how many there are.
        count: maximum number to hold out.
        labels: the labels of each record; where each has one, each label has its share.
    """
    size = min(count, max(1, records // 10))
    block = max(1, min(_BLOCK, size // 4))  # records that are held out together
    one_each = [next(iter(own)) for own in labels if len(own) == 1]  # of records with one label
    has_labels = bool(labels) and len(one_each) == records  # else there is no list as long as the data, which are large
    left, chosen = _shares(one_each, size) if has_labels else Counter({"": size}), list[int]()
    for number in permutation(-(-records // block), _SEED).tolist():  # ceil: the last block may be short
        for row in range(number * block, min((number + 1) * block, records)):
            label = one_each[row] if has_labels else ""
            if left[label]:
                left[label] -= 1
                chosen.append(row)
        if len(chosen) == size:
            break
    return sorted(chosen)


def _shares(labels: Sequence[str], size: int) -> Counter[str]:
    """How many of `size` records each label has, in proportion; the largest remainders are rounded up."""
    exact = {label: divmod(size * number, len(labels)) for label, number in Counter(labels).items()}
    shares = Counter({label: whole for label, (whole, _) in exact.items()})
    shares.update(sorted(exact, key=lambda label: -exact[label][1])[: size - shares.total()])  # the largest remainders
    return shares
