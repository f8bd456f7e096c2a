"""A process gets one SIGTERM when the one that has started it is killed."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from atento.training.replica import environment as module

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
        assert parent.stdout is not None
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
    monkeypatch.setenv(module.LAUNCHER, "1" if os.getppid() != 1 else "2")
    with pytest.raises(SystemExit) as end:
        module.end_with_parent()
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
