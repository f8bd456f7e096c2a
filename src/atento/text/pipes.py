"""Messages of two parts through a pipe between processes."""

from typing import BinaryIO

_HEADER = 16  # bytes before a message: two lengths


def send(stream: BinaryIO, first: bytes, second: bytes) -> None:
    """Write a message of two parts, after their lengths."""
    stream.write(len(first).to_bytes(8, "little") + len(second).to_bytes(8, "little"))
    stream.write(first)
    stream.write(second)
    stream.flush()


def receive(stream: BinaryIO) -> tuple[bytes, bytes] | None:
    """Read a message of two parts; None at the end of the stream."""
    header = stream.read(_HEADER)
    if len(header) < _HEADER:
        return None
    sizes = int.from_bytes(header[:8], "little"), int.from_bytes(header[8:], "little")
    first, second = stream.read(sizes[0]), stream.read(sizes[1])
    return (first, second) if (len(first), len(second)) == sizes else None
