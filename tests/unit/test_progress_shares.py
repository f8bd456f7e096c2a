"""Progress of commands that go through texts: shares from the batches, lines at most every so often (found.md)."""

import sys
import threading
from collections.abc import Callable

import pytest
import torch

from atento.tasks.length_batching import batches_reported, length_batches, run_in_batches
from atento_cli import command_progress as module
from atento_cli.command_progress import Progress
from failing import fails

LENGTHS = [3, 0, 5, 2, 9, 1]
CPU = torch.device("cpu")


def passes(lengths: list[int], budget: int, compute: Callable[[list[int]], list[int]] = list) -> int:
    """Compute all batches; how many rows there were."""
    return len(list(run_in_batches(lengths, budget, compute, CPU)))


def broken(rows: list[int]) -> list[int]:
    raise ValueError("broken")


def test_batches_report_their_real_tokens_and_no_other_loop_does() -> None:
    seen: list[tuple[int, int]] = []
    with batches_reported(lambda done, total: seen.append((done, total))):
        assert passes([4, 4], 4, lambda rows: [passes([7, 7, 7], 7) for _ in rows]) == 2
        thread = threading.Thread(target=passes, args=([7, 7], 7))
        thread.start()
        thread.join()
    passes([7, 7], 7)
    assert seen == [(4, 8), (8, 8)]
    seen.clear()
    with batches_reported(lambda done, total: seen.append((done, total))):
        fails(ValueError, "broken", passes, [4, 4], 4, broken)
        passes([5], 4)
    assert seen == [(5, 5)]
    seen.clear()
    with batches_reported(lambda done, total: seen.append((done, total))):
        rows = [row for row, _ in run_in_batches(LENGTHS, 10, list, CPU, extra=2)]
    assert length_batches(LENGTHS, 10, extra=2) == [[4], [2], [0, 3], [5]] and rows == [4, 2, 0, 3, 5]
    assert seen == [(9, 20), (14, 20), (19, 20), (20, 20)]


class Clock:
    """The time, as a test sets it."""

    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(module, "time", made)
    return made


def test_a_line_every_half_minute_with_the_time_left_or_a_count_and_none_of_short_work(clock, capsys) -> None:
    with Progress("translate") as progress:
        for seconds, done in ((10, 1), (29, 3), (31, 4), (40, 5), (59, 6), (62, 8), (100, 10)):
            clock.now = 100.0 + seconds
            progress.share(done * 100, 1000)
    printed = capsys.readouterr()
    assert printed.out == ""
    shares = ("40% done, 46 s", "80% done, 15 s", "100% done, 0 s")
    assert printed.err.splitlines() == [f"translate: {share} left" for share in shares]
    with Progress("embed") as progress:
        clock.now += 29.9
        progress.share(0, 0)
        progress.count("2 lines")
    assert capsys.readouterr() == ("", "")
    endless = Progress("translate", bar=False)
    clock.now += 31
    endless.count("1,024 lines")
    assert capsys.readouterr() == ("", "translate: 1,024 lines done\n")


@pytest.mark.parametrize("term", ["dumb", "xterm"])
def test_a_bar_is_drawn_on_a_terminal_alone(monkeypatch: pytest.MonkeyPatch, term: str) -> None:
    monkeypatch.setenv("TERM", term)
    assert Progress("embed")._bar is None  # no terminal here
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    with Progress("embed") as progress:
        assert (progress._bar is not None) == (term == "xterm")
    assert Progress("embed", bar=False)._bar is None
