"""Units of translations: memories (TMX), files of translators (XLIFF 1.2 and 2.0) and catalogues of gettext (PO).

<tu><tuv xml:lang="en"><seg>A <bpt i="1">&lt;b&gt;</bpt>cat<ept i="1">&lt;/b&gt;</ept></seg></tuv>...</tu>
<trans-unit><source>A <g id="1">cat</g></source><target state="translated">Um <g id="1">gato</g></target></trans-unit>
"""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import BinaryIO
from xml.etree.ElementTree import Element

from atento.base.errors import DataError, listed
from atento.base.nfc import tag_of
from atento.data.files.source_lines import read_text
from atento.data.files.xml_records import Elements

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
