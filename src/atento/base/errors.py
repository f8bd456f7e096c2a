"""Exceptions and warnings of the package, and parts of messages."""

import re
from collections.abc import Callable, Sequence
from difflib import get_close_matches
from itertools import islice
from pathlib import Path
from unicodedata import is_normalized


class AtentoError(Exception):
    """A failure while running; the message names the thing, the rule and the value got. Exit status 1."""

    exit_status = 1


class BadLine(str):
    """The empty line in the place of a bad one: it has no output, also where an empty text has one."""


class AtentoWarning(UserWarning):
    """A warning to the user; the command line prints it as one line."""


class ReadingNotice(AtentoWarning):
    """How a file is read, as found in it; the command line prints it once, without the word warning."""


class ScoreWarning(AtentoWarning):
    """A score that says little, since the data do not vary; a command says each once."""


class LongTextWarning(AtentoWarning):
    """Texts are longer than those that the model was trained on.

    Attributes:
        long: number of these texts.
        total: number of all texts.
        longest: tokens of the longest text.
        trained: maximum tokens of a text in training.
        result: what the model computes from the texts.
    """

    def __init__(self, long: int, total: int, longest: int, trained: int, result: str = "outputs") -> None:
        self.long, self.total, self.longest, self.trained, self.result = long, total, longest, trained, result
        super().__init__(
            f"{counted(long, 'text')} of {total:,} {'is' if long == 1 else 'are'} longer than the {trained:,} tokens "
            f"that the model was trained on (the longest has {longest:,}): such {result} may be wrong, and take long"
        )


class UsageError(AtentoError):
    """Wrong usage, found before any work. Exit status 2."""

    exit_status = 2


class RecipeError(UsageError):
    """An invalid recipe or override; the message names the key, the rule and the line."""


class DataError(UsageError):
    """Invalid data; the message names file, line and rule."""


class TokenizerError(UsageError):
    """A tokenizer that is missing or malformed, or does not match the model."""


class ModelError(UsageError):
    """A model that cannot be loaded."""


class CapabilityError(UsageError):
    """A model does not support what is requested; the message says what it supports."""


class MissingPartError(UsageError):
    """An optional package is not installed; the message has the pip command that installs it."""


class CheckpointError(AtentoError):
    """A checkpoint that is truncated, altered or cannot be written."""


class TrainingError(AtentoError):
    """Training cannot continue, for example after a loss that is not finite; the message names step and cause."""


class TrainingStopped(AtentoError):
    """Training was stopped by a signal after saving a checkpoint; the same command resumes it. Exit status 75."""

    exit_status = 75


def reason_of(error: Exception) -> str:
    """What an exception says, for a message about a file; of a key that is not there, that the file lacks it."""
    return f"it lacks the key {error.args[0]!r}" if isinstance(error, KeyError) else str(error)


_PARTS = re.compile(r"(\d+)")  # of a name: A2 stands before A10
_LISTED = 60  # names in a message, such as those of labels
_SHORT = 12  # of names that a file has, which may be longer
_SHOWN = 40  # characters of such a name


def nearest(name: str, known: list[str], meant: str | None = None) -> str:
    """Return the end of an error message: the most similar known name, or `meant` if it begins with one, then the known
    names, at most `_LISTED`."""
    close = [meant] if meant and meant.split()[0] in known else get_close_matches(name, known, n=1, cutoff=0.6)
    hint = f"; did you mean {_told(close[0], name)}?" if close else "."
    names = sorted(known, key=lambda other: [int(part) if part.isdecimal() else part for part in _PARTS.split(other)])
    more = f" and {len(names) - _LISTED:,} more" if len(names) > _LISTED else ""
    return f"{hint} Known: {', '.join(names[:_LISTED])}{more}"


def listed(name: str, known: Sequence[str], *, what: str = "the columns") -> str:
    """Return the end of an error message about a name that a file lacks: the most similar one, then a few of all.

    Args:
        name: what was asked for.
        known: what the file has.
        what: these, in the message.
    """
    lower = [other for other in known if other.strip().casefold() == name.strip().casefold() and other != name]
    best = lower or get_close_matches(name, known, n=1, cutoff=0.6)
    hint = f"; did you mean {_short(best[0])}?" if best else ""
    shown = ", ".join(_short(other) for other in known[:_SHORT])
    more = f" and {len(known) - _SHORT:,} more" if len(known) > _SHORT else ""
    return f"{hint}; {what} are {shown or 'none'}{more}"


def similar_file(path: Path, is_kind: Callable[[Path], bool] = Path.is_file) -> str:
    """Return the end of a message about a missing file: that of its folder with the most similar name, if any."""
    try:
        names = [other.name for other in islice(path.parent.iterdir(), 1000) if is_kind(other)]
    except (OSError, ValueError):
        return ""
    close = get_close_matches(path.name, names, n=1, cutoff=0.7)
    return f"; did you mean {_told(close[0], path.name)}?" if close else ""


def _told(name: str, other: str) -> str:
    """A name in quotes; with its codes where one of the two has other forms of letters, and they may look the same."""
    return repr(name) if is_normalized("NFC", name) and is_normalized("NFC", other) else ascii(name)


def _short(name: str) -> str:
    return repr(name if len(name) <= _SHOWN else f"{name[: _SHOWN - 1]}…")


def install_hint(extra: str) -> str:
    """Return the command that installs an extra of the package into a clone; there is no release yet."""
    return f"pip install -e '.[{extra}]' in your clone of Atento"


def counted(number: int, noun: str, plural: str | None = None) -> str:
    """Return a number with its noun: "1 text", "2 texts", "12,000 texts"; `plural` if it is not the noun with an s."""
    return f"{number:,} {noun if number == 1 else plural or f'{noun}s'}"
