"""The result of a check: the value, the expected value, whether they agree, and the value of the notes."""

import inspect
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from atento_lab.notes.wording import ENGLISH, Wording


@dataclass(frozen=True)
class AtMost:
    """An expected upper bound."""

    limit: float

    def __str__(self) -> str:
        return f"at most {self.limit:g}"


@dataclass(frozen=True)
class AtLeast:
    """An expected lower bound."""

    limit: float

    def __str__(self) -> str:
        return f"at least {self.limit:g}"


@dataclass(frozen=True)
class Answer:
    """A question of the notes and its answer, each in English and in Portuguese, with the numbers in the answer.

    Args:
        row: the row of the experiment.
        value: the numbers.
        expected: the same, or bounds.
        question: in both languages.
        answer: in both languages.
        figure: an SVG drawing of the experiment.
        note: the number of the note that asks.
    """

    row: str
    value: Any
    expected: Any
    question: tuple[str, str]
    answer: tuple[str, str]
    figure: str = field(default="", repr=False)
    note: int = 0


@dataclass(frozen=True)
class Finding:
    """The result of a check: `value` computed by the library, and `expected`, computed independently.

    Args:
        value: numbers, text, booleans, and lists and mappings of those.
        expected: the same, or bounds.
        passed: whether they agree.
        notes: the value of the notes, where it differs.
        remark: a short explanation.
        drawing: a figure or table as lines of text.
        figure: the same as an SVG drawing.
        answers: those of the notes' own questions.
    """

    value: Any
    expected: Any
    passed: bool
    notes: Any = None
    remark: str = ""
    drawing: str = ""
    figure: str = field(default="", repr=False)
    answers: tuple[Answer, ...] = field(default=(), repr=False)


@dataclass(frozen=True)
class Row:
    """A row of the specification and its check; `own_documents` returns one on (document, summary) pairs."""

    id: str
    title: str
    check: Callable[[], Finding]
    own_documents: Callable[[Sequence[tuple[str, str]]], Callable[[], Finding]] | None = None

    def titled(self, words: Wording = ENGLISH) -> str:
        """Return the title in a language."""
        return words.rows[self.id][0] if self.id in words.rows else self.title

    def about(self, words: Wording = ENGLISH) -> str:
        """Return what the row checks; in English it is the docstring of the check, without the row's name."""
        if self.id in words.rows:
            return words.rows[self.id][1]
        text = inspect.cleandoc(self.check.__doc__ or "").replace("\n", " ")
        text = text.partition(": ")[2] if text.startswith(f"{self.id}:") else text.partition(", ")[2]
        if re.match("(a|[a-z]{2,})[ ,;-]", text):  # a word; formulas and names keep their first letter
            text = text[0].upper() + text[1:]
        return text


def compare(
    value: object,
    expected: object,
    *,
    within: float = 1e-6,
    notes: Any = None,
    remark: str = "",
    drawing: str = "",
    figure: str = "",
) -> Finding:
    """Return a finding that passes if `value` equals `expected`, numbers to an absolute tolerance `within`.

    An expected number smaller than `within` is compared with a relative tolerance.
    """
    value, notes = plain(value), plain(notes)
    return Finding(value, plain(expected), agrees(value, expected, within), notes, remark, drawing, figure)


def together(**findings: Finding) -> Finding:
    """Combine several findings into one, which passes if all of them do."""

    def joined(attribute: str) -> Any:
        return {
            name: getattr(finding, attribute)
            for name, finding in findings.items()
            if getattr(finding, attribute) not in (None, "")
        }

    return Finding(
        joined("value"),
        joined("expected"),
        all(finding.passed for finding in findings.values()),
        joined("notes") or None,
        "; ".join(joined("remark").values()),
        "\n\n".join(joined("drawing").values()),
        "".join(list(joined("figure").values())[:1]),
    )


def agrees(value: object, expected: Any, within: float) -> bool:
    """Return whether a value is as expected: same keys, same lengths, numbers within the tolerance.

    NaN never agrees.
    """
    if isinstance(expected, AtMost | AtLeast):
        if isinstance(value, bool) or not isinstance(value, int | float):
            return False
        return value <= expected.limit if isinstance(expected, AtMost) else value >= expected.limit
    value, expected = plain(value), expected if isinstance(expected, Mapping | list | tuple) else plain(expected)
    if isinstance(expected, Mapping):
        return (
            isinstance(value, Mapping)
            and list(value) == list(expected)  # in the same order
            and all(agrees(value[key], expected[key], within) for key in expected)
        )
    if isinstance(expected, list | tuple):
        return (
            isinstance(value, list)
            and len(value) == len(expected)
            and all(agrees(item, expected_item, within) for item, expected_item in zip(value, expected))
        )
    if isinstance(expected, float) and isinstance(value, int | float) and not isinstance(value, bool):
        tiny = 0 < abs(expected) < within  # smaller than the tolerance: then it is a share of it
        return abs(value - expected) <= within * (abs(expected) if tiny else 1)
    return type(value) is type(expected) and bool(value == expected)


def plain(value: Any) -> Any:
    """Convert a value for JSON: tensors to lists, bounds and non-finite numbers to text."""
    if isinstance(value, AtMost | AtLeast):
        return str(value)
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value


def one_line(value: Any, words: Wording = ENGLISH) -> str:
    """Format a value for people in one line, in a language; numbers have six digits."""
    if isinstance(value, bool) or value is None:
        return {True: words.yes, False: words.no, None: "-"}[value]
    if isinstance(value, float):
        return words.text(f"{value:.6g}")
    if isinstance(value, Mapping):
        texts = {
            words.text(str(key)): f"({one_line(item, words)})" if isinstance(item, Mapping) else one_line(item, words)
            for key, item in value.items()
        }
        return "; ".join(f"{key}: {text}" for key, text in texts.items())
    if isinstance(value, Sequence) and not isinstance(value, str):
        quoted = (repr(item) if isinstance(item, str) and " " in item else one_line(item, words) for item in value)
        return f"[{' '.join(quoted)}]"
    return words.text(str(value))


def flat(value: Any, path: tuple[str, ...] = ()) -> dict[tuple[str, ...], Any]:
    """Return the parts of a mapping of mappings by their path; anything else is one part with an empty path."""
    if not isinstance(value, Mapping) or not value:
        return {path: value}
    return {deep: part for key, item in value.items() for deep, part in flat(item, (*path, str(key))).items()}


def grid(matrix: Any, digits: int = 3) -> str:
    """Format a matrix, a tensor or rows of numbers, as lines of text.

    Integral and infinite numbers have no decimals.
    """

    def cell(number: Any) -> str:
        if isinstance(number, float) and math.isfinite(number) and not number.is_integer():
            return f"{number:.{digits}f}"
        return f"{number:g}" if isinstance(number, float) else str(number)

    cells = [[cell(number) for number in row] for row in plain(matrix)]
    width = max((len(text) for row in cells for text in row), default=0)
    return "\n".join(" ".join(text.rjust(width) for text in row) for row in cells)
