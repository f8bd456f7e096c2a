"""What a command does with lines, apart from where they come from: its work, which workers of a cluster can do."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from atento.model import Model
    from atento.scale.line_blocks import Check


@dataclass(frozen=True)
class Work:
    """What a command does with the lines of a block.

    Attributes:
        answer: writes the outputs of some lines to standard output, given the model, the lines, the number of texts
            before them, and a list for the messages of bad lines (None: they are errors).
        ready: called with the model before the first line is read; raises CapabilityError if it cannot do the work.
        check: raises DataError for a line that the command cannot read.
        rows: the number of texts that the command makes of a line, where that is not 1.
        ending: extension of the parts; None: .jsonl with --json, else .txt.
        per_line: whether a part has a line for each line of the input.
    """

    answer: "Callable[[Model, list[str], int, list[str] | None], object]"
    ready: "Callable[[Model], object]"
    check: "Check | None" = None
    rows: Callable[[str], int] | None = None
    ending: str | None = None
    per_line: bool = True


class Cluster(Protocol):
    """What a command gets for `--cluster`: it hands over its work, here to workers, or in a worker to do it."""

    columns: tuple[str, ...]

    def run(self, work: Work) -> None:
        """Do the work of the command."""
        ...
