"""Limits written as NAME=VALUE."""

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

from atento.errors import UsageError, nearest
from atento_serve.settings import Limits


def limits_from(values: Mapping[str, Any], words: Sequence[str]) -> Limits:
    """The limits with these values and those of `NAME=VALUE` words.

    Raises:
        UsageError: no such limit, or a value of the wrong type or out of range.
    """
    changed = dict(values)
    known = {limit.name: limit for limit in fields(Limits)}
    for word in words:
        name, _, text = word.partition("=")
        if name not in known:
            raise UsageError(f"there is no limit {name!r}{nearest(name, list(known))}")
        changed[name] = _value(name, text, is_float=known[name].type is float)
    return Limits(**changed)


def _value(name: str, text: str, *, is_float: bool) -> Any:
    if name == "truncate":
        return text
    try:
        return float(text) if is_float else int(text)
    except ValueError:
        kind = "a number" if is_float else "a whole number"
        raise UsageError(f"the limit `{name}` must be {kind}: got {text!r}") from None
