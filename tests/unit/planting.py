"""Faults put into the library for the length of a test: in every place that holds what is replaced."""

import sys
from collections.abc import Callable
from typing import Any

import pytest

from atento.base.precision import threads
from atento_lab.notes.table import ROWS, run

Patch = pytest.MonkeyPatch
Fault = Callable[[Patch], None]


def everywhere(patch: Patch, right: Any, wrong: Any) -> None:
    """Put `wrong` in the place of `right` in every module of the library that has it, and in its tables by name."""
    found = 0
    for module in [one for name, one in sys.modules.items() if name.startswith("atento")]:
        for name, value in list(vars(module).items()):
            if value is right:
                patch.setattr(module, name, wrong)
                found += 1
            elif isinstance(value, dict) and not name.startswith("__"):
                for key in [key for key, one in value.items() if one is right]:
                    patch.setitem(value, key, wrong)
                    found += 1
    assert found, right


def wrapped(patch: Patch, owner: Any, name: str, change: Callable[..., Any]) -> None:
    """Replace `owner.name` by `change(right, *arguments)`."""
    right = getattr(owner, name)
    patch.setattr(owner, name, lambda *arguments, **named: change(right, *arguments, **named))


def instead(right: Any, change: Callable[..., Any]) -> Fault:
    """The fault that calls `change(right, *arguments)` wherever the library calls `right`."""
    return lambda patch: everywhere(patch, right, lambda *arguments, **named: change(right, *arguments, **named))


def around(owner: Any, name: str, change: Callable[..., Any]) -> Fault:
    """The fault of `wrapped`."""
    return lambda patch: wrapped(patch, owner, name, change)


def put(owner: Any, name: str, wrong: Any) -> Fault:
    """The fault that has `wrong` for `owner.name`."""
    return lambda patch: patch.setattr(owner, name, wrong)


def by_row(faults: dict[str, Fault]) -> Any:
    """A test of each fault with each row named behind it, such as `"smoothed E8"`; slow where the row is."""
    cases = [(name, row, faults[names]) for names in faults for name, *rows in [names.split()] for row in rows]
    slow = {"C18": pytest.mark.slow}
    found = [pytest.param(fault, row, id=f"{name}-{row}", marks=slow.get(row, ())) for name, row, fault in cases]
    return pytest.mark.parametrize(("fault", "row"), found)


def assert_seen(fault: Fault, row: str, breaks: tuple[Fault, ...] = ()) -> None:
    """The row, run now, reports a failure; and unless the fault is one that `breaks` calls, it does so by its value."""
    with threads(1):
        (result,) = run([ROWS[row]])
    assert not result.finding.passed, f"{row} did not see it: {result.finding.value}"
    if fault not in breaks:
        assert result.finding.expected != "a finding", f"{row} broke: {result.finding.value}"
