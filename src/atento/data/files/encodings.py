"""Encodings of text files: named by a source, or found in the file where its bytes leave one alone."""

import codecs
import io
import json
import re
import warnings
from collections import Counter
from typing import TYPE_CHECKING, BinaryIO

from atento.base.errors import DataError, ReadingNotice

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

HEAD = 4 << 20  # bytes from the beginning of a file that show its encoding
OTHER_MARKS = (  # UTF-32 first: its little-endian byte order mark begins with UTF-16's
    (b"\xff\xfe\x00\x00", "UTF-32LE"),
    (b"\x00\x00\xfe\xff", "UTF-32BE"),
    (b"\xff\xfe", "UTF-16LE"),
    (b"\xfe\xff", "UTF-16BE"),
)
# what begins no text, or text that says its own
_OWN_FORMATS = (b"PK\x03\x04", b"\x1f\x8b", b"\x28\xb5\x2f\xfd", b"PAR1", b"<?xml")
# The letters of the languages of western Europe that are not in ASCII, a language or two a text.
_ALPHABETS = (
    *("áàâãçéêíóôõúü", "áéíñóúü", "àâæçèéêëîïôœùûü", "äöüßé", "àèéìíîòóùú", "áèéêëïíóöúü", "åäöéü", "æøåéèôò"),
    *("áðéíóúýþæö", "àçèéíïòóúü", "äöõüšž"),
)
_LETTER = re.compile(r"[^\W\d_ªºµ\x00-\x7f]")
_INSIDE = re.compile(  # signs behind letters, and capitals in words, that other code pages leave
    r"(?<=[A-Za-z])(?:[†‡‚„ƒ¢£¤¥¦§¨¬¯´¸¡¿ˆ˜]|[^\w\x00-\x7f’‘—–…·\xa0\xad](?=[A-Za-z]))"
    r"|(?<=[a-z])[ªºµ¹²³À-ÖØ-ÞŠŒŽŸ](?=[a-z])"
)
_MOST = 20  # of which one letter may be of another language


def encoding_of(head: bytes) -> str | None:
    """The encoding of a text by its beginning: UTF-16 and UTF-32 by their mark, Windows-1252 where the bytes are no
    UTF-8 and its accented letters are those of one language of western Europe.

    None: it is UTF-8, or no single encoding is right, which is for the reader of the lines to say.
    """
    for mark, name in OTHER_MARKS:
        if head.startswith(mark):
            return name[:6].lower()  # without the order of bytes, which the mark says
    try:
        codecs.getincrementaldecoder("utf-8")().decode(head)
        return None
    except UnicodeDecodeError:
        if head.startswith(_OWN_FORMATS) or b"\0" in head:
            return None
    kept = head.decode("utf-8", "ignore")
    size = len(kept.encode())
    if 10 * (size - len(kept)) > len(head) - size:  # most of it is UTF-8, and damaged
        return None
    try:
        text = head.decode("windows-1252")
    except UnicodeDecodeError:
        return None
    letters = Counter("".join(_LETTER.findall(text)).lower())
    known = max(sum(letters[letter] for letter in alphabet) for alphabet in _ALPHABETS)
    foreign = letters.total() - known + len(_INSIDE.findall(text))
    return "windows-1252" if foreign * _MOST <= max(known, 1) else None


def say_found(name: str, keys: dict[str, object]) -> None:
    """Say how a file is read, by the keys of a source that would say so."""
    said = ", ".join(f"`{key}: {json.dumps(value, ensure_ascii=False)}`" for key, value in keys.items())
    warnings.warn(f"{name}: read with {said}, as found in the file", ReadingNotice, stacklevel=2)


_DECODED = 1 << 16  # bytes that are decoded at once


class Recoded(io.RawIOBase):
    """The text of a binary stream in UTF-8; a byte order mark is left out.

    Raises:
        DataError: while reading, bytes that are no text in the encoding; names the file, the line and the byte.
    """

    def __init__(self, stream: BinaryIO, name: str, encoding: str) -> None:
        super().__init__()
        self._stream, self._name, self._encoding = stream, name, encoding
        self._decoder = codecs.getincrementaldecoder(encoding)()
        self._ready, self._lines, self._read, self._begun = memoryview(b""), 1, 0, False

    def readable(self) -> bool:
        """True."""
        return True

    def readinto(self, buffer: "WriteableBuffer") -> int:
        """Read the next bytes into `buffer` and return their number."""
        ended = False
        while not self._ready and not ended:
            raw = self._stream.read(_DECODED)
            ended = not raw
            text = self._decoded(raw)
            if text:
                self._lines += text.count("\n")
                text, self._begun = text if self._begun else text.removeprefix("\ufeff"), True
                self._ready = memoryview(text.encode("utf-8", "surrogatepass"))
        view = memoryview(buffer)
        count = min(len(view), len(self._ready))  # bytes that fit
        view[:count], self._ready = self._ready[:count], self._ready[count:]
        return count

    def _decoded(self, raw: bytes) -> str:
        try:
            text = self._decoder.decode(raw, final=not raw)
            self._read += len(raw)
            return text
        except UnicodeError as error:
            start, reason = 0, str(error)
            if isinstance(error, UnicodeDecodeError):  # its object begins with bytes of the part before
                start = error.start - len(error.object) + len(raw)
                byte = error.object[error.start]
                reason = f"byte 0x{byte:02x} at byte {self._read + start} of the file: {error.reason}"
            self._decoder.errors = "ignore"  # it knows the order of bytes, which a mark said at the beginning
            line = self._lines + self._decoder.decode(raw[: max(0, start)]).count("\n")
            wrong = f"{self._name}:{line}: is not {self._encoding}, the `encoding` of this source"
            raise DataError(f"{wrong}: {reason}") from None


def recoded(stream: BinaryIO, name: str, encoding: str | None) -> BinaryIO:
    """Return a stream of the same text in UTF-8; without an encoding, the stream itself."""
    return stream if not encoding else io.BufferedReader(Recoded(stream, name, encoding), 1 << 18)
