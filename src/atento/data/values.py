"""The values of a record by the kind of their field: read from a table, from JSON or from Python, and checked.

A "text" or a "class" is a string, a "number" a finite float, "classes" are several labels, "words" and "tags" belong to
one another, "spans" are stretches of the record's context.
"""

import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any

from atento.config.tasks import Field

SEPARATOR = "|"  # of several labels in one cell
_STRINGS = ("text", "class")
_NEEDED = ("text", "class", "words")  # a record without one of them says nothing, and is left out
_WORD = re.compile(r"[^ \t\r\n]+")  # a no-break space joins
_SHOWN = 40  # characters of a text in a message


@dataclass(frozen=True)
class Span:
    """A stretch of a context: its text and the number of characters before it."""

    text: str
    start: int


Value = str | float | tuple[str, ...] | tuple[Span, ...]


class Converter:
    """Converts the values of records with these fields, and checks what holds between them."""

    def __init__(self, fields: Sequence[Field], separator: str = SEPARATOR) -> None:
        self.fields, self.separator = tuple(fields), separator
        places: dict[str, int] = {field.kind: number for number, field in enumerate(fields)}
        names = {field.name: number for number, field in enumerate(fields)}
        self._pair = (places["words"], places["tags"]) if {"words", "tags"} <= places.keys() else None
        self._spans = (names["context"], places["spans"]) if "spans" in places and "context" in names else None
        self.plain = all(field.kind in _STRINGS for field in fields)
        self.needed = tuple(number for number, field in enumerate(fields) if field.kind in _NEEDED)

    def blank(self, values: Sequence[Any]) -> bool:
        """Whether a text, a class or the words of a record are blank; such a record is left out."""
        return any(not values[number] or _is_space(values[number]) for number in self.needed)

    def cells(self, cells: list[str]) -> list[Value]:
        """The cells of one row of a table as values; a row that is left out stays as it is.

        Raises:
            ValueError: a cell that is no value of its kind, or values that do not fit one another.
        """
        if self.plain or self.blank(cells):
            return list(cells)
        values = [_from_cell(field, cell, self.separator) for field, cell in zip(self.fields, cells)]
        self.check(values)
        return values

    def objects(self, record: Any, keys: Sequence[str]) -> list[Value]:
        """The values under these keys, one for each field, of an object in JSON or a mapping in Python.

        Raises:
            ValueError: as `cells`, or a key that the record lacks.
        """
        values = [_from_object(field, at_key(record, key), f"key {key!r}") for field, key in zip(self.fields, keys)]
        if not self.plain and not self.blank(values):
            self.check(values)
        return values

    def check(self, values: Sequence[Any]) -> None:
        """Check what holds between values.

        Raises:
            ValueError: words and tags of unequal number; a span that does not stand in the context.
        """
        if self._pair is not None:
            words, tags = (len(values[number]) for number in self._pair)
            if words != tags:
                raise ValueError(f"{words} word{'s'[: words != 1]} and {tags} tag{'s'[: tags != 1]}; each word has one")
        if self._spans is not None:
            context, spans = (values[number] for number in self._spans)
            for span in spans:
                check_span(span, context)


def check_span(span: Span, context: str) -> None:
    """Check that a span stands in a context.

    Raises:
        ValueError: it is empty, or the context has another text there.
    """
    if not span.text:
        raise ValueError("an answer is empty; a question without an answer has an empty list of answers")
    there = context[span.start : span.start + len(span.text)] if span.start >= 0 else ""
    if there != span.text:
        raise ValueError(
            f"answer {shortened(span.text)!r} does not stand at character {span.start} of its context, which has "
            f"{shortened(there)!r} there"
        )


def canonical(value: Any) -> str:
    """The text of a value that stands for it in a fingerprint: a string itself, any other value as JSON."""
    if isinstance(value, str):
        return value
    if isinstance(value, float):
        return repr(value)
    return json.dumps([[one.start, one.text] if isinstance(one, Span) else one for one in value], ensure_ascii=False)


def as_text(value: Any) -> str:
    """A value as text: a string itself, words joined by spaces; labels, tags, numbers and spans have none."""
    return value if isinstance(value, str) else " ".join(value)


def characters_of(value: Any) -> int:
    """The number of characters of a string, of words or of labels; 0 of a number and of spans."""
    if isinstance(value, str):
        return len(value)
    return sum(len(word) for word in value if isinstance(word, str)) if isinstance(value, tuple) else 0


def at_key(record: Any, key: str) -> Any:
    """The value under a key, reaching into objects at dots where the whole key is not there.

    Raises:
        ValueError: the record is no object, or lacks the key.
    """
    if not isinstance(record, Mapping):
        raise ValueError(f"each record must be an object, not {kind_of(record)}")
    value: Any = record
    for part in [key] if key in record else key.split("."):
        if not isinstance(value, Mapping) or part not in value:
            known = ", ".join(map(repr, record)) or "none"
            raise ValueError(f"key {key!r} is not in the record; its keys are {known}")
        value = value[part]
    return value


def string_of(value: Any, what: str, *, is_class: bool = False) -> str:
    """A string that a record may hold; the name of a class may be a whole number.

    Raises:
        ValueError: something else, a NUL character, or half of a surrogate pair.
    """
    if is_class and not isinstance(value, bool) and isinstance(value, Integral):
        return str(int(value))
    if not isinstance(value, str):
        several = "; several labels of one text need a task that takes them" if is_class and _is_list(value) else ""
        raise ValueError(f"{what} must hold a string, not {kind_of(value)}{several}")
    if "\0" in value:
        raise ValueError(f"{what} holds a NUL character")
    if not value.isascii() and any("\ud800" <= letter <= "\udfff" for letter in value):
        raise ValueError(f"{what} holds half of a surrogate pair, which is no character")
    return str(value)  # plain, where an array holds texts of its own kind


def number_of(value: Any, what: str) -> float:
    """A finite number.

    Raises:
        ValueError: something else.
    """
    if isinstance(value, bool) or not isinstance(value, Real):
        raise ValueError(f"{what} must hold a number, not {kind_of(value)}")
    return _finite(float(value), what)


def kind_of(value: Any) -> str:
    """What messages call a value."""
    if isinstance(value, bool):
        return "true or false"
    kinds = {dict: "an object", list: "a list", tuple: "a list", str: "a string", int: "a number", float: "a number"}
    return "null" if value is None else kinds.get(type(value), type(value).__name__)


def shortened(text: str) -> str:
    """A text for a message, cut where it is long."""
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 1]}…"


def _from_cell(field: Field, cell: str, separator: str) -> Value:
    """A cell of a table as a value of its field."""
    what = f"`{field.name}`"
    match field.kind:
        case "number":
            text = cell.strip()
            try:
                number = float(text if "_" not in text else "")
            except ValueError:
                raise ValueError(f"{what} must hold a number: got {shortened(cell)!r}") from None
            return _finite(number, what)
        case "classes":
            return _labels([label.strip() for label in cell.split(separator)] if cell.strip() else [], what)
        case "words" | "tags":
            return tuple(_WORD.findall(cell))
        case "spans":
            return _spans(_parsed(cell, what), what) if cell.strip() else ()
        case _:
            return cell


def _from_object(field: Field, value: Any, what: str) -> Value:
    """A value in JSON or Python as one of its field."""
    match field.kind:
        case "number":
            return number_of(value, what)
        case "classes":
            return _labels(_strings(value, what, is_class=True), what)
        case "words" | "tags":
            return _strings(value, what, is_class=field.kind == "tags")
        case "spans":
            return _spans(value, what)
        case kind:
            return string_of(value, what, is_class=kind == "class")


def _strings(value: Any, what: str, *, is_class: bool) -> tuple[str, ...]:
    """A list of strings, none of them empty."""
    if not _is_list(value):
        raise ValueError(f"{what} must hold a list of strings, not {kind_of(value)}")
    texts = tuple(string_of(text, f"{what}, item {number},", is_class=is_class) for number, text in enumerate(value, 1))
    if "" in texts:
        raise ValueError(f"{what}, item {texts.index('') + 1}, is empty")
    return texts


def _labels(labels: Sequence[str], what: str) -> tuple[str, ...]:
    """Several labels, each once."""
    for label in labels:
        if not label:
            raise ValueError(f"{what} has an empty label between its separators")
        if labels.count(label) > 1:
            raise ValueError(f"{what} has the label {label!r} twice")
    return tuple(labels)


def _spans(value: Any, what: str) -> tuple[Span, ...]:
    """Answers: a list of spans, of objects with `text` and `answer_start` or `start`, or one object of two lists."""
    if isinstance(value, Mapping):
        starts = value.get("answer_start", value.get("start"))
        if not _is_list(value.get("text")) or not _is_list(starts):
            raise ValueError(f"{what} must hold two lists, `text` and `answer_start`, or a list of answers")
        if len(value["text"]) != len(starts):
            raise ValueError(f"{what} has {len(value['text'])} texts and {len(starts)} values of `answer_start`")
        return tuple(_span(text, start, what) for text, start in zip(value["text"], starts))
    if not _is_list(value):
        raise ValueError(f"{what} must hold a list of answers, not {kind_of(value)}")
    spans = []
    for answer in value:
        if isinstance(answer, Span):
            spans.append(_span(answer.text, answer.start, what))
        elif isinstance(answer, Mapping) and "text" in answer and ("answer_start" in answer or "start" in answer):
            spans.append(_span(answer["text"], answer.get("answer_start", answer.get("start")), what))
        else:
            raise ValueError(f"{what} must hold answers with `text` and `answer_start`: got {kind_of(answer)}")
    return tuple(spans)


def _span(text: Any, start: Any, what: str) -> Span:
    if isinstance(start, bool) or not isinstance(start, Integral):
        raise ValueError(f"{what}: the start of an answer must be a whole number, not {kind_of(start)}")
    return Span(string_of(text, f"{what}, text of an answer,"), int(start))


def _parsed(cell: str, what: str) -> Any:
    try:
        return json.loads(cell)
    except (ValueError, RecursionError):
        raise ValueError(f"{what} must hold answers as JSON: got {shortened(cell)!r}") from None


def _finite(number: float, what: str) -> float:
    if not math.isfinite(number):
        raise ValueError(f"{what} must hold a finite number: got {number}")
    return number


def _is_space(value: Any) -> bool:
    return isinstance(value, str) and value.isspace()


def _is_list(value: Any) -> bool:
    """A list, a tuple or an array."""
    return isinstance(value, Iterable) and not isinstance(value, str | bytes | Mapping)
