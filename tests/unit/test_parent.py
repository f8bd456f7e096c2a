"""A process ends when the one that has started it is killed."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

CHILD = """
import sys, time
from pathlib import Path
from atento.training.replica.parent import end_with_parent
end_with_parent()
Path(sys.argv[1]).touch()
time.sleep(60)
"""
PARENT = """
import os, subprocess, sys
os.environ["ATENTO_LAUNCHER_PID"] = str(os.getpid())
child = subprocess.Popen([sys.executable, "-c", sys.argv[1], sys.argv[2]])
print(child.pid, flush=True)
child.wait()
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="Linux tells a process of its parent's end")
def test_a_process_ends_when_its_launcher_is_killed(tmp_path: Path) -> None:
    ready = tmp_path / "ready"
    command = [sys.executable, "-c", PARENT, CHILD, str(ready)]
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


def ended(pid: int) -> bool:
    """Whether a process has ended; nobody may have asked for its status yet."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def wait_until(condition: object) -> None:
    deadline = time.monotonic() + 30
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < deadline
        time.sleep(0.02)
