"""JSON to records, each read strictly and with its line: an object a line, a list of objects, and SQuAD's articles."""

import json
import re
from collections.abc import Iterator, Sequence
from typing import Any, BinaryIO

from atento.base.errors import DataError
from atento.data.files.source_lines import scan
from atento.data.records.values import Span, check_span, kind_of, string_of

_SPACE = re.compile(r"[ \t\r\n]*")
_INTEGER_DIGITS = 19  # what 64 bits hold


def jsonl_objects(stream: BinaryIO, name: str) -> Iterator[tuple[int, dict[str, object] | None] | DataError]:
    """An object a line, each with its line; None on a blank line."""
    for number, line in enumerate(scan(stream, name), start=1):
        if isinstance(line, DataError):
            yield line
        elif not line.strip():
            yield number, None  # a blank line: counted with the empty records
        else:
            try:
                value, end = decode(line, skip(line, 0))
                if (end := skip(line, end)) != len(line):
                    raise ValueError(f"more text after the record, at character {end + 1}")
                if not isinstance(value, dict):
                    raise ValueError(f"each record must be an object, not {kind_of(value)}")
                yield number, value
            except json.JSONDecodeError as error:
                yield DataError(f"{name}:{number}: {not_json(error)}")
            except ValueError as error:
                yield DataError(f"{name}:{number}: {error}")


def json_objects(text: str, name: str) -> Iterator[tuple[int, dict[str, object]] | DataError]:
    """A list of objects, read one at a time; broken JSON cannot be skipped, because its end is unknown."""
    at, line, counted = skip(text, 0), 1, 0  # `line` is that of `counted`; lines behind it are counted when it moves

    def wrong(rule: object) -> DataError:
        return DataError(f"{name}:{line + text.count(chr(10), counted, at)}: {rule}")

    if not text.startswith("[", at):
        raise wrong("a .json file must hold a list of objects, [{...}, ...]; one object a line is .jsonl")
    at = skip(text, at + 1)
    while not text.startswith("]", at):
        line, counted = line + text.count("\n", counted, at), at
        try:
            value, at = decode(text, at)
        except json.JSONDecodeError as error:
            raise DataError(f"{name}:{error.lineno}: {not_json(error)}") from None
        except ValueError as error:
            raise wrong(error) from None
        if not isinstance(value, dict):
            raise wrong(f"each record must be an object, not {kind_of(value)}")
        yield line, value
        at = skip(text, at)
        if text.startswith(",", at):
            at = skip(text, at + 1)
            if text.startswith("]", at):
                raise wrong("a comma before the end of the list")
        elif not text.startswith("]", at):
            raise wrong("a comma or the end of the list is missing")
    at = skip(text, at + 1)
    if at != len(text):
        raise wrong("more text after the list")


def skip(text: str, at: int) -> int:
    """The index of the next character that is no white space."""
    space = _SPACE.match(text, at)
    assert space is not None  # it matches the empty string
    return space.end()


def decode(text: str, at: int) -> tuple[Any, int]:
    """Decode the JSON value at `at`; return it and its end. Every failure is a ValueError with a message."""
    try:
        return _DECODER.raw_decode(text, at)
    except RecursionError:
        raise ValueError("the record is nested too deeply") from None


def not_json(error: json.JSONDecodeError) -> str:
    """What is wrong with text that is not JSON."""
    return f"not JSON: {error.msg[0].lower()}{error.msg[1:]} at character {error.colno}"


def _unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    record = dict(pairs)
    if len(record) != len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in keys if keys.count(key) > 1)
        raise ValueError(f"key {twice!r} appears twice in one object")
    return record


def _integer(digits: str) -> int:
    if len(digits.lstrip("-")) > _INTEGER_DIGITS:
        raise ValueError(f"a whole number of {len(digits.lstrip('-'))} digits does not fit in 64 bits")
    return int(digits)


def _number(digits: str) -> float:
    value = float(digits)
    if value in (float("inf"), float("-inf")):
        raise ValueError(f"the number {digits[:30]} is too large")
    return value


def _constant(word: str) -> object:
    raise ValueError(f"{word} is not JSON")


_DECODER = json.JSONDecoder(
    object_pairs_hook=_unique, parse_int=_integer, parse_float=_number, parse_constant=_constant
)


def is_document(text: str) -> bool:
    """Whether JSON is one object, as SQuAD's files are, and not a list of objects."""
    return text.startswith("{", skip(text, 0))


def questions_in(text: str, name: str, fields: Sequence[str]) -> Iterator[tuple[int, list[object]] | DataError]:
    """Read the questions of a file; a broken one is yielded as its error, which names its id.

    A question that is marked `is_impossible` has no answers.

    Args:
        fields: in which order a question gives "question", "context" and "answers".

    Raises:
        DataError: the file is not JSON, or has not the structure of SQuAD's.
    """
    lines = _Lines(text, name)
    for number, context, entry in _entries(_document(text, name), name):
        shown = entry.get("id", number)
        line = lines.of(shown)
        try:
            values = _values(entry, context, answered="answers" in fields)
        except ValueError as error:
            yield DataError(f"{name}:{line}: question {shown!r}: {error}")
            continue
        yield line, [values[field] for field in fields]


def _document(text: str, name: str) -> object:
    """The decoded file."""
    try:
        document, end = decode(text, skip(text, 0))
        if skip(text, end) != len(text):
            raise ValueError("more text after the object")
    except json.JSONDecodeError as error:
        raise DataError(f"{name}:{error.lineno}: {not_json(error)}") from None
    except ValueError as error:
        raise DataError(f"{name}: {error}") from None
    return document


def _entries(document: Any, name: str) -> Iterator[tuple[int, str, dict[str, object]]]:
    """Each question: its number from 1, its context and its object."""
    number = 0
    for place, article in _objects(document, "data", "the file", name):
        for inner, paragraph in _objects(article, "paragraphs", place, name):
            try:
                context = string_of(paragraph.get("context"), "`context`")
            except ValueError as error:
                raise DataError(f"{name}: {inner}: {error}") from None
            for _, entry in _objects(paragraph, "qas", inner, name):
                number += 1
                yield number, context, entry


def _objects(parent: dict[str, object], key: str, place: str, name: str) -> Iterator[tuple[str, dict[str, object]]]:
    """The objects of the list under a key, each with what messages call it."""
    children = parent.get(key)
    if not isinstance(children, list):
        raise DataError(
            f"{name}: {place} must have a list {key!r}, as SQuAD's files have (data, paragraphs, qas): "
            f"got {kind_of(children)}"
        )
    for number, child in enumerate(children):
        if not isinstance(child, dict):
            raise DataError(f"{name}: {key}[{number}] of {place} must be an object, not {kind_of(child)}")
        yield f"{key}[{number}]" if place == "the file" else f"{place}.{key}[{number}]", child


def _values(entry: dict[str, object], context: str, *, answered: bool) -> dict[str, object]:
    """Question, context and, where they are read, answers."""
    question = string_of(entry.get("question"), "`question`")
    if not answered:
        return {"question": question, "context": context}
    answers = entry.get("answers")
    impossible = entry.get("is_impossible") is True
    if answers is None and impossible:
        answers = []
    if not isinstance(answers, list):
        raise ValueError(f"`answers` must be a list, not {kind_of(answers)}")
    if impossible and answers:
        raise ValueError("is marked `is_impossible` and has answers")
    spans = tuple(_span(answer) for answer in answers)
    for span in spans:
        check_span(span, context)
    return {"question": question, "context": context, "answers": spans}


def _span(answer: object) -> Span:
    if not isinstance(answer, dict):
        raise ValueError(f"an answer must be an object, not {kind_of(answer)}")
    start = answer.get("answer_start")
    if isinstance(start, bool) or not isinstance(start, int):
        raise ValueError(f"`answer_start` must be a whole number, not {kind_of(start)}")
    return Span(string_of(answer.get("text"), "`text` of an answer"), start)


class _Lines:
    """The lines of questions, found by their ids in the order of the file."""

    def __init__(self, text: str, name: str) -> None:
        self.text, self.name = text, name
        self.at, self.line = 0, 1

    def of(self, id: object) -> int:
        """The line of the next question with that id; that of the question before it where the id is not written so."""
        match = re.compile(r'"id"\s*:\s*' + re.escape(json.dumps(id, ensure_ascii=False))).search(self.text, self.at)
        if match is not None:
            self.line += self.text.count("\n", self.at, match.start())
            self.at = match.start()
        return self.line
