"""Text files in another encoding than UTF-8, read as UTF-8."""

import codecs
import io
from typing import TYPE_CHECKING, BinaryIO

from atento.errors import DataError

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

_PART = 1 << 16  # bytes that are decoded at once


class Recoded(io.RawIOBase):
    """The text of a binary stream in UTF-8; a byte order mark is left out.

    Raises:
        DataError: while reading, bytes that are no text in the encoding; names the file, the line and the byte.
    """

    def __init__(self, stream: BinaryIO, name: str, encoding: str) -> None:
        super().__init__()
        self._stream, self._name, self._encoding = stream, name, encoding
        self._decoder = codecs.getincrementaldecoder(encoding)()
        self._ready, self._lines, self._begun = memoryview(b""), 1, False

    def readable(self) -> bool:
        """True."""
        return True

    def readinto(self, buffer: "WriteableBuffer") -> int:
        """Read the next bytes into `buffer` and return their number."""
        ended = False
        while not self._ready and not ended:
            raw = self._stream.read(_PART)
            ended = not raw
            text = self._decoded(raw)
            if text:
                self._lines += text.count("\n")
                text, self._begun = text if self._begun else text.removeprefix("\ufeff"), True
                self._ready = memoryview(text.encode("utf-8", "surrogatepass"))
        view = memoryview(buffer)
        count = min(len(view), len(self._ready))
        view[:count], self._ready = self._ready[:count], self._ready[count:]
        return count

    def _decoded(self, raw: bytes) -> str:
        try:
            return self._decoder.decode(raw, final=not raw)
        except UnicodeError as error:
            before = raw[: error.start] if isinstance(error, UnicodeDecodeError) else b""
            line = self._lines + before.decode(self._encoding, "ignore").count("\n")
            raise DataError(
                f"{self._name}:{line}: is not {self._encoding}, the `encoding` of this source: {error}"
            ) from None


def recoded(stream: BinaryIO, name: str, encoding: str | None) -> BinaryIO:
    """Return a stream of the same text in UTF-8; with `encoding` None, the stream itself."""
    return stream if encoding is None else io.BufferedReader(Recoded(stream, name, encoding), 1 << 18)
