"""The suites by name, and their rows by the names that a user types."""

from collections.abc import Sequence

from atento.base.errors import UsageError, nearest
from atento_cli.suites.glue_tasks import GLUE
from atento_cli.suites.portuguese_tasks import PORTUGUESE
from atento_cli.suites.row import Row, Suite

SUITES: dict[str, Suite] = {suite.name: suite for suite in (GLUE, PORTUGUESE)}


def suite_named(name: str) -> Suite:
    """The suite of that name. Raises UsageError: there is none."""
    if name not in SUITES:
        raise UsageError(f"unknown table {name!r}{nearest(name, list(SUITES))}")
    return SUITES[name]


def rows_named(suite: Suite, names: str | Sequence[str] | None) -> tuple[Row, ...]:
    """The rows of a suite with these names, in the order of the suite; all of them for None.

    Args:
        names: a list, or one text with commas; upper and lower case do not matter.

    Raises UsageError: a name that the suite does not have.
    """
    if names is None:
        return suite.rows
    listed = names.split(",") if isinstance(names, str) else list(names)
    known = {row.name.lower(): row for row in suite.rows}
    for name in listed:
        if name.strip().lower() not in known:
            raise UsageError(f"unknown task {name!r}{nearest(name, [row.name for row in suite.rows])}")
    chosen = {name.strip().lower() for name in listed}
    return tuple(row for row in suite.rows if row.name.lower() in chosen)
