"""Records of one split that are also in another."""

from collections.abc import Iterable

from atento.data.records.reader import Records


def overlap(train: Iterable[Records], valid: Records) -> int:
    """Count the validation records that are also in the training data, with all fields equal."""
    validation_records = set(valid)
    repeated: set[tuple[object, ...]] = set()
    for records in train:
        repeated |= validation_records.intersection(records)
    return sum(record in repeated for record in valid) if repeated else 0
