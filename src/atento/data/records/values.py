"""Convert and check the values of records by the kind of their field: from tables, JSON or Python.

A "text" or a "class" is a string, a "number" a finite float, "classes" are several labels, "words" and "tags" have
equal numbers, "spans" are parts of the record's context.
"""

import json
import math
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any

from atento.base.errors import DataError, listed
from atento.base.nfc import nfc
from atento.config.tables.task_spec import Field
from atento.config.tables.tasks import task_with_field
from atento.metrics.label_counts import class_name, label_name

SEPARATOR = "|"  # of several labels in one cell
_NUMBER = re.compile(r"[+-]?\d{1,15}(?:\.\d{1,15})?")  # that a float tells from others
_STRINGS = ("text", "class")
_NEEDED = ("text", "class", "words")  # a record with a blank one is left out
_WORD = re.compile(r"[^ \t\r\n]+")  # a no-break space joins
_SHOWN = 40  # characters of a text in a message
_LARGEST = 1e30  # of numbers, which are float32 in training


@dataclass(frozen=True)
class Span:
    """A part of a context: its text and the number of characters before it."""

    text: str
    start: int


Value = str | float | tuple[str, ...] | tuple[Span, ...]


class Converter:
    """Converts the values of records with these fields, and checks rules between them."""

    def __init__(self, fields: Sequence[Field], separator: str = SEPARATOR, decimal: str = ".") -> None:
        self.fields, self.separator, self.decimal = tuple(fields), separator, decimal
        kinds: dict[str, int] = {field.kind: number for number, field in enumerate(fields)}
        names = {field.name: number for number, field in enumerate(fields)}
        # the places of words and tags, which must be as many, and of the context and of its answers
        self._pair = (kinds["words"], kinds["tags"]) if {"words", "tags"} <= kinds.keys() else None
        self._spans = (names["context"], kinds["spans"]) if "spans" in kinds and "context" in names else None
        self.plain = all(field.kind == "text" for field in fields)
        self.needed = tuple(n for n, field in enumerate(fields) if field.kind in _NEEDED or field.may_be_blank)

    def blank(self, values: Sequence[object]) -> bool:
        """Whether a text, a class or the words of a record are blank; such a record is left out."""
        for number in self.needed:
            value = values[number]
            if (not value and value != 0) or (value.__class__ is str and value.isspace()):
                return True
        return False

    def half(self, values: Sequence[object]) -> str | None:
        """What is wrong with a record of a query that has a blank document; None: it is another record."""
        if self.fields[0].name != "query" or not str(values[0]).strip():
            return None
        blank = [field.name for field, value in zip(self.fields, values) if not str(value).strip()]
        return f"query {shortened(str(values[0]))!r} without a document: `{blank[0]}` is blank" if blank else None

    def cells(self, cells: list[str]) -> list[Value]:
        """Convert the cells of a row of a table to values; a row that is left out is unchanged.
        Raises ValueError: a cell is not of its kind, or a rule between values is violated.
        """
        if self.plain or self.blank(cells):
            return list(cells)
        values = [_from_cell(field, cell, self.separator, self.decimal) for field, cell in zip(self.fields, cells)]
        self.check(values)
        return values

    def objects(self, record: object, keys: Sequence[str]) -> list[Value]:
        """Return the values of these keys, one per field, of an object in JSON or a mapping in Python.

        None if it is a task of Label Studio without labels. Raises ValueError: as `cells`, or the record lacks a key.
        """
        plain = record if record.__class__ is dict else {}  # a mapping of another class: by `at_key`
        found: list[Any] = [plain[key] if key in plain else at_key(record, key) for key in keys]
        for number, value in enumerate(found):
            if value.__class__ is list and value and value[0].__class__ is dict and "result" in value[0]:
                from atento.data.records.marked_entities import of_label_studio

                found[number] = of_label_studio(value, self.fields[number].kind, f"key {keys[number]!r}")
                if found[number] is None:
                    return []
            elif value.__class__ is list and not value and keys[number] == "annotations" and "data." in "".join(keys):
                return []
        if self._pair is not None:
            words, tags = self._pair
            marks = isinstance(found[tags], list | tuple) and all(
                isinstance(one, list | tuple | Mapping) for one in found[tags]
            )
            if marks and isinstance(found[words], str):  # a text and its entities, in place of words and their tags
                from atento.data.records.marked_entities import words_and_tags

                found[words], found[tags] = words_and_tags(found[words], found[tags], f"key {keys[tags]!r}")
        values: list[Value] = []
        for field, key, value in zip(self.fields, keys, found):
            if value is None and field.may_be_blank:
                value = ""
            elif value.__class__ is not str or field.kind not in _STRINGS or not value.isascii() or "\0" in value:
                value = _from_object(field, value, f"key {key!r}")  # else it needs no other check
            values.append(class_name(value) if field.kind == "class" and isinstance(value, str) else value)
        if not self.plain and not self.blank(values):
            self.check(values)
        return values

    def check(self, values: Sequence[Any]) -> None:
        """Check the rules between values.
        Raises ValueError: unequal numbers of words and tags; a span that is not in the context.
        """
        if self._pair is not None:
            words, tags = (len(values[number]) for number in self._pair)
            if words != tags:
                raise ValueError(
                    f"{words} word{'s'[: words != 1]} and {tags} tag{'s'[: tags != 1]}; each word needs one tag"
                )
        if self._spans is not None:
            context, spans = (values[number] for number in self._spans)
            for span in spans:
                check_span(span, context)


def check_span(span: Span, context: str) -> None:
    """Check that a span is in a context.
    Raises ValueError: it is empty, or the context has another text at this position.
    """
    if not span.text:
        raise ValueError("an answer is empty; a question without an answer has an empty list of answers")
    text = context[span.start : span.start + len(span.text)] if span.start >= 0 else ""
    if text != span.text:
        only = f"; it is only at {context.index(span.text)}" if context.count(span.text) == 1 else ""
        raise ValueError(
            f"answer {shortened(span.text)!r} is not at character {span.start} of its context, which has "
            f"{shortened(text)!r} there{only}"
        )


def canonical(value: Any) -> str:
    """Return the text of a value for fingerprints: a string itself, other values as JSON."""
    if isinstance(value, str):
        return value
    if isinstance(value, float):
        return repr(value)
    items = [[item.start, item.text] if isinstance(item, Span) else item for item in value]
    return json.dumps(items, ensure_ascii=False)


def compared(value: Any) -> Any:
    """Return a value, or a record, by which it is compared: accented letters in one piece, since they look the same."""
    if isinstance(value, tuple):
        return tuple(map(compared, value))
    return nfc(value) if isinstance(value, str) else value


def as_text(value: Any) -> str:
    """Return a string itself, or words joined by spaces."""
    return value if isinstance(value, str) else " ".join(value)


def characters_of(value: object) -> int:
    """Return the number of characters of a string, of words or of labels; 0 for numbers and spans."""
    if isinstance(value, str):
        return len(value)
    return sum(len(word) for word in value if isinstance(word, str)) if isinstance(value, tuple) else 0


def as_written(name: str, known: Iterable[object]) -> str:
    """The known name that looks the same, whose letters may have another form; else the name itself."""
    same = (other for other in known if isinstance(other, str) and nfc(other) == nfc(name))
    return name if name in known else next(same, name)


def at_key(record: object, key: str) -> object:
    """Return the value of a key; if the record lacks the key, its dots separate the keys of nested objects.
    Raises ValueError: the record is no object, or lacks the key.
    """
    if not isinstance(record, Mapping):
        raise ValueError(f"each record must be an object, not {kind_of(record)}")
    value: object = record
    for part in [key] if as_written(key, record) in record else key.split("."):
        if not isinstance(value, Mapping) or (part := as_written(part, value)) not in value:
            raise ValueError(f"key {key!r} is not in the record{listed(key, [*map(str, record)], what='its keys')}")
        value = value[part]
    return value


def string_of(value: object, subject: str, *, is_class: bool = False) -> str:
    """Return a string of a record, checked; a class may be a whole number, or true or false, and is its name.
    Raises ValueError: something else, a NUL character, or half of a surrogate pair.
    """
    if is_class and (name := label_name(value)) is not None:
        value = name
    if not isinstance(value, str):
        several = f"; {several_labels()}" if is_class and _is_list(value) else ""
        raise ValueError(f"{subject} must hold a string, not {kind_of(value)}{several}")
    if "\0" in value:
        raise ValueError(f"{subject} holds a NUL character")
    if not value.isascii() and any("\ud800" <= letter <= "\udfff" for letter in value):
        raise ValueError(f"{subject} holds half of a surrogate pair, which is no character")
    return str(value)  # str(): an array may hold texts of another type


def number_of(value: object, subject: str) -> float:
    """Return a finite number. Raises ValueError: something else."""
    if isinstance(value, bool) or not isinstance(value, Real):
        raise ValueError(f"{subject} must hold a number, not {kind_of(value)}")
    return _finite(float(value), subject)


def kind_of(value: object) -> str:
    """Return the kind of a value for messages."""
    if isinstance(value, bool):
        return "true or false"
    kinds = {dict: "an object", list: "a list", tuple: "a list", str: "a string", int: "a number", float: "a number"}
    return "null" if value is None else kinds.get(type(value), type(value).__name__)


def shortened(text: str) -> str:
    """Shorten a text for a message."""
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 1]}…"


def _from_cell(field: Field, cell: str, separator: str, decimal: str) -> Value:
    """Convert a cell of a table to a value of its field."""
    subject = f"`{field.name}`"
    match field.kind:
        case "number":
            text, other = cell.strip(), "," if decimal == "." else "."
            try:
                number = float(text.replace(decimal, ".") if "_" not in text and other not in text else "")
            except ValueError:
                kinds = {".": "point", ",": "comma"}
                way = f"`decimal: {other!r}` reads a decimal {kinds[other]} in .csv, .tsv and .xlsx sources"
                hint = f" (with a decimal {kinds[decimal]}; {way})" if other in text else ""
                raise ValueError(f"{subject} must hold a number{hint}: got {shortened(cell)!r}") from None
            return _finite(number, subject)
        case "classes":
            return _labels([class_name(label) for label in cell.split(separator)] if cell.strip() else [], subject)
        case "words" | "tags":
            items = _WORD.findall(cell)
            return tuple(map(class_name, items) if field.kind == "tags" else items)
        case "spans":
            return _spans(_parsed(cell, subject), subject) if cell.strip() else ()
        case "class":
            return class_name(cell)
        case _:
            return cell


def _from_object(field: Field, value: object, subject: str) -> Value:
    """Convert a value in JSON or Python to a value of its field; no label is null, or an empty cell of a table."""
    match field.kind:
        case "text":
            return string_of(value, subject)
        case "class":
            return "" if value is None else string_of(value, subject, is_class=True)
        case "number":
            return number_of(value, subject)
        case "classes":
            return () if value is None else _labels(_strings(value, subject, is_class=True), subject)
        case "words" | "tags":
            return _strings(value, subject, is_class=field.kind == "tags")
        case "spans":
            return _spans(value, subject)


def _strings(value: Any, subject: str, *, is_class: bool) -> tuple[str, ...]:
    """Return a list of strings, none of them empty."""
    if not _is_list(value):
        raise ValueError(f"{subject} must hold a list of strings, not {kind_of(value)}")
    items = ((text, f"{subject}, item {number},") for number, text in enumerate(value, 1))
    texts = tuple(string_of(text, item, is_class=is_class) for text, item in items)
    if "" in texts:
        raise ValueError(f"{subject}, item {texts.index('') + 1}, is empty")
    return texts


def _labels(labels: Sequence[str], subject: str) -> tuple[str, ...]:
    """Return several distinct labels."""
    for label in labels:
        if not label:
            raise ValueError(f"{subject} has an empty label between its separators")
        if labels.count(label) > 1:
            raise ValueError(f"{subject} has the label {label!r} twice")
    return tuple(labels)


def _spans(value: Any, subject: str) -> tuple[Span, ...]:
    """Convert answers: a list of spans or of objects with `text` and `answer_start` or `start`; or two lists."""
    if isinstance(value, Mapping):  # two lists, as the library `datasets` has SQuAD
        starts = value.get("answer_start", value.get("start"))
        if not _is_list(value.get("text")) or not _is_list(starts):
            raise ValueError(f"{subject} must hold two lists, `text` and `answer_start`, or a list of answers")
        if len(value["text"]) != len(starts):
            raise ValueError(f"{subject} has {len(value['text'])} texts and {len(starts)} values of `answer_start`")
        return tuple(_span(text, start, subject) for text, start in zip(value["text"], starts))
    if not _is_list(value):
        raise ValueError(f"{subject} must hold a list of answers, not {kind_of(value)}")
    spans = []
    for answer in value:
        if isinstance(answer, Span):
            spans.append(_span(answer.text, answer.start, subject))
        elif isinstance(answer, Mapping) and "text" in answer and ("answer_start" in answer or "start" in answer):
            spans.append(_span(answer["text"], answer.get("answer_start", answer.get("start")), subject))
        else:
            raise ValueError(f"{subject} must hold answers with `text` and `answer_start`: got {kind_of(answer)}")
    return tuple(spans)


def _span(text: object, start: object, subject: str) -> Span:
    if isinstance(start, bool) or not isinstance(start, Integral):
        raise ValueError(f"{subject}: the start of an answer must be a whole number, not {kind_of(start)}")
    return Span(string_of(text, f"{subject}, text of an answer,"), int(start))


def _parsed(cell: str, subject: str) -> object:
    try:
        return json.loads(cell)
    except (ValueError, RecursionError):
        raise ValueError(f"{subject} must hold answers as JSON: got {shortened(cell)!r}") from None


def _finite(number: float, subject: str) -> float:
    if not abs(number) < _LARGEST:
        limit = f" of less than {_LARGEST:.0e}" if math.isfinite(number) else ""
        raise ValueError(f"{subject} must hold a finite number{limit}: got {number}")
    return number


def _is_list(value: object) -> bool:
    """A list, a tuple or an array."""
    return isinstance(value, Iterable) and not isinstance(value, str | bytes | Mapping)


def counted_with(error: DataError, rest: Iterable[object], fields: Sequence[Field]) -> DataError:
    """Return the error of the first bad record; of answers, which are often off in data sets, with their number."""
    if not any(field.kind == "spans" for field in fields):
        return error
    more = 1
    with suppress(DataError):
        for row in rest:
            more += isinstance(row, DataError)
    others = f", one of {more:,} such records" if more > 1 else ""
    return DataError(f"{error}{others} (`data.skip_bad: true` or --skip-bad leaves it out)")


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
