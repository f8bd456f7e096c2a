"""Gates: `--fail-under NAME=VALUE`, which ends a command with status 3 where a score is worse."""

import math
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress

import typer

from atento.base.errors import UsageError
from atento.base.terminal import echo

Gates = list[tuple[str, float]]


class GateMissed(typer.Exit):
    """A score is worse than its limit: exit status 3."""

    def __init__(self) -> None:
        super().__init__(3)


def parse_gates(texts: Iterable[str] | None) -> Gates:
    """The names and limits of `--fail-under`.
    Raises UsageError: a text is not NAME=VALUE, or the value is no number.
    """
    gates: Gates = []
    for text in texts or []:
        name, _, value = text.rpartition("=")
        limit = math.nan
        with suppress(ValueError):
            limit = float(value)
        if not name or math.isnan(limit):  # no score is below NaN
            raise UsageError(f"--fail-under takes METRIC=VALUE, such as bleu=25: got {text!r}")
        gates.append((name, limit))
    return gates


def hold_gates(gates: Gates, values: Mapping[str, float], lower_is_better: Callable[[str], bool]) -> None:
    """Print the missed gates to standard error. Raises GateMissed: a value is worse than its limit."""
    missed = []
    for name, limit in gates:
        value, lower = values[name], lower_is_better(name)
        if not (value <= limit if lower else value >= limit):
            missed.append(f"{name} {_rounded(value, limit)} {'>' if lower else '<'} {limit}")
    if missed:
        echo(f"gate missed: {', '.join(missed)}", err=True)
        raise GateMissed


def _rounded(value: float, limit: float) -> str:
    """The value with two digits after the point, or as many as show that it is not the limit."""
    return next((text for digits in range(2, 17) if float(text := f"{value:.{digits}f}") != limit), repr(value))
