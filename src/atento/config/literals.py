"""Check fields of type `Literal[...]` and numbers, also of configurations made in Python."""

import codecs
from collections.abc import Callable, Mapping
from dataclasses import fields
from functools import cache
from typing import Any, Literal, get_args, get_origin, get_type_hints

from atento.base.errors import RecipeError, nearest

_HOLDS: dict[str, Callable[[float], bool]] = {
    "be at least 1": lambda value: not value < 1,
    "not be negative": lambda value: not value < 0,
    "be finite and above 0": lambda value: 0 < value < float("inf"),
    "be finite and not negative": lambda value: 0 <= value < float("inf"),
    "lie in (0, 1)": lambda value: 0 < value < 1,
    "lie in [1, 2]": lambda value: 1 <= value <= 2,
    "lie in [0, 1)": lambda value: 0 <= value < 1,
    "lie in [0, 1]": lambda value: 0 <= value <= 1,
    "lie in (0, 1]": lambda value: 0 < value <= 1,
}


def check_choices(config: Any, prefix: str = "") -> None:
    """Check the fields of type `Literal[...]` of a dataclass. Raises RecipeError: a field has another value."""
    for name, known in _choices(config.__class__).items():
        value = getattr(config, name)
        if value not in known:
            raise RecipeError(f"`{prefix}{name}` cannot be {value!r}{nearest(str(value), list(map(str, known)))}")


def check_numbers(config: Any, prefix: str = "", /, **rules: str) -> None:
    """Check numbers of a dataclass, each by a rule of this file; None obeys all. Raises RecipeError: one breaks it."""
    for name, rule in rules.items():
        value = getattr(config, name)
        if value is not None and not _HOLDS[rule](value):
            raise RecipeError(f"`{prefix}{name}` must {rule}: got {value}")


def check_encoding(name: str) -> None:
    """Raises RecipeError: Python has no encoding of text of this name."""
    try:
        text = codecs.lookup(name)._is_text_encoding
    except (LookupError, ValueError):
        text = False
    if not text:
        raise RecipeError(f"`encoding` must be the name of an encoding, such as windows-1252 or utf-16: got {name!r}")


@cache
def _choices(kind: type) -> dict[str, tuple[object, ...]]:
    """Return the values of each field of type `Literal[...]` of a dataclass; `| None` adds None."""
    hints = get_type_hints(kind)
    choices = {}
    for field in fields(kind):
        parts = [part for part in (hints[field.name], *get_args(hints[field.name])) if get_origin(part) is Literal]
        if parts:
            more = (None,) if type(None) in get_args(hints[field.name]) else ()
            choices[field.name] = (*get_args(parts[0]), *more)
    return choices


class OneOf:
    """Marks a text field whose values are the keys of a table: `Annotated[str, OneOf(TABLE)]`. The table may grow."""

    def __init__(self, table: Mapping[str, object]) -> None:
        self.table = table

    def __get_pydantic_json_schema__(self, core: object, handler: object) -> dict[str, object]:
        return {"type": "string", "enum": list(self.table)}
