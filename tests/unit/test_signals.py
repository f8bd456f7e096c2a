"""Processes end politely: one signal raises a flag, a second ends, and one SIGTERM comes when a launcher is killed."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from atento.base.processes import ended_by
from atento.training.progress import STOP_SIGNALS, StopRequest
from atento.training.replica import environment


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


def test_a_signal_without_a_name_has_its_number() -> None:
    assert [ended_by(number) for number in (15, 40)] == ["SIGTERM", "signal 40"]


@pytest.mark.covering
@pytest.mark.parametrize("first", STOP_SIGNALS)
@pytest.mark.parametrize("second", STOP_SIGNALS)
def test_r7_the_first_raises_the_flag_alone_and_the_second_ends_the_process_as_it_would_end_any(first, second) -> None:
    def work() -> None:
        with StopRequest() as stop:
            assert stop.by is None
            os.kill(os.getpid(), first)
            assert stop.by is first and stop.by.name == first.name
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


CHILD = """
import os, signal, sys, time
from pathlib import Path
from atento.training.replica.environment import end_with_parent
got = []
signal.signal(signal.SIGTERM, lambda number, frame: got.append(number))
read, write = os.pipe()
os.set_blocking(write, False)
signal.set_wakeup_fd(write)  # gets a byte for each signal, also where Python calls the handler once for several
end_with_parent()
Path(sys.argv[1]).touch()
while not got:
    time.sleep(0.02)
time.sleep(1.0)
Path(sys.argv[2]).write_text(str(len(os.read(read, 100))))
"""
PARENT = """
import os, subprocess, sys, threading, time
os.environ["ATENTO_LAUNCHER_PID"] = str(os.getpid())
child = subprocess.Popen([sys.executable, "-c", *sys.argv[1:]])
print(child.pid, flush=True)
for _ in range(200):
    threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
child.wait()
"""


def test_a_process_gets_one_signal_when_its_launcher_is_killed(tmp_path: Path) -> None:
    """Also from a launcher of several threads, for each of which Linux would send one (`PR_SET_PDEATHSIG`)."""
    ready, count = tmp_path / "ready", tmp_path / "count"
    command = [sys.executable, "-c", PARENT, CHILD, str(ready), str(count)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as parent:
        child = int(parent.stdout.readline())
        wait_until(ready.exists)
        parent.kill()
    try:
        wait_until(lambda: ended(child))
    finally:
        if not ended(child):
            os.kill(child, signal.SIGKILL)
    assert count.read_text() == "1"


def test_a_process_whose_launcher_has_ended_before_does_not_begin(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(environment.LAUNCHER, "1" if os.getppid() != 1 else "2")
    with pytest.raises(SystemExit) as end:
        environment.end_with_parent()
    assert end.value.code == 128 + signal.SIGTERM


def ended(pid: int) -> bool:
    """Whether a process has ended; nobody may have asked for its status yet."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def wait_until(condition: object) -> None:
    deadline = time.monotonic() + 60
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < deadline
        time.sleep(0.02)
