"""A child process: a fresh interpreter that is sent messages, answers them, and ends with this process."""

import os
import signal
import subprocess
import sys
from contextlib import suppress
from typing import BinaryIO, cast

_HEADER = 16  # bytes before a message: two lengths
Message = tuple[bytes, bytes]


class Child:
    """A fresh interpreter, so that a program without a `__main__` guard and the threads of this process do no harm.

    What it runs reads standard input, which ends when this process ends, however it ends.

    Args:
        arguments: of Python: "-m" and a module, or "-c" and a program.
        variables: of its environment, besides those of this process.
    """

    def __init__(self, *arguments: str, **variables: str) -> None:
        path = os.pathsep.join(folder for folder in sys.path if folder)
        self._process = subprocess.Popen(
            [sys.executable, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=os.environ | {"PYTHONPATH": path} | variables,
            start_new_session=True,  # Ctrl-C is for the process that reads the answers
        )
        self.stdin, self.stdout = cast(BinaryIO, self._process.stdin), cast(BinaryIO, self._process.stdout)

    @property
    def pid(self) -> int:
        """The number of the process."""
        return self._process.pid

    def send(self, first: bytes, second: bytes) -> None:
        """Send a message; it is lost if the process has ended."""
        with suppress(OSError):
            send(self.stdin, first, second)

    def receive(self) -> Message | None:
        """Wait for a message; None if the process has ended, or another thread has closed it."""
        try:
            return receive(self.stdout)
        except (OSError, ValueError):
            return None

    def wait(self) -> int:
        """Wait for the end of the process; its exit status, negative for a signal."""
        return self._process.wait()

    def close(self) -> None:
        """End the process at once; more than one thread may call it."""
        self._process.kill()
        self._process.wait()
        for stream in (self.stdin, self.stdout):
            with suppress(OSError, ValueError):
                stream.close()


def ended_by(number: int) -> str:
    """The name of a signal that ended a process, and why the system sends it."""
    name = next((known.name for known in signal.Signals if known == number), f"signal {number}")  # not all have one
    return name + (", which is what the system sends when memory runs out" if name == "SIGKILL" else "")


def send(stream: BinaryIO, first: bytes, second: bytes) -> None:
    """Write a message of two parts, after their lengths."""
    stream.write(len(first).to_bytes(8, "little") + len(second).to_bytes(8, "little"))
    stream.write(first)
    stream.write(second)
    stream.flush()


def receive(stream: BinaryIO) -> Message | None:
    """Read a message of two parts; None at the end of the stream."""
    header = stream.read(_HEADER)
    if len(header) < _HEADER:
        return None
    sizes = int.from_bytes(header[:8], "little"), int.from_bytes(header[8:], "little")
    first, second = stream.read(sizes[0]), stream.read(sizes[1])
    return (first, second) if (len(first), len(second)) == sizes else None
