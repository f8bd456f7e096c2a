"""What a field of the decoding says of itself: its flag, the numbers that it takes, its name in requests."""

from collections.abc import Callable
from dataclasses import dataclass, field, fields
from functools import partial
from math import inf
from typing import Any

# what a number must ... -> whether one does; the bounds that a flag itself refuses to pass
RANGES: dict[str, tuple[Callable[[float], bool], float | None, float | None]] = {
    "be at least 1": (lambda x: x >= 1, 1, None),
    "not be negative": (lambda x: x >= 0, 0, None),
    "be finite and not negative": (lambda x: 0 <= x < inf, 0, None),
    "be above 0": (lambda x: 0 < x < inf, None, None),
    "lie in [0, 1]": (lambda x: 0 <= x <= 1, None, None),
    "lie in (0, 1]": (lambda x: 0 < x <= 1, None, None),
    "lie between 0 and 1": (lambda x: 0 < x < 1, None, None),
    "lie in [-50, 50]": (lambda x: -50 <= x <= 50, None, None),
    "lie in [-2, 2]": (lambda x: -2 <= x <= 2, -2, 2),
}


@dataclass(frozen=True)
class Option:
    """One option.

    Attributes:
        panel: the heading of its flag in the help; "": it has no flag among those of decoding.
        help: the text of the flag.
        rule: of `RANGES`, if it is a number.
        http: its name in requests by Hugging Face's names; True: its own; "": they cannot set it.
        metavar: what the help calls the value of a text.
        rank: flags of a panel with a higher one stand behind the others.
    """

    panel: str
    help: str = ""
    rule: str = ""
    http: str | bool = ""
    metavar: str = "TEXT"
    rank: int = 0


def option(panel: str, default: object, *about: Any, **more: Any) -> Any:
    """A field of a dataclass that is an option; arguments as in `Option`."""
    return field(default=default, metadata={"option": Option(panel, *about, **more)})


search, sampling, mbr = (
    partial(option, "Search"),
    partial(option, "Sampling", http=True),
    partial(option, "Minimum Bayes risk"),
)
words, draft, length = partial(option, "Words and tokens"), partial(option, "Draft"), partial(option, "Length")
PANELS = ("Search", "Sampling", "Minimum Bayes risk", "Words and tokens", "Draft", "Length")  # in the order of the help


def options_of(config: type) -> dict[str, Option]:
    """The options that are the fields of a dataclass, by name."""
    return {field.name: field.metadata["option"] for field in fields(config)}
