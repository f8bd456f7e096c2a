"""A document as pieces: what stays, and segments, whose texts are translated; inline markup as numbered tags."""

import re
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from atento.errors import DataError, UsageError

MOST = 64 << 20  # bytes of a document
NUMBERED = re.compile(r"</?\d+/?>")
LINE_END = re.compile(r"\r\n|\r|\n")
_MARKS = ((b"\xef\xbb\xbf", "utf-8"), (b"\xff\xfe", "utf-16-le"), (b"\xfe\xff", "utf-16-be"))


@dataclass(frozen=True)
class Segment:
    """A text that is translated.

    Attributes:
        raw: what stands in the document; it stays if the translation is the text itself, unless `is_gap`.
        text: the text.
        shown: a translation -> what stands in the document for it.
        is_gap: whether nothing stands there yet, so that a translation that is the text itself is written too.
    """

    raw: str
    text: str
    shown: Callable[[str], str] = str
    is_gap: bool = False


class Document(Protocol):
    """A document that was read."""

    @property
    def texts(self) -> list[str]:
        """The texts of its segments; inline markup in them is numbered tags, such as <0> and </0>."""

    def written(self, translations: Sequence[str]) -> bytes:
        """The document with translations in place of the texts; with the texts themselves, the same bytes."""


@dataclass(frozen=True)
class TextDocument:
    """A document of characters, in its encoding behind its byte order mark."""

    pieces: Sequence[str | Segment]
    mark: bytes = b""
    encoding: str = "utf-8"

    @property
    def texts(self) -> list[str]:
        """See `Document`."""
        return [piece.text for piece in self.pieces if isinstance(piece, Segment)]

    def written(self, translations: Sequence[str]) -> bytes:
        """See `Document`."""
        rest = checked(self, translations)
        if list(translations) == self.texts:
            text = "".join(piece if isinstance(piece, str) else piece.raw for piece in self.pieces)
        else:
            text = joined(self.pieces, rest)
        return self.mark + text.encode(self.encoding)


def joined(pieces: Sequence[str | Segment], translations: Iterator[str]) -> str:
    """The characters of pieces, with the next translation for each segment."""
    return "".join(piece if isinstance(piece, str) else put(piece, next(translations)) for piece in pieces)


def checked(document: Document, translations: Sequence[str]) -> Iterator[str]:
    """The translations. Raises UsageError: there are not as many as texts."""
    if len(translations) != len(document.texts):
        raise UsageError(f"the document has {len(document.texts)} texts: got {len(translations)} translations")
    return iter(translations)


def put(segment: Segment, translation: str) -> str:
    """What stands in a document for a translation of a segment."""
    return segment.raw if translation == segment.text and not segment.is_gap else segment.shown(translation)


def decoded(read: Callable[[str, str], Sequence[str | Segment]]) -> Callable[[bytes, str], TextDocument]:
    """The reader of bytes, by one of (characters, name): UTF-8, or what a byte order mark says.

    It raises DataError: the bytes are in another encoding, or too many.
    """

    def read_bytes(data: bytes, name: str) -> TextDocument:
        if len(data) > MOST:
            raise DataError(f"{name}: a document may have {MOST:,} bytes: got {len(data):,}")
        mark, encoding = next(((mark, says) for mark, says in _MARKS if data.startswith(mark)), (b"", "utf-8"))
        zeros = data[:2].find(0)  # of a letter in two bytes
        likely = "WINDOWS-1252" if zeros < 0 else ("UTF-16BE", "UTF-16LE")[zeros]
        if data.startswith((b"\xff\xfe\0\0", b"\0\0\xfe\xff")):
            likely = "UTF-32"  # its mark begins as that of UTF-16 does
        rule = f"documents are UTF-8: `iconv -f {likely} -t UTF-8` converts one of that encoding"
        try:
            text = data[len(mark) :].decode(encoding)
        except UnicodeDecodeError as error:
            at = len(mark) + error.start
            line = line_at(data[len(mark) : at].decode(encoding), at)
            place = f"{name}:{line}: byte {at} is not {encoding.upper()}"
            raise DataError(f"{place}; {rule}" if encoding == "utf-8" else place) from None
        if "\0" in text:
            place = f"{name}:{line_at(text, text.index(chr(0)))}"
            raise DataError(f"{place}: a document must not have a NUL character; {rule}")
        return TextDocument(read(text, name), mark, encoding)

    return read_bytes


def line_at(text: str, at: int) -> int:
    """The number of the line of a place."""
    return 1 + len(LINE_END.findall(text[:at]))


@dataclass
class Inline:
    """A text with markup inside, in which numbered tags stand for the markup."""

    _parts: list[tuple[str, str]] = field(default_factory=list)  # text, and how it stands in the document
    _tags: dict[str, str] = field(default_factory=dict)  # tag -> markup
    _open: defaultdict[str, list[int]] = field(default_factory=lambda: defaultdict(list))  # name -> numbers
    _count: int = 0

    @property
    def text(self) -> str:
        """What was added, with tags."""
        return "".join(text for text, _ in self._parts)

    @property
    def raw(self) -> str:
        """What stands in the document."""
        return "".join(raw for _, raw in self._parts)

    def add(self, text: str, raw: str) -> None:
        """Add a text, and how it stands in the document."""
        self._parts.append((text, raw))

    def mark(self, raw: str, opens: str | None = None, closes: str | None = None) -> None:
        """Add markup: the beginning or the end of an element of that name, or neither."""
        if opens is not None:
            tag = f"<{self._count}>"
            self._open[opens].append(self._count)
        elif closes is not None and self._open[closes]:
            tag = f"</{self._open[closes].pop()}>"
        else:
            tag = f"<{self._count}/>"
        self._count += not tag.startswith("</")
        self._tags[tag] = raw
        self.add(tag, raw)

    def segment(self, escape: Callable[[str], str] = str, lines: Callable[[str], str] | None = None) -> Segment:
        """The segment of what was added; `escape` makes text of a translation, and `lines` puts all on lines.

        A space of markup is NUL for `lines`, which breaks no line there; a document that has lines has no other NUL.
        """
        tags = {tag: raw.replace(" ", "\0") if lines else raw for tag, raw in self._tags.items()}

        def shown(translation: str) -> str:
            parts, at = "", 0
            for match in NUMBERED.finditer(translation):  # a tag that ends one takes no number
                if match[0] in tags:  # other numbers are no tags of the text
                    parts += escape(translation[at : match.start()]) + tags[match[0]]
                    at = match.end()
            parts += escape(translation[at:])
            return lines(parts).replace("\0", " ") if lines else parts

        return Segment(self.raw, self.text, shown)

    @property
    def has_words(self) -> bool:
        """Whether there is a letter outside of the markup, and no text that looks like a numbered tag."""
        is_clear = len(NUMBERED.findall(self.text)) == len(self._tags)
        return is_clear and any(letter.isalpha() for letter in NUMBERED.sub("", self.text))


def wrapped(text: str, ends: Sequence[str], begins_no_line: re.Pattern[str] | None = None) -> str:
    """A text on as many lines as there are ends and one more, of about the same length, broken at spaces.

    No line begins with what `begins_no_line` matches.
    """
    breaks = [
        one.span()
        for one in re.finditer(r"\s+", text)
        if not (begins_no_line and begins_no_line.match(text, one.end()))
    ]
    begins = [begin for begin, _ in breaks]
    parts, at = list[str](), 0
    for number, end in enumerate(ends, 1):
        target = round(len(text) * number / (len(ends) + 1))  # characters before this line's end
        first, nearest = bisect_right(begins, at), bisect_left(begins, target)
        left = breaks[max(first, nearest - 1) : max(first, nearest) + 1]  # the last before the target, the first behind
        if not left:
            break
        start, stop = min(left, key=lambda span: abs(span[0] - target))
        parts += [text[at:start], end]
        at = stop
    return "".join([*parts, text[at:]])
