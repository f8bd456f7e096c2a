"""What a person sees of long work: lines on standard error and in the log, whoever listens or not."""

import io
import os
import re
import sys
from pathlib import Path

import pytest

from atento.training.progress import Reporter, describe
from failing import fails

RATES = {"learning_rate": 0.00123, "tokens_per_second": 12345.6}
TRAIN = {"event": "train", "step": 50, "loss": 3.14159, "nll": 2.71828, **RATES}
VALID = {"event": "valid", "step": 500, "loss": 2.5, "nll": 2.25, "bleu": 12.345, "chrf": 40.0, "seconds": 3.0}


def test_events_are_lines_on_standard_error_and_in_the_log_and_what_is_left_goes_by_this_process(capsys) -> None:
    assert describe(TRAIN) == "step 50: loss 3.142, nll 2.718, learning rate 1.23e-03, 12,346 tokens/s"
    assert describe(VALID) == "step 500: validation nll 2.250, bleu 12.35, chrf 40.00"
    log = io.StringIO()
    reporter = Reporter(100, log=log, bar=False)
    for text in ("plain", "[bold]not markup[/bold] :cat: {x} 100 %", "ação → 😀"):
        reporter.line(text)
    reporter.step(50)
    reporter.close()
    printed = capsys.readouterr()
    assert printed.out == "" and printed.err == "plain\n[bold]not markup[/bold] :cat: {x} 100 %\nação → 😀\n"
    for line, text in zip(log.getvalue().splitlines(), printed.err.splitlines(), strict=True):
        assert re.fullmatch(rf"\d{{4}}-\d\d-\d\d \d\d:\d\d:\d\d {re.escape(text)}", line)
    for bar in (False, True):
        reporter = Reporter(10, bar=bar)
        reporter.line("word " * 100)
        reporter.close()
        assert "word " * 99 in capsys.readouterr().err
    # Begun at step 0 `seconds` ago, now at 50
    for seconds, total, said in (
        (10, 100, "10 s left"),
        (100, 100, "1 min 40 s left"),
        (100, 10_000, "5 h 31 min left"),
        (1, 50, "0 s left"),
    ):
        reporter = Reporter(total, bar=False)
        reporter.started -= seconds
        reporter.event(TRAIN)
        reporter.event(VALID)
        assert capsys.readouterr().err == f"{describe(TRAIN)}, {said}\n{describe(VALID)}\n"
    reporter = Reporter(100, done=40, bar=False)
    reporter.started -= 20
    reporter.event(TRAIN)  # ten steps in 20 s, fifty to go
    assert "1 min 40 s left" in capsys.readouterr().err
    reporter = Reporter(100, done=50, bar=False)
    reporter.event(TRAIN)  # no step yet: whatever it says, it says it
    assert " left" in capsys.readouterr().err


def test_a_full_disk_ends_the_log_and_nothing_else(capsys: pytest.CaptureFixture[str]) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("needs /dev/full")
    with Path("/dev/full").open("w", encoding="utf-8") as log:
        reporter = Reporter(10, log=log, bar=False)
        reporter.line("one")
        reporter.line("two")
        assert reporter.log is None
        printed = capsys.readouterr().err
        assert printed.count("warning: the log cannot be written: ") == 1 and "one\n" in printed and "two\n" in printed
        fails(OSError, "", log.flush)  # what it could not write is still in its buffer
        os.dup2(os.open(os.devnull, os.O_WRONLY), log.fileno())


def test_without_anybody_listening_the_log_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = os.pipe()
    os.close(ours)
    with os.fdopen(theirs, "w", encoding="utf-8") as broken:
        for stream in (broken, None):
            log = io.StringIO()
            monkeypatch.setattr(sys, "stderr", stream)
            reporter = Reporter(10, log=log, bar=False)
            reporter.line("one")
            reporter.step(1)
            reporter.event(TRAIN)
            reporter.event(VALID)
            reporter.close()
            assert log.getvalue().count("one\n") == 1 and "validation nll" in log.getvalue()
        os.dup2(os.open(os.devnull, os.O_WRONLY), broken.fileno())


class Clock:
    """A clock that the test moves on."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now


def test_a_first_line_comes_early_whatever_log_every_is(monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    """A recipe of 2,000 steps of 3 s each: told within 20 s, with the time left and a warning from two hours on."""
    import atento.training.progress as module

    for seconds, warned in ((3.0, False), (5.0, True)):
        clock = Clock()
        monkeypatch.setattr(module.time, "monotonic", clock.monotonic)
        reporter = Reporter(2000, bar=False)
        for step in range(1, 11):
            clock.now += seconds + 4.0 * (step == 1)  # the first takes longer, and does not count
            reporter.step(step)
            said = capsys.readouterr().err
            if said:
                break
        assert clock.now <= 20 and said.startswith(f"step {step} of 2000: {seconds:.2g} s a step, about ")
        left = module.duration(seconds * (2000 - step))
        assert f"about {left} left\n" in said
        assert ("warning: about" in said) == warned and ("fewer `training.steps`" in said) == warned
        clock.now += 100
        reporter.step(step + 1)
        assert capsys.readouterr().err == ""  # once
