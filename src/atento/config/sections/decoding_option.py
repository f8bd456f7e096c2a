"""What a field of the decoding says of itself: its flag, its name in requests."""

from dataclasses import dataclass, field, fields
from functools import partial
from typing import Any


@dataclass(frozen=True)
class Option:
    """One option.

    Attributes:
        panel: the heading of its flag in the help; "": it has no flag among those of decoding.
        help: the text of the flag.
        http: its name in requests by Hugging Face's names; True: its own; "": they cannot set it.
        metavar: what the help calls the value of a text.
        rank: flags of a panel with a higher one stand behind the others.
    """

    panel: str
    help: str = ""
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
