"""Records in XML: pairs of ASSIN, ASSIN 2 and RTE, and the elements of any file; entities are refused.

Nothing outside the file is read.

<pair id="1" entailment="Entailment" similarity="4.5"><t>first text</t><h>second text</h></pair>
"""

from collections.abc import Iterator, Sequence
from typing import BinaryIO
from xml.etree.ElementTree import Element, TreeBuilder
from xml.parsers import expat

from atento.base.errors import DataError
from atento.data.files.source_lines import LINE_LIMIT, read_bytes

_CHUNK = 1 << 16  # bytes; records are given out as the file is read
_DEPTH = 500  # of elements
_INHERITED = ("source-language", "target-language", "srcLang", "trgLang")  # attributes of elements around others


def pairs_in(stream: BinaryIO, name: str, keys: Sequence[str]) -> Iterator[tuple[int, list[str]] | DataError]:
    """Read pairs; one without an attribute or an element of `keys` is yielded as its error.

    Args:
        keys: names of attributes of a pair or of elements in it, such as "t", "h", "entailment", "similarity".

    Raises:
        DataError: the file is not XML, declares entities, is nested too deep, or has a pair of more than 16 MiB.
    """
    for line, pair in Elements(name, ("pair",), "pair").read(stream):
        values = {**pair.attrib, **{child.tag: "".join(child.itertext()).strip() for child in pair}}
        missing = next((key for key in keys if key not in values), None)
        known = ", ".join(map(repr, values)) or "nothing"
        wrong = DataError(f"{name}:{line}: the pair has no {missing!r}; it has {known}")
        yield (line, [values[key] for key in keys]) if missing is None else wrong


class Elements:
    """The elements with one of some tags, each whole, as expat reads a file; `noun` names them in messages.

    Each also has the attributes of languages of the elements around it. Prefixes of tags are left out.
    """

    def __init__(self, name: str, tags: Sequence[str], noun: str) -> None:
        self.name, self.tags, self.noun = name, tags, noun
        self.around: dict[str, str] = {}
        self.ready: list[tuple[int, Element]] = []  # read and not yet given out
        self.builder: TreeBuilder | None = None  # of the element that is open
        self.line = self.depth = self.outside = self.size = self.fed = 0
        parser = self.parser = expat.ParserCreate()
        parser.buffer_text = True
        parser.StartElementHandler = self._start
        parser.EndElementHandler = self._end
        parser.CharacterDataHandler = self._text
        parser.EntityDeclHandler = parser.SkippedEntityHandler = self._entity
        parser.SetParamEntityParsing(expat.XML_PARAM_ENTITY_PARSING_NEVER)  # no file is read from outside

    def read(self, stream: BinaryIO) -> Iterator[tuple[int, Element]]:
        """Yield each element with its line."""
        chunk = b" "
        while chunk:  # the last one is empty: the end
            chunk = read_bytes(stream, self.name, _CHUNK)
            self.fed += len(chunk)
            try:
                self.parser.Parse(chunk, not chunk)
            except expat.ExpatError as error:
                reason = expat.errors.messages[error.code]
                raise DataError(f"{self.name}:{error.lineno}: not XML: {reason}") from None
            except (LookupError, ValueError) as error:  # of the encoding that the file declares
                raise DataError(f"{self.name}:1: not XML that can be read: {error}") from None
            self._refuse_long(self.fed - max(0, self.parser.CurrentByteIndex))
            yield from self.ready
            self.ready.clear()

    def _start(self, tag: str, attributes: dict[str, str]) -> None:
        self.depth += 1
        if self.depth > _DEPTH:
            line = self.parser.CurrentLineNumber
            raise DataError(f"{self.name}:{line}: has more than {_DEPTH} elements inside one another")
        tag = tag.rpartition(":")[2]  # without the prefix of a namespace
        if self.builder is None:
            self.around |= {key: value for key, value in attributes.items() if key in _INHERITED}
        if self.builder is None and tag in self.tags:
            attributes = self.around | attributes
            self.builder, self.outside = TreeBuilder(), self.depth - 1  # depth around the element
            self.line, self.size = self.parser.CurrentLineNumber, 0
        if self.builder is not None:
            self.size += 64 + sum(map(len, attributes.values()))  # many empty elements would fill the memory too
            self._refuse_long(self.size)
            self.builder.start(tag, attributes)

    def _text(self, text: str) -> None:
        if self.builder is not None:
            self.size += len(text)
            self._refuse_long(self.size)
            self.builder.data(text)

    def _end(self, tag: str) -> None:
        self.depth -= 1
        if self.builder is not None:
            self.builder.end(tag.rpartition(":")[2])
            if self.depth == self.outside:  # it is closed
                self.ready.append((self.line, self.builder.close()))
                self.builder = None

    def _entity(self, entity: str, *_: object) -> None:
        line = self.parser.CurrentLineNumber
        raise DataError(f"{self.name}:{line}: the entity {entity!r} is declared or used; entities are refused")

    def _refuse_long(self, size: int) -> None:
        if size > LINE_LIMIT:
            place = f"{self.name}:{self.line or 1}"
            raise DataError(f"{place}: the {self.noun} is longer than {LINE_LIMIT // 2**20} MiB")
