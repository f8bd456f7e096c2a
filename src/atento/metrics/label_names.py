"""The names of labels: what looks the same, or is the same number, is one label to every reader and every metric."""

import re
from collections.abc import Iterable, Sequence
from numbers import Integral
from typing import Any

from atento.base.errors import UsageError
from atento.base.nfc import nfc
from atento.metrics.bleu import reference_streams

_WHOLE = re.compile(r"[+-]?[0-9]{1,15}\.0+")  # as pandas writes whole numbers of a column with a gap
_NUMBERS = {"True": "1", "False": "0"}


def class_name(label: str) -> str:
    """Return a label without the spaces around it, its accented letters in one piece (NFC), 1.0 as 1.

    Labels that look the same are the same class, however a file has written them.
    """
    name = nfc(label.strip())
    return str(int(name.partition(".")[0])) if _WHOLE.fullmatch(name) else name


def label_name(value: Any) -> str | None:
    """Return the name of a label: a string, a whole number, or True or False, of NumPy and PyTorch too; else None.

    A column of whole numbers with a gap comes from pandas as 1.0, which is 1.
    """
    if not isinstance(value, str) and callable(getattr(value, "item", None)) and getattr(value, "ndim", 0) == 0:
        value = value.item()  # a number of NumPy or PyTorch
    if isinstance(value, bool):
        return str(value)
    if isinstance(value, Integral) or (isinstance(value, float) and value.is_integer()):
        return str(int(value))
    return class_name(value) if isinstance(value, str) else None


def label_names(labels: Iterable[object]) -> list[str]:
    """Return the names of labels. Raises UsageError: one is neither a string, a whole number nor True or False."""
    names = []
    for label in labels:
        name = label_name(label)
        if name is None:
            raise UsageError(f"labels must be strings, whole numbers, or True and False: got {label!r:.60}")
        names.append(name)
    return names


def label_streams(predictions: Sequence[Any], references: Sequence[Any]) -> tuple[list[str], list[list[str]]]:
    """Return the names of predicted labels, and of the right ones as a list of reference sets.

    Beside whole numbers, True and False are 1 and 0, as in scikit-learn; TRUE and true of a table are True where True
    or another of the two stands beside them.
    Raises UsageError: unequal lengths, nothing to score, a value that is no label, or a right label that is blank.
    """
    if isinstance(predictions, str) or isinstance(references, str):
        reference_streams(predictions, references)  # refuses them
    first = next(iter(references), None)
    several = isinstance(first, list | tuple) or getattr(first, "ndim", 0) == 1
    names = label_names(predictions)
    streams = reference_streams(names, [*map(label_names, references)] if several else label_names(references))
    for stream in streams:
        if "" in stream:
            raise UsageError(f"right label {stream.index('') + 1} is blank: leave the example out, as training does")
    present = set(names).union(*streams)
    booleans = {name: name.capitalize() for name in present if name.lower() in ("true", "false")}
    if len(set(booleans.values())) < len(booleans):  # two spellings of one of them stand there
        names, *streams = ([booleans.get(name, name) for name in side] for side in (names, *streams))
    if not present.isdisjoint(_NUMBERS) and any(name.lstrip("-").isdecimal() for name in present):
        names, *streams = ([_NUMBERS.get(name, name) for name in side] for side in (names, *streams))
    return names, streams
