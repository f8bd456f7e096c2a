"""Warnings of the package as lines on standard error, at once; those about long texts counted over the whole input."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TextIO

import typer


@contextmanager
def warnings_told() -> Iterator[None]:
    """While this lasts, each `AtentoWarning` is one line `warning: ...`; other warnings are shown as they always are.

    Long texts are told before the work on them begins. Input that comes in windows may hold more of them later: those
    are added up and told in one line at the end.
    """
    from atento.errors import AtentoWarning, counted
    from atento.tasks.lengths import LongTextWarning

    long: list[LongTextWarning] = []

    def show(
        message: Warning | str,
        category: type[Warning],
        filename: str,
        lineno: int,
        file: TextIO | None = None,
        line: str | None = None,
    ) -> None:
        if not isinstance(message, AtentoWarning):
            usual(message, category, filename, lineno, file, line)
            return
        if isinstance(message, LongTextWarning):
            long.append(message)
        if not isinstance(message, LongTextWarning) or len(long) == 1:
            typer.echo(f"warning: {message}", err=True)

    with warnings.catch_warnings():
        usual: Any = warnings.showwarning
        warnings.simplefilter("always", AtentoWarning)
        warnings.showwarning = show
        yield
    if len(long) > 1:
        texts, longest = sum(one.long for one in long), max(one.longest for one in long)
        typer.echo(
            f"warning: in all {counted(texts, 'text')} of the input were longer than the {long[0].trained:,} tokens "
            f"that the model was trained on (the longest had {longest:,})",
            err=True,
        )
