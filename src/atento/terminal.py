"""What a terminal is shown: text of models and of data cannot steer it."""

import codecs
import sys
from typing import Any, TextIO, cast

# C0 and C1 but newline and tab, and the overrides of the direction of writing, which show text in another order
_ESCAPES = {
    code: f"\\u{code:04x}"
    for code in (*range(0x20), *range(0x7F, 0xA0), 0x202D, 0x202E)
    if chr(code) not in "\n\t"
}  # fmt: skip


def printable(text: str) -> str:
    r"""Return a text with its control characters as escapes: ESC as `\u001b`, which is valid in JSON too."""
    return text.translate(_ESCAPES)


class _EscapedBytes:
    """The bytes of an escaped stream: text in UTF-8."""

    def __init__(self, stream: "_Escaped") -> None:
        self._stream, self._decoder = stream, codecs.getincrementaldecoder("utf-8")("replace")

    def write(self, content: bytes) -> int:
        self._stream.write(self._decoder.decode(content))
        return len(content)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream.rich_proxied_file.buffer, name)


class _Escaped:
    """A text stream that writes control characters as escapes; rich, which draws with them, writes to the stream."""

    def __init__(self, stream: TextIO) -> None:
        self.rich_proxied_file = stream
        self.buffer = _EscapedBytes(self)

    def write(self, text: str) -> int:
        self.rich_proxied_file.write(printable(text))
        return len(text)

    def writelines(self, lines: list[str]) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.rich_proxied_file, name)


def escaped(stream: TextIO) -> TextIO:
    """Return a text stream that writes to `stream`, with control characters as escapes."""
    return stream if isinstance(stream, _Escaped) else cast("TextIO", _Escaped(stream))


def protect() -> None:
    """Escape control characters on standard error, and on standard output if that is a terminal.

    Standard output that is a file or a pipe gets its bytes unchanged. Call it again where rich has replaced standard
    error, which it does while it draws a bar.
    """
    sys.stderr = escaped(sys.stderr)
    if sys.stdout.isatty():
        sys.stdout = escaped(sys.stdout)
