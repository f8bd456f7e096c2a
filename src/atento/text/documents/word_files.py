"""Word documents (.docx): paragraphs of the text, headers, footers and notes; every other byte of a part stays.

Which parts these are, relationships of the package say (ECMA-376, part 2), or else types of content.
"""

import io
import posixpath
import re
import struct
import zipfile
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NoReturn
from xml.parsers import expat

from atento.base.errors import DataError
from atento.base.limits import refuse_swelling
from atento.text.documents.segments import MARKS, MOST, Language, Segment, checked, joined, texts_of
from atento.text.documents.word_paragraphs import Paragraph

_MAIN = re.compile(r"(?:officeDocument|(?:wordprocessingml\.(?:document|template)|ms-word\..*)\.main\+xml)\Z", re.I)
_TEXTS = re.compile(r"(?:header|footer|footnotes|endnotes|comments|styles)(?:\+xml)?\Z")
"""Ends of the types of relationships and of content of the main part, and of others with texts or a language."""
_NAMES = re.compile(r"word/(?:header\d*|footer\d*|footnotes|endnotes|comments|styles)\.xml")  # where nothing says it
_WORD = re.compile(
    r"http://(?:schemas\.openxmlformats\.org/wordprocessingml/2006|purl\.oclc\.org/ooxml/wordprocessingml)/main "
)
_LANG = re.compile(r"(<(?:[^\s<>:/]+:)?lang\b[^<>]*?\s(?:[^\s<>:=]+:)?val\s*=\s*[\"'])([\w-]+)")
_OLD = b"\xd0\xcf\x11\xe0"  # of the container that encrypted documents and .doc files have
_DEPTH = 500  # of elements


@dataclass(frozen=True)
class WordDocument:
    """A Word document: the bytes of its archive, and encoding and pieces of each part that has text or a language."""

    data: bytes
    parts: dict[str, tuple[str, list[str | Segment]]]

    @property
    def texts(self) -> list[str]:
        """See `Document`."""
        return [text for _, pieces in self.parts.values() for text in texts_of(pieces)]

    def written(self, translations: Sequence[str], language: str | None = None) -> bytes:
        """See `Document`."""
        if list(translations) == self.texts and language is None:
            return self.data
        out, rest = io.BytesIO(), checked(self, translations)
        with zipfile.ZipFile(io.BytesIO(self.data)) as old, zipfile.ZipFile(out, "w") as new:
            for part in old.infolist():
                content = old.read(part)
                if part.filename in self.parts:
                    encoding, pieces = self.parts[part.filename]
                    text = joined(pieces, rest)
                    if language is not None:
                        text = _LANG.sub(lambda found: found[1] + Language(found[2]).renamed(language), text)
                    content = text.encode(encoding)
                new.writestr(part, content, part.compress_type)  # with the name, time and flags of the old one
        return out.getvalue()


def read_word(data: bytes, name: str) -> WordDocument:
    """The document in an archive.
    Raises DataError: it is encrypted, no Word document, or larger than documents may be.
    """
    if data.startswith(_OLD):
        raise DataError(f"{name}: is encrypted, or of an older version of Word: save it as .docx without a password")
    if len(data) > MOST:
        raise DataError(f"{name}: a document may have {MOST:,} bytes: got {len(data):,}")
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            infos = archive.infolist()
            if any(info.flag_bits & 1 for info in infos):  # of the ZIP format: encrypted
                raise DataError(f"{name}: is encrypted: save it without a password")
            refuse_swelling(name, [(f"its part {one.filename}", one.file_size, one.compress_size) for one in infos])
            names = _named_parts(archive, name)
            texts = {one.filename: archive.read(one) for one in infos if one.filename in names}
    except (zipfile.BadZipFile, zlib.error, struct.error, EOFError, NotImplementedError, OSError) as error:
        raise DataError(f"{name}: is no Word document: {error}") from None
    parts = dict[str, tuple[str, list[str | Segment]]]()
    for part, content in texts.items():
        encoding = next((encoding for mark, encoding in MARKS if content.startswith(mark)), "utf-8")
        try:
            content = content.decode(encoding).encode()
        except UnicodeDecodeError as error:
            raise DataError(f"{name}: {part} cannot be read: {error}") from None
        parts[part] = encoding, _Reader(content, f"{name}: {part}").pieces()
    return WordDocument(data, parts)


def _named_parts(archive: zipfile.ZipFile, name: str) -> set[str]:
    """The names of the parts that have texts. Raises DataError: there is no main part of a Word document."""
    known = {one.lower(): one for one in archive.namelist()}  # names of parts differ by more than case

    def named(kinds: re.Pattern[str], part: str) -> list[str]:
        """The parts of some types, by the relationships of a part, "" the package, and by types of content."""
        (folder, file), found = posixpath.split(part), list[str]()
        for where in (posixpath.join(folder, "_rels", f"{file}.rels"), "[Content_Types].xml"):
            for row in _rows(archive.read(where), f"{name}: {where}") if where in archive.namelist() else ():
                place = posixpath.join("/", folder, row.get("Target", row.get("PartName", "")))
                place = known.get(posixpath.normpath(place)[1:].lower(), "")
                if place and kinds.search(row.get("Type", row.get("ContentType", ""))):
                    found.append(place)
        return found

    main = named(_MAIN, "") or [known[one] for one in ("word/document.xml",) if one in known]
    if not main:
        raise DataError(f"{name}: is no Word document: no relationship and no name says which part is its text")
    if not any(b"wordprocessingml" in archive.read(one)[:65536].replace(b"\0", b"") for one in main):
        raise DataError(f"{name}: is no Word document: its part {main[0]} is another kind of document")
    return {*main, *(named(_TEXTS, main[0]) or filter(_NAMES.fullmatch, known.values()))}


def _rows(content: bytes, place: str) -> list[dict[str, str]]:
    """The attributes of the elements of a part."""
    rows, parser = list[dict[str, str]](), expat.ParserCreate()
    parser.StartElementHandler = lambda _, values: rows.append(values)
    parser.StartDoctypeDeclHandler = lambda *_: _no_doctype(place)
    try:
        parser.Parse(content, True)
    except expat.ExpatError as error:
        raise DataError(f"{place} cannot be read: {error}") from None
    return rows


def _no_doctype(place: str) -> NoReturn:
    raise DataError(f"{place} declares entities, which no Word document does")


class _Reader:
    """Reads a part: where its paragraphs and their texts stand."""

    def __init__(self, content: bytes, place: str) -> None:
        self.content, self.place = content, place
        self.segments: list[tuple[int, int, Segment]] = []  # with where each begins and ends
        self._open: list[Paragraph] = []
        self._depth = 0
        self._parser = expat.ParserCreate("utf-8", " ")  # names of elements are with their namespaces
        self._parser.StartElementHandler, self._parser.EndElementHandler = self._begin, self._end
        self._parser.StartDoctypeDeclHandler = lambda *_: _no_doctype(place)

    def pieces(self) -> list[str | Segment]:
        """The pieces of the part. Raises DataError: it is no XML, has entities, or is nested too deep."""
        try:
            self._parser.Parse(self.content, True)  # finds the segments
        except expat.ExpatError as error:
            raise DataError(f"{self.place} cannot be read: {error}") from None
        pieces, at = list[str | Segment](), 0
        for start, end, segment in sorted(self.segments, key=lambda found: found[0]):
            if start >= at:  # no two segments over one place
                pieces += [self.content[at:start].decode("utf-8"), segment]
                at = end
        return [*pieces, self.content[at:].decode("utf-8")]

    def _begin(self, tag: str, attributes: dict[str, str]) -> None:
        self._depth += 1
        if self._depth > _DEPTH:
            raise DataError(f"{self.place} has more than {_DEPTH} elements inside one another")
        tag = _WORD.sub("w:", tag)
        if tag == "w:p":
            self._open.append(Paragraph())
        elif self._open:
            values = {_WORD.sub("w:", name): value for name, value in attributes.items()}
            self._open[-1].begin(tag, values, self._parser.CurrentByteIndex)

    def _end(self, tag: str) -> None:
        self._depth -= 1
        tag = _WORD.sub("w:", tag)
        if tag != "w:p":
            if self._open:
                self._open[-1].end(tag, self._parser.CurrentByteIndex, self.content)
            return
        found = list(self._open.pop().segments(self.content))
        self.segments += found
        if found and self._open:
            self._open[-1].split()  # a text box stands between the texts of the paragraph that it is in
