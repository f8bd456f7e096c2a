"""The result of a check: the value, the expected value, whether they agree, and the value of the notes."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class AtMost:
    """An expectation: no more than this."""

    limit: float

    def __str__(self) -> str:
        return f"at most {self.limit:g}"


@dataclass(frozen=True)
class AtLeast:
    """An expectation: no less than this."""

    limit: float

    def __str__(self) -> str:
        return f"at least {self.limit:g}"


@dataclass(frozen=True)
class Finding:
    """`value` computed by the library, `expected` by other means; `notes` is the notes' value where it differs.

    Values are numbers, text, booleans, and lists and mappings of those. `remark` says in a few words of ours what is
    to be known; `drawing` is a figure or table in lines of text, `figure` the same as an SVG drawing.
    """

    value: Any
    expected: Any
    passed: bool
    notes: Any = None
    remark: str = ""
    drawing: str = ""
    figure: str = field(default="", repr=False)


@dataclass(frozen=True)
class Row:
    """A row of the specification and its check; `missing` says what of the row is not built yet."""

    id: str
    title: str
    check: Callable[[], Finding]
    missing: str = ""


def compare(
    value: Any,
    expected: Any,
    *,
    within: float = 1e-6,
    notes: Any = None,
    remark: str = "",
    drawing: str = "",
    figure: str = "",
) -> Finding:
    """A finding that passes where `value` is what was expected, numbers to an absolute `within`.

    An expected number that is itself smaller than `within` is held to a relative one.
    """
    value, notes = plain(value), plain(notes)
    return Finding(value, plain(expected), agrees(value, expected, within), notes, remark, drawing, figure)


def together(**findings: Finding) -> Finding:
    """Several findings as one, which passes where all do."""

    def joined(part: str) -> Any:
        return {name: getattr(one, part) for name, one in findings.items() if getattr(one, part) not in (None, "")}

    return Finding(
        joined("value"),
        joined("expected"),
        all(one.passed for one in findings.values()),
        joined("notes") or None,
        "; ".join(joined("remark").values()),
        "\n\n".join(joined("drawing").values()),
        "".join(list(joined("figure").values())[:1]),
    )


def agrees(value: Any, expected: Any, within: float) -> bool:
    """Whether a value is as expected: same keys, same lengths, numbers no further apart than `within`; NaN never is."""
    if isinstance(expected, AtMost | AtLeast):
        if isinstance(value, bool) or not isinstance(value, int | float):
            return False
        return value <= expected.limit if isinstance(expected, AtMost) else value >= expected.limit
    value, expected = plain(value), expected if isinstance(expected, Mapping | list | tuple) else plain(expected)
    if isinstance(expected, Mapping):
        return (
            isinstance(value, Mapping)
            and list(value) == list(expected)
            and all(agrees(value[key], expected[key], within) for key in expected)
        )
    if isinstance(expected, list | tuple):
        return (
            isinstance(value, list)
            and len(value) == len(expected)
            and all(agrees(one, other, within) for one, other in zip(value, expected))
        )
    if isinstance(expected, float) and isinstance(value, int | float) and not isinstance(value, bool):
        tiny = 0 < abs(expected) < within
        return abs(value - expected) <= within * (abs(expected) if tiny else 1)
    return type(value) is type(expected) and bool(value == expected)


def plain(value: Any) -> Any:
    """A value as JSON knows it: tensors as lists, bounds in words, what is not finite as text."""
    if isinstance(value, AtMost | AtLeast):
        return str(value)
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, Mapping):
        return {str(key): plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [plain(one) for one in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value


def shown(value: Any) -> str:
    """A value for people, in one line: numbers to six digits."""
    if isinstance(value, bool) or value is None:
        return {True: "yes", False: "no", None: "-"}[value]
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, Mapping):
        texts = {key: f"({shown(one)})" if isinstance(one, Mapping) else shown(one) for key, one in value.items()}
        return "; ".join(f"{key}: {text}" for key, text in texts.items())
    if isinstance(value, Sequence) and not isinstance(value, str):
        return f"[{' '.join(f'{one!r}' if isinstance(one, str) and ' ' in one else shown(one) for one in value)}]"
    return str(value)


def grid(matrix: Any, digits: int = 3) -> str:
    """A matrix, a tensor or rows of numbers, as lines of text; whole and infinite numbers without decimals."""

    def cell(number: Any) -> str:
        if isinstance(number, float) and math.isfinite(number) and not number.is_integer():
            return f"{number:.{digits}f}"
        return f"{number:g}" if isinstance(number, float) else str(number)

    cells = [[cell(number) for number in row] for row in plain(matrix)]
    width = max((len(text) for row in cells for text in row), default=0)
    return "\n".join(" ".join(text.rjust(width) for text in row) for row in cells)
