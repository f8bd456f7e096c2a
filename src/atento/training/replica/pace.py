"""The pace of processes: which one the others wait for."""

import statistics
from collections.abc import Sequence

UPDATES = 10  # that are measured, besides the first one, in which kernels are compiled
SLOW = 2.0  # times the usual pace


class Pace:
    """The seconds that each process takes for its parts of updates.

    Args:
        size: number of processes.
    """

    def __init__(self, size: int) -> None:
        self.updates = 0
        self.parts, self.seconds = [0] * size, [0.0] * size
        self.reported = False

    def add(self, computed: Sequence[tuple[int, float]]) -> None:
        """Take in the number of parts of an update, and the seconds, of each process."""
        self.updates += 1
        if self.updates > 1:
            for rank, (parts, seconds) in enumerate(computed):
                self.parts[rank] += parts
                self.seconds[rank] += seconds

    def slow_process(self) -> str | None:
        """Return a sentence about a process that takes twice as long for a part as the others, once."""
        paces = [seconds / parts for parts, seconds in zip(self.parts, self.seconds) if parts]
        if self.reported or self.updates <= UPDATES or len(paces) < 2:
            return None
        slowest = max(paces)
        usual = statistics.median(pace for pace in paces if pace is not slowest)  # of the others
        if slowest < SLOW * usual:
            return None
        self.reported = True
        rank = next(r for r, parts in enumerate(self.parts) if parts and self.seconds[r] / parts == slowest)
        return (
            f"process {rank} takes {slowest * 1e3:,.0f} ms for a part of an update, and the others {usual * 1e3:,.0f} "
            "ms: they wait for it"
        )
