"""Print warnings of the package as lines on standard error; warnings about long texts are counted."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO

from atento.terminal import echo


@contextmanager
def warnings_as_lines() -> Iterator[None]:
    """Print each `AtentoWarning` as a line `warning: ...` inside this context; other warnings are unchanged.

    The first warning about long texts is printed at once. If the input is read in windows, later ones are added up and
    printed as one line at the end.
    """
    from atento.errors import AtentoWarning, counted
    from atento.tasks.length_warnings import LongTextWarning

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
            default_show(message, category, filename, lineno, file, line)
            return
        if isinstance(message, LongTextWarning):
            long.append(message)
        if not isinstance(message, LongTextWarning) or len(long) == 1:
            echo(f"warning: {message}", err=True)

    with warnings.catch_warnings():
        default_show = warnings.showwarning
        warnings.simplefilter("always", AtentoWarning)  # Python shows an equal warning once a place otherwise
        warnings.showwarning = show
        yield
    if len(long) > 1:
        texts, longest = sum(warning.long for warning in long), max(warning.longest for warning in long)
        echo(
            f"warning: in all {counted(texts, 'text')} of the input were longer than the {long[0].trained:,} tokens "
            f"that the model was trained on (the longest had {longest:,})",
            err=True,
        )
