"""JSON to records: an object a line, or a list of objects, each read strictly and with its line."""

import json
import re
from collections.abc import Iterator
from typing import Any, BinaryIO

from atento.base.errors import DataError
from atento.data.files.source_lines import scan
from atento.data.records.values import kind_of

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
