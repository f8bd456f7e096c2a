"""JSON as the service reads it: UTF-8, finite numbers of 64 bits, little nesting, whole characters, each key once."""

import json
import math
import re
from collections import Counter

from atento_serve.http.errors import ServiceError, too_long

_DIGITS = 20  # of the longest integer of 64 bits, with its sign
_LONG = re.compile(rb"\d{19}")
_STRING = re.compile(rb'"(?:[^"\\]|\\.)*+"', re.DOTALL)


def parse(body: bytes, depth: int, parts: int = 20_000) -> object:
    """The value of a JSON body.

    Args:
        body: the bytes.
        depth: the most levels of nesting.
        parts: the most arrays and objects, which take many times their bytes.

    Raises:
        ServiceError: 400, which says what is wrong and where; 413, too many arrays and objects.
    """
    if _openings(body) > parts and (count := _openings(_STRING.sub(b"", body))) > parts:
        raise too_long(f"the body may have at most {parts:,} arrays and objects: got {count:,}")
    try:
        text = body.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise _bad(f"the body must be UTF-8: byte {error.start} is not") from None
    try:
        value = json.loads(
            text,
            parse_constant=_constant,
            parse_int=_integer if _LONG.search(body) else None,
            parse_float=_number,
            object_pairs_hook=_object,
        )
    except json.JSONDecodeError as error:
        raise _bad(f"the body must be JSON: {error.msg} at line {error.lineno}, column {error.colno}") from None
    except RecursionError:
        raise _bad(f"the body must not be nested more than {depth} levels deep") from None
    _check(value, depth)
    return value


def _openings(body: bytes) -> int:
    return body.count(b"[") + body.count(b"{")


def _bad(message: str) -> ServiceError:
    return ServiceError(400, message, "invalid_json")


def _constant(name: str) -> object:
    raise _bad(f"numbers must be finite: got {name}")


def _integer(digits: str) -> int:
    if len(digits) > _DIGITS or not -(2**63) <= int(digits) < 2**64:
        raise _bad(f"integers must have at most 64 bits: got one of {len(digits.lstrip('-'))} digits")
    return int(digits)


def _number(digits: str) -> float:
    value = float(digits)
    if not math.isfinite(value):
        raise _bad(f"numbers must be finite: got {digits[:20]}")
    return int(value) if value.is_integer() and abs(value) < 2**53 else value  # 1.0 is an integer of JSON Schema


def _object(pairs: list[tuple[str, object]]) -> dict[str, object]:
    fields = dict(pairs)
    if len(fields) < len(pairs):
        counts = Counter(name for name, _ in pairs)
        repeated = next(name for name, count in counts.items() if count > 1)
        raise _bad(f"an object must have each key once: got {repeated[:40]!r} again")
    return fields


def _check(value: object, depth: int) -> None:
    """Raises ServiceError: nested too deep, or a text that is not Unicode."""
    level: list[object] = [value]
    for _ in range(depth + 1):
        inner: list[object] = []
        for item in level:
            if isinstance(item, str):
                _check_text(item)
            elif isinstance(item, dict):
                for key in item:
                    _check_text(key)
                inner += item.values()
            elif isinstance(item, list):
                inner += item
        if not any(isinstance(item, dict | list) for item in level):
            return
        level = inner
    raise _bad(f"the body must not be nested more than {depth} levels deep")


def _check_text(text: str) -> None:
    if not text.isascii():
        try:
            text.encode("utf-8")
        except UnicodeEncodeError as error:
            raise _bad(f"a text must be Unicode: character {error.start} is half of a surrogate pair") from None
