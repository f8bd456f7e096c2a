"""Word documents (.docx): paragraphs of the text, headers, footers and notes; every other byte of a part stays."""

import io
import re
import struct
import zipfile
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from xml.parsers import expat

from atento.errors import DataError
from atento.limits import refuse_swelling
from atento.text.documents.segments import MOST, Segment, checked, joined
from atento.text.documents.word_paragraphs import Paragraph

_PARTS = re.compile(r"word/(?:document|header\d*|footer\d*|footnotes|endnotes|comments)\.xml")
_OLD = b"\xd0\xcf\x11\xe0"  # of the container that encrypted documents and .doc files have
_DEPTH = 500  # of elements


@dataclass(frozen=True)
class WordDocument:
    """A Word document: the bytes of its archive, and the pieces of each part that has text."""

    data: bytes
    parts: dict[str, list[str | Segment]]

    @property
    def texts(self) -> list[str]:
        """See `Document`."""
        return [piece.text for pieces in self.parts.values() for piece in pieces if isinstance(piece, Segment)]

    def written(self, translations: Sequence[str]) -> bytes:
        """See `Document`."""
        if list(translations) == self.texts:
            return self.data
        out, rest = io.BytesIO(), checked(self, translations)
        with zipfile.ZipFile(io.BytesIO(self.data)) as old, zipfile.ZipFile(out, "w") as new:
            for part in old.infolist():
                content = old.read(part)
                if part.filename in self.parts:
                    content = joined(self.parts[part.filename], rest).encode("utf-8")
                new.writestr(part, content, part.compress_type)  # with the name, time and flags of the old one
        return out.getvalue()


def read_word(data: bytes, name: str) -> WordDocument:
    """The document in an archive.

    Raises:
        DataError: it is encrypted, no Word document, or larger than documents may be.
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
            if "word/document.xml" not in archive.namelist():
                raise DataError(f"{name}: is no Word document: it has no part word/document.xml")
            texts = {one.filename: archive.read(one) for one in infos if _PARTS.fullmatch(one.filename)}
    except (zipfile.BadZipFile, zlib.error, struct.error, EOFError, NotImplementedError, OSError) as error:
        raise DataError(f"{name}: is no Word document: {error}") from None
    return WordDocument(data, {part: _Reader(content, f"{name}: {part}").pieces() for part, content in texts.items()})


class _Reader:
    """Reads a part: where its paragraphs and their texts stand."""

    def __init__(self, content: bytes, place: str) -> None:
        self.content, self.place = content, place
        self.segments: list[tuple[int, int, Segment]] = []  # with where each begins and ends
        self._open: list[Paragraph] = []  # only to refuse what is no UTF-8
        self._depth = 0
        self._parser = expat.ParserCreate("utf-8")
        self._parser.StartElementHandler, self._parser.EndElementHandler = self._begin, self._end
        self._parser.StartDoctypeDeclHandler = self._doctype

    def pieces(self) -> list[str | Segment]:
        """The pieces of the part. Raises DataError: it is no XML, has entities, or is nested too deep."""
        try:
            self._parser.Parse(self.content, True)  # finds the segments
            self.content.decode("utf-8")
        except (expat.ExpatError, UnicodeDecodeError) as error:
            raise DataError(f"{self.place} cannot be read: {error}") from None
        pieces, at = list[str | Segment](), 0
        for start, end, segment in sorted(self.segments, key=lambda found: found[0]):
            if start >= at:  # no two segments over one place
                pieces += [self.content[at:start].decode("utf-8"), segment]
                at = end
        return [*pieces, self.content[at:].decode("utf-8")]

    def _doctype(self, *_: object) -> None:
        raise DataError(f"{self.place} declares entities, which no Word document does")

    def _begin(self, tag: str, attributes: dict[str, str]) -> None:
        self._depth += 1
        if self._depth > _DEPTH:
            raise DataError(f"{self.place} has more than {_DEPTH} elements inside one another")
        if tag == "w:p":
            self._open.append(Paragraph())
        elif self._open:
            self._open[-1].begin(tag, attributes, self._parser.CurrentByteIndex)

    def _end(self, tag: str) -> None:
        self._depth -= 1
        if tag != "w:p":
            if self._open:
                self._open[-1].end(tag, self._parser.CurrentByteIndex, self.content)
            return
        found = list(self._open.pop().segments(self.content))
        self.segments += found
        if found and self._open:
            self._open[-1].split()  # a text box stands between the texts of the paragraph that it is in
