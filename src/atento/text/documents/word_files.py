"""Word documents (.docx): paragraphs of the text, headers, footers and notes; every other byte of a part stays."""

import io
import re
import struct
import zipfile
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape, unescape
from xml.parsers import expat

from atento.errors import DataError
from atento.limits import refuse_swelling
from atento.text.documents.segments import MOST, Inline, Segment, checked, joined

_PARTS = re.compile(r"word/(?:document|header\d*|footer\d*|footnotes|endnotes|comments)\.xml")
_OLD = b"\xd0\xcf\x11\xe0"  # of the container that encrypted documents and .doc files have
_DEPTH = 500  # of elements
_TEXT = re.compile(rb"(<w:t)((?:\s[^<>]*)?)>([^<>]*)</w:t>")


@dataclass
class _Run:
    """A text of a paragraph: where its element stands, and the formatting of its run."""

    start: int
    end: int
    style: bytes


@dataclass
class _Paragraph:
    runs: list[_Run] = field(default_factory=list)
    style: bytes = b""


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
        self.paragraphs: list[_Paragraph] = []
        self._open: list[_Paragraph] = []
        self._depth, self._style = 0, -1
        self._parser = expat.ParserCreate("utf-8")
        self._parser.StartElementHandler, self._parser.EndElementHandler = self._begin, self._end
        self._parser.StartDoctypeDeclHandler = self._doctype

    def pieces(self) -> list[str | Segment]:
        """The pieces of the part. Raises DataError: it is no XML, has entities, or is nested too deep."""
        try:
            self._parser.Parse(self.content, True)  # finds the paragraphs
            self.content.decode("utf-8")
        except (expat.ExpatError, UnicodeDecodeError) as error:
            raise DataError(f"{self.place} cannot be read: {error}") from None
        pieces, at = list[str | Segment](), 0
        for paragraph in sorted((one for one in self.paragraphs if one.runs), key=lambda one: one.runs[0].start):
            start, end = paragraph.runs[0].start, paragraph.runs[-1].end
            runs = [_Run(one.start - start, one.end - start, one.style) for one in paragraph.runs]
            segment = _segment(self.content[start:end], runs)
            if segment is not None and start >= at:  # no two segments over one place
                pieces += [self.content[at:start].decode("utf-8"), segment]
                at = end
        return [*pieces, self.content[at:].decode("utf-8")]

    def _doctype(self, *_: object) -> None:
        raise DataError(f"{self.place} declares entities, which no Word document does")

    def _begin(self, tag: str, _: object) -> None:
        self._depth += 1
        if self._depth > _DEPTH:
            raise DataError(f"{self.place} has more than {_DEPTH} elements inside one another")
        at = self._parser.CurrentByteIndex
        if tag == "w:p":
            self._open.append(_Paragraph())
        elif tag == "w:r" and self._open:
            self._open[-1].style = b""
        elif tag == "w:rPr":
            self._style = at
        elif tag in ("w:br", "w:tab", "w:cr") and self._open and self._open[-1].runs:
            self._split()
        elif tag == "w:t" and self._open:
            self._open[-1].runs.append(_Run(at, at, self._open[-1].style))

    def _end(self, tag: str) -> None:
        self._depth -= 1
        at = self._parser.CurrentByteIndex
        if tag == "w:rPr" and self._open:
            self._open[-1].style = self.content[self._style : at]
        elif tag == "w:t" and self._open and self._open[-1].runs:
            match = _TEXT.match(self.content, self._open[-1].runs[-1].start)
            if match is None:  # an empty element, or one that is written in another way
                self._open[-1].runs.pop()
            else:
                self._open[-1].runs[-1].end = match.end()
        elif tag == "w:p" and self._open:
            self.paragraphs.append(self._open.pop())
            if self._open and self._open[-1].runs:
                self._split()  # a text box stands between the texts of the paragraph that it is in

    def _split(self) -> None:
        """Let what follows be a text of its own."""
        self.paragraphs.append(_Paragraph(self._open[-1].runs))
        self._open[-1].runs = []


def _segment(raw: bytes, runs: Sequence[_Run]) -> Segment | None:
    """The segment of the texts of a paragraph; neighbours of one formatting are one text. None: it has no letter."""
    inline, owners = Inline(), list[int]()  # the run that has the text of each tag
    matches = [_TEXT.match(raw, run.start) for run in runs]
    texts = [unescape(match[3].decode("utf-8")) if match is not None else "" for match in matches]
    heads = [n for n, run in enumerate(runs) if n == 0 or run.style != runs[n - 1].style]
    for number, head in enumerate(heads):
        stop = heads[number + 1] if number + 1 < len(heads) else len(runs)
        text = "".join(texts[head:stop])
        owners.append(head)
        if len(heads) == 1:
            inline.add(text, text)
            continue
        inline.mark("", opens="r")
        inline.add(text, text)
        inline.mark("", closes="r")
    if not inline.has_words:
        return None

    def shown(translation: str) -> str:
        filled, current = [""] * len(runs), owners[0]  # text behind an end tag stays in its run
        for part in re.split(r"(</?\d+/?>)", translation):
            tag = re.fullmatch(r"<(/?)(\d+)>", part) if len(owners) > 1 else None  # one formatting has no tags
            if tag is not None and int(tag[2]) < len(owners):
                current = owners[int(tag[2])]
            else:
                filled[current] += part
        out, at = b"", 0
        for run, text in zip(runs, filled):
            out += raw[at : run.start] + b'<w:t xml:space="preserve">' + escape(text, quote=False).encode() + b"</w:t>"
            at = run.end
        return (out + raw[at:]).decode("utf-8")

    return Segment(raw.decode("utf-8"), inline.text, shown)
