"""Names of labels that may be several in one, or the same twice."""

import re
from collections.abc import Collection

from atento.config.tables.tasks import task_with_field

SEPARATOR = "|"  # of several labels in one cell
_NUMBER = re.compile(r"[+-]?\d{1,15}(?:\.\d{1,15})?")  # that a float tells from others


def joined_labels(labels: Collection[str]) -> tuple[str, list[str]] | None:
    """Return a label that joins others by `SEPARATOR`, and these others; None if there is none."""
    for label in sorted(labels):
        parts = [part.strip() for part in label.split(SEPARATOR)]
        if len(parts) > 1 and all(part in labels for part in parts):
            return label, parts
    return None


def shared_parts(labels: Collection[str]) -> tuple[str, str] | None:
    """Return two labels that are joined by `SEPARATOR` and have a part in common; None: there are none."""
    label_of: dict[str, str] = {}
    for label in sorted(labels):
        parts = {part.strip() for part in label.split(SEPARATOR)}
        for part in sorted(parts) if len(parts) > 1 else ():
            if part in label_of:
                return label_of[part], label
            label_of[part] = label
    return None


def alike_labels(labels: Collection[str]) -> tuple[str, str] | None:
    """Return two labels that differ in case or in the form of a number alone, as 1 and 1.0; None: there are none."""
    label_of: dict[str | float, str] = {}
    for label in sorted(labels):
        key = float(label) if label.isascii() and _NUMBER.fullmatch(label) else label.casefold()
        if label_of.setdefault(key, label) != label:
            return label_of[key], label
    return None


def several_labels() -> str:
    """Return what to do where texts have several labels, for messages."""
    return f"several labels of one text need `task: {task_with_field('classes')}`"
