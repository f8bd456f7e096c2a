"""Records in XML: pairs of ASSIN, ASSIN 2 and RTE, and units of translation memories (TMX); entities are refused.

Nothing outside the file is read.

<pair id="1" entailment="Entailment" similarity="4.5"><t>first text</t><h>second text</h></pair>
<tu><tuv xml:lang="en"><seg>A <bpt i="1">&lt;b&gt;</bpt>cat<ept i="1">&lt;/b&gt;</ept></seg></tuv>...</tu>
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import BinaryIO
from xml.etree.ElementTree import Element, TreeBuilder
from xml.parsers import expat

from atento.data.files.source_lines import LINE_LIMIT, read_bytes
from atento.errors import DataError, listed
from atento.nfc import tag_of

_CHUNK = 1 << 16  # bytes; records are given out as the file is read
_DEPTH = 500  # of elements
_CODES = ("bpt", "ept", "ph", "it", "ut")  # elements in a segment whose content is formatting


def pairs_in(stream: BinaryIO, name: str, keys: Sequence[str]) -> Iterator[tuple[int, list[str]] | DataError]:
    """Read pairs; one without an attribute or an element of `keys` is yielded as its error.

    Args:
        keys: names of attributes of a pair or of elements in it, such as "t", "h", "entailment", "similarity".

    Raises:
        DataError: the file is not XML, declares entities, is nested too deep, or has a pair of more than 16 MiB.
    """
    for line, pair in _Elements(name, "pair", "pair").read(stream):
        values = {**pair.attrib, **{child.tag: "".join(child.itertext()).strip() for child in pair}}
        missing = next((key for key in keys if key not in values), None)
        known = ", ".join(map(repr, values)) or "nothing"
        wrong = DataError(f"{name}:{line}: the pair has no {missing!r}; it has {known}")
        yield (line, [values[key] for key in keys]) if missing is None else wrong


def units_in(stream: BinaryIO, name: str, languages: Sequence[str]) -> Iterator[tuple[int, list[str]] | DataError]:
    """Read the text of each unit in these languages, without codes; "" in a language that the unit lacks.

    Raises:
        DataError: as `pairs_in`; no unit had one of the languages, or it is that of several variants.
    """
    found: dict[str, str] = {}  # the tags of all languages, and as they are first written
    chosen: dict[str, str] = {}  # of each of `languages`, the one in the file
    for line, unit in _Elements(name, "tu", "translation unit").read(stream):
        before, texts = len(found), _texts(unit, found)
        for language in languages if len(found) > before else ():
            tags = dict.fromkeys([*filter(None, [chosen.get(language)]), *fitting(language, found)])
            if len(tags) > 1:  # also where a unit above had another variant
                several = ", ".join(found[tag] for tag in tags)
                raise DataError(f"{name}:{line}: {language!r} may be {several}: name one of them")
            chosen.update((language, tag) for tag in tags)
        if len({*chosen.values()}) < len(chosen):
            raise DataError(f"{name}:{line}: {' and '.join(map(repr, languages))} are one language of the file")
        row = line, [texts.get(chosen.get(language, ""), "") for language in languages]
        yield DataError(f"{name}:{line}: a text of the unit has no `xml:lang`") if "" in texts else row
    for language in languages:
        if language not in chosen:
            known = listed(language, list(found.values()), what="the languages")
            raise DataError(f"{name}: no translation unit has the language {language!r}{known}")


def languages_in(stream: BinaryIO, name: str) -> list[str]:
    """The languages of the first units of a translation memory. Raises DataError: as `pairs_in`."""
    found: dict[str, str] = {}
    for _, unit in islice(_Elements(name, "tu", "translation unit").read(stream), 100):
        _texts(unit, found)
    return list(found.values())


def fitting(language: str, known: Iterable[str]) -> list[str]:
    """The tags of the languages that one such as pt-BR says; where pt is not among them, its variants."""
    tag, known = tag_of(language), [*map(tag_of, known)]
    return [tag] if tag in known else [other for other in known if other.startswith(f"{tag}-")]


def _texts(unit: Element, found: dict[str, str]) -> dict[str, str]:
    """The first text in each language, which are added to `found`; `lang` is of TMX 1.1."""
    texts: dict[str, str] = {}
    for variant in unit.iterfind("tuv"):
        written = variant.get("xml:lang") or variant.get("lang") or ""
        texts.setdefault(tag_of(written), "".join("".join(_shown(segment)) for segment in variant.iterfind("seg")))
        if written:
            found.setdefault(tag_of(written), written)
    return texts


def _shown(element: Element) -> Iterator[str]:
    """The pieces of text in an element that are not formatting."""
    yield element.text or ""
    for child in element:
        yield from () if child.tag in _CODES else _shown(child)
        yield child.tail or ""


class _Elements:
    """The elements with a tag, each whole, as expat reads a file; `noun` names them in messages."""

    def __init__(self, name: str, tag: str, noun: str) -> None:
        self.name, self.tag, self.noun = name, tag, noun
        self.ready: list[tuple[int, Element]] = []  # read and not yet given out
        self.builder: TreeBuilder | None = None  # of the element that is open
        self.line = self.depth = self.outside = self.size = self.fed = 0
        parser = self.parser = expat.ParserCreate()
        parser.buffer_text = True
        parser.StartElementHandler = self._start
        parser.EndElementHandler = self._end
        parser.CharacterDataHandler = self._text
        parser.EntityDeclHandler = parser.SkippedEntityHandler = self._entity
        parser.SetParamEntityParsing(expat.XML_PARAM_ENTITY_PARSING_NEVER)

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
        if self.builder is None and tag == self.tag:
            self.builder, self.outside = TreeBuilder(), self.depth - 1
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
            self.builder.end(tag)
            if self.depth == self.outside:
                self.ready.append((self.line, self.builder.close()))
                self.builder = None

    def _entity(self, entity: str, *_: object) -> None:
        line = self.parser.CurrentLineNumber
        raise DataError(f"{self.name}:{line}: the entity {entity!r} is declared or used; entities are refused")

    def _refuse_long(self, size: int) -> None:
        if size > LINE_LIMIT:
            place = f"{self.name}:{self.line or 1}"
            raise DataError(f"{place}: the {self.noun} is longer than {LINE_LIMIT // 2**20} MiB")
