"""A job that waits in a worker process."""

import json
import time
from dataclasses import dataclass, field
from typing import Any

from atento_serve.jobs import Job


@dataclass
class Waiting:
    """A job with its items, which are within the limits of length, and the number of their tokens."""

    job: Job
    items: list[Any]
    tokens: int
    arrived: float = field(default_factory=time.monotonic)

    @property
    def key(self) -> tuple[str, str]:
        """Jobs with the same key can share a batch."""
        return self.job.verb, json.dumps(self.job.options, sort_keys=True)

    @property
    def is_late(self) -> bool:
        """Whether its deadline has passed."""
        return time.monotonic() > self.job.deadline
