"""The project's exceptions and warnings, each one clear sentence; and the parts that messages share."""

from difflib import get_close_matches
from os import PathLike
from pathlib import Path


class AtentoError(Exception):
    """Something failed while running; the message says what, the rule and the value got. Exit status 1."""

    exit_status = 1


class AtentoWarning(UserWarning):
    """Something a user should know while the work goes on; the command line shows it as one line."""


class UsageError(AtentoError):
    """Wrong use, found before any work began. Exit status 2."""

    exit_status = 2


class RecipeError(UsageError):
    """A recipe or an override that cannot be right; names the key, the rule and where it stands."""


class DataError(UsageError):
    """Data found wrong; names file, line and rule."""


class TokenizerError(UsageError):
    """A tokenizer that is missing, malformed or not the model's own."""


class ModelError(UsageError):
    """A model that cannot be loaded as it stands."""


class CapabilityError(UsageError):
    """A model was asked for something its family cannot do; the message says what it can."""


class MissingPartError(UsageError):
    """An optional package is not installed; the message is the pip line that installs it."""


class CheckpointError(AtentoError):
    """A checkpoint that is truncated, altered or cannot be written."""


class TrainingError(AtentoError):
    """Training cannot go on (a loss that is not finite, say); names step and cause."""


class TrainingStopped(AtentoError):
    """Training was stopped by a signal, its checkpoint saved; the same command goes on. Exit status 75."""

    exit_status = 75


def nearest(name: str, known: list[str]) -> str:
    """The tail of an error message: the nearest known name, then all of them."""
    close = get_close_matches(name, known, n=1, cutoff=0.6)
    hint = f"; did you mean {close[0]!r}?" if close else "."
    return f"{hint} Known: {', '.join(sorted(known))}"


def counted(number: int, noun: str, plural: str | None = None) -> str:
    """A number with its noun: "1 text", "2 texts", "12,000 texts"; `plural` where an s is not enough."""
    return f"{number:,} {noun if number == 1 else plural or f'{noun}s'}"


def path_of(given: object, name: str, kind: str) -> Path:
    """The argument `name`, a file or a folder, as a path.

    Args:
        given: the argument's value.
        name: its name, for the message.
        kind: what it may be, for the message: "a folder", say.

    Raises:
        UsageError: it is neither text nor a path.
    """
    if not isinstance(given, str | PathLike):
        raise UsageError(f"`{name}` must be {kind}: got {type(given).__name__} {given!r:.40}")
    return Path(given)
