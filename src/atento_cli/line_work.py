"""What a command does with lines, apart from where they come from: its work, which workers of a cluster can do."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from atento.model import Model
    from atento_cli.scale.line_blocks import Check


@dataclass(frozen=True)
class Work:
    """What a command does with the lines of a block."""

    # writes the outputs of some lines to standard output, given the model, the lines, the number of texts before them,
    # and a list for the messages of bad lines (None: they are errors)
    answer: "Callable[[Model, list[str], int, list[str] | None], object]"
    # called with the model before the first line is read; raises CapabilityError if it cannot do the work
    ready: "Callable[[Model], object]"
    check: "Check | None" = None  # raises DataError for a line that the command cannot read
    # the number of texts that the command makes of a line, where that is not 1
    rows: Callable[[str], int] | None = None
    ending: str | None = None  # extension of the parts; None: .jsonl with --json, else .txt
    per_line: bool = True  # whether a part has a line for each line of the input


class Cluster(Protocol):
    """What a command gets for `--cluster`: it hands over its work, here to workers, or in a worker to do it."""

    columns: tuple[str, ...]

    def run(self, work: Work) -> None:
        """Do the work of the command."""
        ...
