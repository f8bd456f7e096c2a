"""Records in XML: pairs of ASSIN and RTE, memories (TMX), files of translators (XLIFF 1.2 and 2.0); and gettext (PO).

Entities are refused, and nothing outside a file is read.

<pair id="1" entailment="Entailment" similarity="4.5"><t>first text</t><h>second text</h></pair>
<tu><tuv xml:lang="en"><seg>A <bpt i="1">&lt;b&gt;</bpt>cat<ept i="1">&lt;/b&gt;</ept></seg></tuv>...</tu>
<trans-unit><source>A <g id="1">cat</g></source><target state="translated">Um <g id="1">gato</g></target></trans-unit>
"""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import BinaryIO
from xml.etree.ElementTree import Element, TreeBuilder
from xml.parsers import expat

from atento.base.errors import DataError, listed
from atento.base.nfc import tag_of
from atento.data.files.source_lines import LINE_LIMIT, read_bytes, read_text

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


_CODES = ("bpt", "ept", "ph", "it", "ut")  # elements in a segment whose content is formatting
_UNFINISHED = ("initial", "new", "needs-")  # beginnings of the states of XLIFF
Units = Iterator[tuple[int, dict[str, str]]]
"""The line of each unit, and its texts by the tags of their languages: "" for one that is untranslated or fuzzy."""


def units_in(
    form: str, stream: BinaryIO, name: str, languages: Sequence[str]
) -> Iterator[tuple[int, list[str]] | DataError]:
    """Read the text of each unit in these languages, without codes; "" in a language that the unit lacks.

    A language that a file does not name is "target"; the source of a catalogue is "en" where it does not.
    Raises DataError: the file is not of this format, or declares entities; no unit had one of the languages, or it is
    that of several variants.
    """
    found: dict[str, str] = {}  # the tags of all languages, and as they are first written
    chosen: dict[str, str] = {}  # of each of `languages`, the one in the file
    known = 0
    for line, texts in _UNITS[form](stream, name, found):
        for language in languages if len(found) > known else ():  # only where a tag is new
            tags = dict.fromkeys([*filter(None, [chosen.get(language)]), *fitting(language, found)])
            if len(tags) > 1:  # also where a unit above had another variant
                several = ", ".join(found[tag] for tag in tags)
                raise DataError(f"{name}:{line}: {language!r} may be {several}: name one of them")
            chosen.update((language, tag) for tag in tags)
        known = len(found)
        if len({*chosen.values()}) < len(chosen):  # two names of one tag
            raise DataError(f"{name}:{line}: {' and '.join(map(repr, languages))} are one language of the file")
        row = line, [texts.get(chosen.get(language, ""), "") for language in languages]
        yield DataError(f"{name}:{line}: a text of the unit has no `xml:lang`") if "" in texts else row
    if not found:
        raise DataError(f"{name}: holds no translation unit")
    for language in languages:
        if language not in chosen:
            others = listed(language, list(found.values()), what="the languages")
            raise DataError(f"{name}: no translation unit has the language {language!r}{others}")


def languages_in(form: str, stream: BinaryIO, name: str) -> list[str]:
    """The languages of the first units of a file. Raises DataError: as `units_in`."""
    found: dict[str, str] = {}
    for _ in islice(_UNITS[form](stream, name, found), 100):
        pass
    return list(found.values())


def fitting(language: str, known: Iterable[str]) -> list[str]:
    """The tags of the languages that one such as pt-BR says; where pt is not among them, its variants."""
    tag, known = tag_of(language), [*map(tag_of, known)]
    return [tag] if tag in known else [other for other in known if other.startswith(f"{tag}-")]


def _of_memory(stream: BinaryIO, name: str, found: dict[str, str]) -> Units:
    """The units of a translation memory: the first text in each language; `lang` is of TMX 1.1."""
    for line, unit in Elements(name, ("tu",), "translation unit").read(stream):
        texts: dict[str, str] = {}
        for variant in unit.iterfind("tuv"):
            written = variant.get("xml:lang") or variant.get("lang") or ""
            texts.setdefault(tag_of(written), "".join(_shown(*variant.iterfind("seg"))))
            if written:
                found.setdefault(tag_of(written), written)
        yield line, texts


def _of_xliff(stream: BinaryIO, name: str, found: dict[str, str]) -> Units:
    """The units of version 1.2, and the segments of version 2.0."""
    for line, unit in Elements(name, ("trans-unit", "segment"), "translation unit").read(stream):
        source, target = (unit.find(side) for side in ("source", "target"))
        state = unit.get("state", "") if target is None else target.get("state", unit.get("state", ""))
        own = None if target is None else target.get("xml:lang")
        languages = (
            unit.get("source-language") or unit.get("srcLang") or "source",
            own or unit.get("target-language") or unit.get("trgLang") or "target",
        )
        tags = [tag_of(language) for language in languages]
        for tag, language in zip(tags, languages):
            found.setdefault(tag, language)
        sides = (source, None if state.startswith(_UNFINISHED) else target)  # what is not finished is no target
        yield line, {tag: "" if side is None else "".join(_shown(side)) for tag, side in zip(tags, sides)}


def _of_catalogue(stream: BinaryIO, name: str, found: dict[str, str]) -> Units:
    """The messages of a catalogue; of one with plural forms, the singular with the first, the plural with the last."""
    from atento.text.documents.catalogues import messages_of

    text, line, at = read_text(stream, name), 1, 0
    languages = ["en", "target"]
    for message in messages_of(text, name):
        begin = message.texts[0].start
        line, at = line + text.count("\n", at, begin), begin  # lines since the last message
        singular, plural = message.first("msgid"), message.first("msgid_plural")
        outputs = [output.text for output in message.outputs]
        if not singular:  # the header
            keys = ("X-Source-Language", "Language")
            said = [re.search(rf"^{key}:[ \t]*(\S+)", "".join(outputs), re.MULTILINE) for key in keys]
            languages = [language if found is None else found[1] for language, found in zip(languages, said)]
            continue
        source, target = (tag_of(language) for language in languages)
        found |= {tag: found.get(tag, language) for tag, language in zip((source, target), languages)}
        has_forms = plural and len(outputs) > 1
        forms = [(singular, outputs[:1]), (plural, outputs[-1:])] if has_forms else [(singular, outputs)]
        for words, output in forms:
            yield line, {source: words, target: "" if "fuzzy" in message.flags else "".join(output)}


_UNITS: dict[str, Callable[[BinaryIO, str, dict[str, str]], Units]] = {
    "tmx": _of_memory,
    "xliff": _of_xliff,
    "po": _of_catalogue,
}


def _shown(*elements: Element) -> Iterator[str]:
    """The pieces of text in elements that are not formatting."""
    for element in elements:
        yield element.text or ""
        for child in element:
            yield from () if child.tag in _CODES else _shown(child)
            yield child.tail or ""
