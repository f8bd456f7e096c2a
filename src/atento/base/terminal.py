"""What a terminal is shown: text of models, data and names cannot steer it. Files and pipes get text as it is."""

import logging
import re
import sys
from typing import TextIO

# C0 and C1 but newline and tab, the overrides of the direction of writing, and bytes of names that are not UTF-8
_CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202d\u202e\ud800-\udfff]")


def printable(text: str) -> str:
    r"""Return a text with its control characters as escapes: ESC as `\u001b`, which is valid in JSON too."""
    return _CONTROLS.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def write(text: str, stream: TextIO | None = None) -> None:
    """Write a text to a stream, standard output if none is given; on a terminal, `printable`."""
    stream = stream or sys.stdout
    stream.write(printable(text) if stream.isatty() else text)


def echo(text: str, *, err: bool = False, nl: bool = True) -> None:
    """Write a text and a newline to standard output or, with `err`, standard error, at once."""
    stream = sys.stderr if err else sys.stdout
    write(f"{text}\n" if nl else text, stream)
    stream.flush()


class _Log(logging.Handler):
    """Shows what is logged on standard error."""

    def emit(self, record: logging.LogRecord) -> None:
        try:
            echo(self.format(record), err=True)
        except Exception:
            self.handleError(record)


def show_log() -> None:
    """Show what this process logs, which are warnings, as all other warnings are shown."""
    logging.basicConfig(format="warning: %(message)s", handlers=[_Log()])
