"""What the launcher says to each process by environment variables, as torchrun sets them."""

import os


def rank() -> int:
    """The number of this process among all that train together, from 0; 0 if it trains alone."""
    return int(os.environ.get("RANK", "0"))


def world_size() -> int:
    """The number of processes that train together; 1 if no launcher started this one."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def local_rank() -> int:
    """The number of this process among those of its machine, from 0; it trains on that GPU."""
    return int(os.environ.get("LOCAL_RANK", str(rank())))


def launched() -> bool:
    """Whether a launcher started this process: torchrun, or `atento train --nproc`."""
    return "RANK" in os.environ and "WORLD_SIZE" in os.environ


def restarted() -> bool:
    """Whether the launcher has started this process again after a failure."""
    return os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") != "0"
