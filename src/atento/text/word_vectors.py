"""Read and write word vectors in the text and binary formats of word2vec. Does not need torch.

Both formats begin with a line `V D`. Text has a line `word number ... number` for each word. Binary has the word, a
space, D little-endian float32 and a newline, which some programs omit. `.gz` files are compressed. A file that is not
valid is refused as a whole; nothing is skipped or repaired.
"""

import gzip
import math
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, cast

import numpy as np
from numpy.typing import NDArray

from atento.base.errors import AtentoError, DataError, UsageError, nearest
from atento.base.limits import limited, open_plain

_WORD_LIMIT = 1 << 16  # bytes of one word
_LINE_LIMIT = 1 << 24  # bytes of one line of text
_LARGEST_WIDTH = 1 << 20  # numbers of one vector
_SHOWN = 20  # known words an error names at most


class Vectors:
    """Words and their vectors (V,D), float32."""

    def __init__(self, words: Sequence[str], matrix: NDArray[np.float32] | NDArray[np.float64]) -> None:
        """Raises DataError if words and rows differ in number, a word occurs twice, or a number is not finite."""
        self.words = list(words)
        self.matrix = np.ascontiguousarray(matrix, dtype=np.float32)
        if self.matrix.ndim != 2 or len(self.matrix) != len(self.words):
            raise DataError(f"vectors must be one row a word: got {self.matrix.shape} for {len(self.words)} words")
        self.index = {word: row for row, word in enumerate(self.words)}
        if len(self.index) != len(self.words):
            twice = next(word for row, word in enumerate(self.words) if self.index[word] != row)
            raise DataError(f"words must differ from one another: got {twice!r} twice")
        if not np.isfinite(self.matrix).all():
            row = int(np.flatnonzero(~np.isfinite(self.matrix).all(axis=1))[0])
            raise DataError(f"vectors must be finite: that of {self.words[row]!r} is not")
        lengths = np.sqrt(np.einsum("vd,vd->v", self.matrix, self.matrix, dtype=np.float64))
        self._lengths = np.where(lengths > 0, lengths, 1.0)  # a zero vector has cosine 0 with all others

    def __len__(self) -> int:
        return len(self.words)

    def __contains__(self, word: str) -> bool:
        return word in self.index

    def __getitem__(self, word: str) -> NDArray[np.float32]:
        """The vector (D,) of a word. Raises UsageError if there is none; the message names the most similar word."""
        vector: NDArray[np.float32] = self.matrix[self._row(word)]
        return vector

    def neighbours(self, word: str, top: int = 10) -> list[tuple[str, float]]:
        """The `top` words with the highest cosine similarity, best first, without the word itself (docs/notes.md#c15).

        Words with equal similarity are in the order of the vocabulary.
        Raises UsageError: there is no such word, or `top` is below 1.
        """
        if top < 1:
            raise UsageError(f"`top` must be at least 1: got {top}")
        row = self._row(word)
        direction = (self.matrix[row] / self._lengths[row]).astype(np.float32)  # (D,) of length 1
        cosines = np.clip((self.matrix @ direction) / self._lengths, -1.0, 1.0)  # (V,)
        ranked = [other for other in np.argsort(-cosines, kind="stable").tolist() if other != row]
        return [(self.words[other], float(cosines[other])) for other in ranked[:top]]

    def _row(self, word: str) -> int:
        if word not in self.index:
            hint = nearest(word, self.words) if len(self.words) <= _SHOWN else f"; there are {len(self.words)} words"
            raise UsageError(f"no vector for the word {word!r}{hint}")
        return self.index[word]


def read_text_vectors(path: str | Path) -> Vectors:
    """Read the text format.
    Raises DataError: there is no `V D` line, a row has another width, a number is not valid or not finite, a word
    occurs twice, the file is not UTF-8, or it has another number of rows. The message names file and line.
    """
    with _reading(Path(path)) as stream:
        count, width = _header(stream, str(path))
        words: dict[str, int] = {}
        numbers = bytearray()
        for line in range(2, count + 2):
            raw = stream.readline(_LINE_LIMIT + 1)
            location = f"{path}:{line}"
            if not raw:
                raise DataError(f"{location}: the file ends after {line - 2} of the {count} words of its first line")
            if len(raw) > _LINE_LIMIT:
                raise DataError(f"{location}: the line is longer than {_LINE_LIMIT} bytes")
            if not raw.endswith(b"\n"):  # its last number may have lost digits
                raise DataError(f"{location}: the file ends inside this line, without a newline")
            fields = raw.rstrip(b"\r\n ").split(b" ")
            if len(fields) != width + 1:
                raise DataError(f"{location}: a row must have a word and {width} numbers: got {len(fields)} fields")
            _add(words, fields[0], line, location, "line")
            numbers += _numbers(fields[1:], location).tobytes()
        if stream.read(1):
            raise DataError(f"{path}:{count + 2}: the file has more than the {count} words of its first line")
    return _vectors(words, numbers, width)


def read_binary_vectors(path: str | Path) -> Vectors:
    """Read the binary format.
    Raises DataError: there is no `V D` line, a word or vector is truncated, a word is empty, not UTF-8 or occurs twice,
    a number is not finite, or the number of words is another. The message names file and byte.
    """
    with _reading(Path(path)) as stream:
        count, width = _header(stream, str(path))
        words: dict[str, int] = {}
        numbers = bytearray()
        for number in range(count):
            start = stream.tell()
            location = f"{path}: byte {start}"
            raw = _word(stream, f"{location}: word {number + 1} of {count}", after_newline=number > 0)
            _add(words, raw, number + 1, location, "word")
            data = stream.read(4 * width)
            if len(data) < 4 * width:
                raise DataError(f"{location}: the file ends inside the vector of word {number + 1} of {count}")
            if not np.isfinite(np.frombuffer(data, dtype="<f4")).all():
                raise DataError(f"{location}: the vector of word {number + 1} is not finite")
            numbers += data
        end = stream.tell()
        tail = stream.read(2)  # a last end of line at most
        if tail not in (b"", b"\n"):
            raise DataError(f"{path}: byte {end}: the file has more than the {count} words of its first line")
    return _vectors(words, numbers, width)


def write_text_vectors(path: str | Path, vectors: Vectors) -> None:
    """Write the text format, with the shortest numbers that read back as the same float32.
    Raises DataError: a word is empty or has a space or half a surrogate pair; an existing file is unchanged.
    AtentoError: the file cannot be written; an existing file is unchanged.
    """
    _write(Path(path), vectors, lambda row: b" " + " ".join(map(str, row)).encode("ascii") + b"\n")


def write_binary_vectors(path: str | Path, vectors: Vectors) -> None:
    """Write the binary format, with a newline after each vector. Raises as `write_text_vectors`."""
    _write(Path(path), vectors, lambda row: b" " + row.astype("<f4").tobytes() + b"\n")


def _header(stream: BinaryIO, name: str) -> tuple[int, int]:
    """V and D of the first line."""
    raw = stream.readline(64)
    fields = raw.rstrip(b"\r\n").split(b" ")
    if not raw.endswith(b"\n") or len(fields) != 2 or not all(field.isdigit() for field in fields):
        raise DataError(f"{name}:1: the first line must be `words width`, two numbers: got {raw[:40]!r}")
    count, width = int(fields[0]), int(fields[1])
    if count < 1 or not 0 < width <= _LARGEST_WIDTH:
        raise DataError(
            f"{name}:1: `words width` must be at least 1, the width at most {_LARGEST_WIDTH}: got {count} and {width}"
        )
    return count, width


def _word(stream: BinaryIO, location: str, *, after_newline: bool) -> bytes:
    """The bytes up to the next space, without the newline that may end the vector before."""
    word = bytearray()
    byte = stream.read(1)
    if after_newline and byte == b"\n":
        byte = stream.read(1)
    while byte != b" ":
        if not byte:
            raise DataError(f"{location}: the file ends before the end of the word")
        if byte == b"\n" or len(word) >= _WORD_LIMIT:
            raise DataError(
                f"{location}: no space ends the word, is this the binary format? It begins {bytes(word[:40])!r}"
            )
        word += byte
        byte = stream.read(1)
    return bytes(word)


def _add(words: dict[str, int], raw: bytes, number: int, location: str, unit: str) -> None:
    """Add a word with its number to `words`. Raises DataError if it is not UTF-8, empty, or occurs twice."""
    try:
        word = raw.decode("utf-8")
    except UnicodeDecodeError:
        raise DataError(f"{location}: the word is not UTF-8: {raw[:40]!r}") from None
    if not word:
        raise DataError(f"{location}: the word is empty")
    if word in words:
        raise DataError(f"{location}: the word {word[:40]!r} comes twice, first as {unit} {words[word]}")
    words[word] = number


def _numbers(fields: list[bytes], location: str) -> NDArray[np.float32]:
    """Fields of text as float32; the field after the word is the second."""
    values: list[float] = []
    for field in fields:
        try:
            values.append(math.nan if b"_" in field else float(field))  # Python reads 1_0 as 10
        except ValueError:
            values.append(math.nan)
    with np.errstate(over="ignore"):
        numbers = np.array(values).astype("<f4")
    for column in np.flatnonzero(~np.isfinite(numbers)):
        field_text = fields[column].decode("utf-8", "replace")[:40]
        raise DataError(f"{location}: field {column + 2} must be a finite number of float32: got {field_text!r}")
    return numbers


def _vectors(words: dict[str, int], numbers: bytearray, width: int) -> Vectors:
    return Vectors(list(words), np.frombuffer(numbers, dtype="<f4").reshape(len(words), width))


@contextmanager
def _reading(path: Path) -> Iterator[BinaryIO]:
    """Open a file and decompress it; system and gzip errors are raised as errors of Atento."""
    try:
        with open_plain(path) as raw, limited(raw, str(path), packed_as=path.suffix) as stream:
            yield stream
    except FileNotFoundError:
        raise DataError(f"{path}: no such file") from None
    except EOFError:
        raise DataError(f"{path}: the gzip data is truncated") from None
    except (gzip.BadGzipFile, zlib.error) as error:
        raise DataError(f"{path}: the gzip data is damaged: {error}") from None
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror or error}") from None


def _write(path: Path, vectors: Vectors, row: Callable[[NDArray[np.float32]], bytes]) -> None:
    """Write a temporary file and rename it, so that an existing file is replaced as a whole."""
    for word in vectors.words:
        if not word or any(c in " \n\r\t\0" or "\ud800" <= c <= "\udfff" for c in word):
            raise DataError(f"{path}: a word of a vector file must be Unicode text without blanks: got {word!r}")
    beside = path.with_name(f"{path.name}.part")
    try:
        with beside.open("wb") as raw:
            if path.suffix == ".gz":
                with gzip.GzipFile(filename="", fileobj=raw, mode="wb", mtime=0) as packed:
                    _write_rows(cast(BinaryIO, packed), vectors, row)
            else:
                _write_rows(raw, vectors, row)
        beside.replace(path)
    except OSError as error:
        raise AtentoError(f"{path}: cannot be written: {error.strerror}") from None
    finally:
        beside.unlink(missing_ok=True)


def _write_rows(stream: BinaryIO, vectors: Vectors, row: Callable[[NDArray[np.float32]], bytes]) -> None:
    stream.write(f"{len(vectors)} {vectors.matrix.shape[1]}\n".encode("ascii"))
    for word, vector in zip(vectors.words, vectors.matrix):
        stream.write(word.encode("utf-8") + row(vector))
