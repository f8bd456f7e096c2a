"""Pairs of sentences in the XML of ASSIN, ASSIN 2 and RTE; entities are refused, and nothing outside the file is read.

<pair id="1" entailment="Entailment" similarity="4.5"><t>first text</t><h>second text</h></pair>
"""

from collections.abc import Iterator, Sequence
from typing import BinaryIO
from xml.parsers import expat

from atento.data.files.source_lines import LINE_LIMIT, read_bytes
from atento.errors import DataError

_CHUNK = 1 << 16  # bytes; events are given out as the file is read


def pairs_in(stream: BinaryIO, name: str, keys: Sequence[str]) -> Iterator[tuple[int, list[str]] | DataError]:
    """Read pairs; one without an attribute or an element of `keys` is yielded as its error.

    Args:
        keys: names of attributes of a pair or of elements in it, such as "t", "h", "entailment", "similarity".

    Raises:
        DataError: the file is not XML, declares entities, or has a pair of more than 16 MiB.
    """
    reader = _Pairs(name, keys)
    while chunk := read_bytes(stream, name, _CHUNK):
        yield from reader.feed(chunk)
    yield from reader.feed(b"", last=True)


class _Pairs:
    """The pairs of a file as expat reads it."""

    def __init__(self, name: str, keys: Sequence[str]) -> None:
        self.name, self.keys = name, keys
        self.pairs: list[tuple[int, list[str]] | DataError] = []  # read and not yet given out
        self.values: dict[str, str] | None = None  # of the pair that is open
        self.line = self.depth = self.size = self.fed = 0
        self.element, self.texts = "", [""]
        parser = self.parser = expat.ParserCreate()
        parser.buffer_text = True
        parser.StartElementHandler = self._start
        parser.EndElementHandler = self._end
        parser.CharacterDataHandler = self._text
        parser.EntityDeclHandler = parser.SkippedEntityHandler = self._entity
        parser.SetParamEntityParsing(expat.XML_PARAM_ENTITY_PARSING_NEVER)

    def feed(self, chunk: bytes, *, last: bool = False) -> list[tuple[int, list[str]] | DataError]:
        """The pairs that end in the next bytes of the file."""
        self.fed += len(chunk)
        try:
            self.parser.Parse(chunk, last)
        except expat.ExpatError as error:
            reason = expat.errors.messages[error.code]
            raise DataError(f"{self.name}:{error.lineno}: not XML: {reason}") from None
        except (LookupError, ValueError) as error:  # of the encoding that the file declares
            raise DataError(f"{self.name}:1: not XML that can be read: {error}") from None
        if self.fed - max(0, self.parser.CurrentByteIndex) > LINE_LIMIT:
            raise self._too_long()
        pairs, self.pairs = self.pairs, []
        return pairs

    def _start(self, tag: str, attributes: dict[str, str]) -> None:
        if self.values is not None:
            self.depth += 1
            if self.depth == 1:
                self.element, self.texts = tag, []
        elif tag == "pair":
            self.values, self.depth, self.size = dict(attributes), 0, 0
            self.line = self.parser.CurrentLineNumber

    def _text(self, text: str) -> None:
        if self.values is not None and self.depth:
            self.size += len(text)
            if self.size > LINE_LIMIT:
                raise self._too_long()
            self.texts.append(text)

    def _end(self, tag: str) -> None:
        if self.values is None:  # outside of a pair
            return
        if self.depth:  # in an element of the pair
            self.depth -= 1
            if not self.depth:
                self.values[self.element] = "".join(self.texts).strip()
            return
        values, self.values = self.values, None
        missing = next((key for key in self.keys if key not in values), None)
        if missing is None:
            self.pairs.append((self.line, [values[key] for key in self.keys]))
        else:
            known = ", ".join(map(repr, values)) or "nothing"
            self.pairs.append(DataError(f"{self.name}:{self.line}: the pair has no {missing!r}; it has {known}"))

    def _entity(self, entity: str, *_: object) -> None:
        line = self.parser.CurrentLineNumber
        raise DataError(f"{self.name}:{line}: the entity {entity!r} is declared or used; entities are refused")

    def _too_long(self) -> DataError:
        return DataError(f"{self.name}:{self.line or 1}: the pair is longer than {LINE_LIMIT // 2**20} MiB")
