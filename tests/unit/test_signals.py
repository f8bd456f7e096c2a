"""Stopping politely: the first signal raises a flag, the second does what it does, and the handlers come back."""

import os
import signal
import threading
import time
from collections.abc import Callable

import pytest

from atento.base.processes import ended_by
from atento.training.progress import STOP_SIGNALS, StopRequest


def in_child(work: Callable[[], object]) -> int:
    """How a forked child that does this work ends: its exit status, negative for a signal."""
    pid = os.fork()
    if pid == 0:
        status = 3
        try:
            work()
            status = 0
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


@pytest.mark.parametrize("number", STOP_SIGNALS)
def test_r7_the_first_signal_only_raises_the_flag(number: signal.Signals) -> None:
    def work() -> None:
        with StopRequest() as stop:
            assert stop.by is None
            os.kill(os.getpid(), number)
            assert stop.by is number and stop.by.name == number.name

    assert in_child(work) == 0


def test_a_signal_without_a_name_has_its_number() -> None:
    assert [ended_by(number) for number in (15, 40)] == ["SIGTERM", "signal 40"]


@pytest.mark.covering
@pytest.mark.parametrize("first", STOP_SIGNALS)
@pytest.mark.parametrize("second", STOP_SIGNALS)
def test_r7_the_second_ends_the_process_as_it_would_end_any(first: signal.Signals, second: signal.Signals) -> None:
    def work() -> None:
        with StopRequest():
            os.kill(os.getpid(), first)
            os.kill(os.getpid(), second)
            time.sleep(10)

    assert in_child(work) == -second


def test_the_handlers_come_back_whatever_happens() -> None:
    before = [signal.getsignal(number) for number in STOP_SIGNALS]
    with pytest.raises(RuntimeError), StopRequest():
        assert all(signal.getsignal(number) not in before for number in STOP_SIGNALS)
        raise RuntimeError
    assert [signal.getsignal(number) for number in STOP_SIGNALS] == before
    with StopRequest() as outer, StopRequest() as inner:
        assert outer.by is inner.by is None
    assert [signal.getsignal(number) for number in STOP_SIGNALS] == before


def test_an_ignored_signal_is_ignored_again_afterwards_and_another_thread_watches_nothing() -> None:
    def work() -> None:
        signal.signal(signal.SIGUSR1, signal.SIG_IGN)
        with StopRequest() as stop:
            os.kill(os.getpid(), signal.SIGUSR1)
            assert stop.by is signal.SIGUSR1
        os.kill(os.getpid(), signal.SIGUSR1)

    assert in_child(work) == 0
    before, seen = [signal.getsignal(number) for number in STOP_SIGNALS], []

    def work() -> None:
        with StopRequest() as stop:
            seen.append((stop.by, [signal.getsignal(number) for number in STOP_SIGNALS]))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [(None, before)]
