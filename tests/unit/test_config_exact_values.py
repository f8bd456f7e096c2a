"""Values of recipes that are taken without pydantic: it would take them too, as they are."""

import re
from typing import Annotated, Literal

import pytest
from pydantic import Field

from atento.config.literals import OneOf
from atento.config.reading.schema import _adapter, _exactly

HINTS: list[object] = [str, int, float, bool, type(None), str | None, int | None, int | float, Literal["a", "b"]]
HINTS += [Literal["a", "b"] | None, tuple[str, ...], tuple[int, ...] | None, tuple[float, float], dict[str, int]]
HINTS += [Annotated[str, OneOf({"a": 1})], Annotated[int, Field(ge=2)], Literal[1, 2], tuple[Literal["a"], ...] | str]
VALUES: list[object] = [None, True, False, 0, 1, -3, 2.0, 1.5, float("inf"), float("nan"), "", "a", "c", "1", "\ud800"]
VALUES += [(), ("a",), ("a", "c"), (1, 2), (1, True), (1.0, 2.0), (1, "a"), ("\udfff",), ["a"], {}, {"a": 1}, b"a"]


@pytest.mark.parametrize("hint", HINTS, ids=lambda hint: re.sub(r" at 0x\w+", "", str(hint)))
def test_what_is_taken_at_once_is_what_pydantic_returns(hint: object) -> None:
    for value in filter(lambda value: _exactly(value, hint), VALUES):
        found = _adapter(hint).validate_python(value)
        assert (type(found), repr(found)) == (type(value), repr(value))


def test_most_values_are_taken_at_once() -> None:
    """So that a start makes no adapter: `learning_rate: 1`, a mapping and a wrong value are left to pydantic."""
    taken = [(hint, value) for hint in HINTS for value in VALUES if _exactly(value, hint)]
    assert {("a", str), (1, int), (1.5, float), (None, type(None)), (("a", "c"), tuple[str, ...])} <= {
        (value, hint) for hint, value in taken if not isinstance(value, dict | list)
    }
    assert not any(_exactly(value, hint) for hint, value in [(float, 1), (int, True), (Literal["a"], "b"), (str, 1)])
