"""A document as pieces: what stays, and segments, whose texts are translated; inline markup as numbered tags."""

import re
import warnings
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Protocol

from atento.base.errors import AtentoWarning, DataError, UsageError, counted

MOST = 64 << 20  # bytes of a document
NUMBERED = re.compile(r"(</?\d+/?>)")
_EMPTY = re.compile(r"(\s?)<(\d+)>(\s*)</\2>(?=([\s.,;:!?)]|\Z)?)")  # a pair around nothing, and what is behind it
LINE_END = re.compile(r"\r\n|\r|\n")
MARKS = ((b"\xef\xbb\xbf", "utf-8"), (b"\xff\xfe", "utf-16-le"), (b"\xfe\xff", "utf-16-be"))
_DECLARED = re.compile(rb"(?i)\b(?:charset|encoding)\s*+=\s*+[\"']?\s*+([\w.:-]++)")
_LATIN = ("iso-8859-1", "latin1", "latin-1", "ascii", "us-ascii")  # names that browsers take for windows-1252


class Language(str):
    """A name of its language that stands in a document, as `lang` of a page does; it becomes that of a translation."""

    sign = "-"  # between language and region

    def renamed(self, language: str | None) -> str:
        """The name in a translation into a language: itself, with its region, where it is of that language."""
        same = language is None or re.split("[-_]", self)[0].lower() == re.split("[-_]", language)[0].lower()
        return self if same or language is None else re.sub("[-_]", self.sign, language)


@dataclass(frozen=True)
class Segment:
    """A text that is translated."""

    raw: str  # what stands in the document; it stays if the translation is the text itself, unless `is_gap`
    text: str  # the text
    shown: Callable[..., str] = str  # a translation -> what stands in the document for it
    # whether nothing stands there yet, so that a translation that is the text itself is written too
    is_gap: bool = False
    # segments inside its markup, such as the texts of images, whose translations `shown` takes as well
    attributes: Sequence["Segment"] = ()

    def of_attributes(self) -> "Segment | None":
        """The segment of its attributes alone, of a text without words; None: it has none."""
        if not self.attributes:
            return None
        first, *rest = self.attributes
        return replace(self, text=first.text, shown=lambda *new: self.shown(self.text, *new), attributes=rest)


class Document(Protocol):
    """A document that was read."""

    @property
    def texts(self) -> list[str]:
        """The texts of its segments; inline markup in them is numbered tags, such as <0> and </0>."""

    def written(self, translations: Sequence[str], language: str | None = None) -> bytes:
        """The document with translations in place of the texts; with the texts themselves, the same bytes.

        Args:
            translations: one a text.
            language: theirs, such as "pt" or "pt-BR", which the document then names as its own; None: unknown.
        """


@dataclass(frozen=True)
class TextDocument:
    """A document of characters, in its encoding behind its byte order mark."""

    pieces: Sequence[str | Segment]
    mark: bytes = b""
    encoding: str = "utf-8"

    @property
    def texts(self) -> list[str]:
        """See `Document`."""
        return texts_of(self.pieces)

    def written(self, translations: Sequence[str], language: str | None = None) -> bytes:
        """See `Document`."""
        rest: Iterator[str] | None = checked(self, translations)
        text = joined(self.pieces, None if list(translations) == self.texts else rest, language)
        try:
            return self.mark + text.encode(self.encoding)
        except UnicodeEncodeError:  # of a catalogue that names an encoding without such letters
            name = _DECLARED.search(text.encode("ascii", "replace"))
            return (text[: name.start(1)] + "UTF-8" + text[name.end(1) :] if name else text).encode()


def texts_of(pieces: Sequence[str | Segment]) -> list[str]:
    """The texts of the segments among pieces, each before those of its attributes."""
    found = (piece for piece in pieces if isinstance(piece, Segment))
    return [one.text for piece in found for one in (piece, *piece.attributes)]


def joined(pieces: Sequence[str | Segment], translations: Iterator[str] | None, language: str | None = None) -> str:
    """The characters of pieces, with the next translations for each segment; None: as they stand.

    Where a gap stays, since a translation has other placeholders than its text, a warning counts it.
    """
    out, left = list[str](), 0
    for piece in pieces:
        if isinstance(piece, Segment):
            out.append(piece.raw if translations is None else put(piece, translations))
            left += piece.is_gap and translations is not None and out[-1] == piece.raw
        else:
            out.append(piece.renamed(language) if isinstance(piece, Language) else piece)
    if left:
        found = counted(left, "message stays", "messages stay")
        warnings.warn(f"{found} without a translation, which had other placeholders", AtentoWarning, stacklevel=2)
    return "".join(out)


def checked(document: Document, translations: Sequence[str]) -> Iterator[str]:
    """The translations. Raises UsageError: there are not as many as texts."""
    if len(translations) != len(document.texts):
        raise UsageError(f"the document has {len(document.texts)} texts: got {len(translations)} translations")
    return iter(translations)


def put(segment: Segment, translations: Iterator[str]) -> str:
    """What stands in a document for the next translations, of a segment and its attributes."""
    new = [next(translations) for _ in (segment, *segment.attributes)]
    is_same = new == [one.text for one in (segment, *segment.attributes)] and not segment.is_gap
    return segment.raw if is_same else segment.shown(*new)


def decoded(read: Callable[..., Sequence[str | Segment]], *, is_catalogue: bool = False) -> Callable[..., TextDocument]:
    """The reader of bytes, by one of (characters, name, options): UTF-8, or what the document itself says.

    A byte order mark says it, or else a declaration in its first 4,096 bytes: that of a catalogue always, that of a
    page if the bytes are not UTF-8. It raises DataError: the bytes are in another encoding, or too many.
    """

    def read_bytes(data: bytes, name: str, **options: bool) -> TextDocument:
        if len(data) > MOST:
            raise DataError(f"{name}: a document may have {MOST:,} bytes: got {len(data):,}")
        mark, encoding = next(((mark, says) for mark, says in MARKS if data.startswith(mark)), (b"", "utf-8"))
        zeros = data[:2].find(0)  # of a letter in two bytes
        likely = "WINDOWS-1252" if zeros < 0 else ("UTF-16BE", "UTF-16LE")[zeros]
        if data.startswith((b"\xff\xfe\0\0", b"\0\0\xfe\xff")):
            likely = "UTF-32"  # its mark begins as that of UTF-16 does
        rule = f"documents are UTF-8: `iconv -f {likely} -t UTF-8` converts one of that encoding"
        if is_catalogue and not mark and (declared := _declared(data, {"charset": "ascii"})):  # as msginit leaves it
            return TextDocument(read(declared[0], name, **options), b"", declared[1])
        try:
            text = data[len(mark) :].decode(encoding)
        except UnicodeDecodeError as error:
            if declared := _declared(data, dict.fromkeys(_LATIN, "windows-1252")):
                return TextDocument(read(declared[0], name, **options), b"", declared[1])
            at = len(mark) + error.start
            line = line_at(data[len(mark) : at].decode(encoding), at)
            place = f"{name}:{line}: byte {at} is not {encoding.upper()}"
            raise DataError(f"{place}; {rule}" if encoding == "utf-8" else place) from None
        if "\0" in text:
            place = f"{name}:{line_at(text, text.index(chr(0)))}"
            raise DataError(f"{place}: a document must not have a NUL character; {rule}")
        return TextDocument(read(text, name, **options), mark, encoding)

    return read_bytes


def _declared(data: bytes, others: Mapping[str, str]) -> tuple[str, str] | None:
    """The characters of a document in the encoding that it names, and that; None: it names none, or it is another.

    `others`: names that are read as others.
    """
    named = _DECLARED.search(data, 0, 4096)
    name = "" if named is None else named[1].decode("ascii").lower()
    for encoding in () if name in ("punycode", "idna") else (others.get(name, name), name):  # those are of host names
        with suppress(LookupError, ValueError):  # of no name, or of bytes that are none of it
            text = data.decode(encoding)
            if "\0" not in text and text.encode(encoding) == data:
                return text, encoding
    return None


def line_at(text: str, at: int) -> int:
    """The number of the line of a place."""
    return 1 + len(LINE_END.findall(text[:at]))


@dataclass
class Inline:
    """A text with markup inside, in which numbered tags stand for the markup."""

    _parts: list[tuple[str, str]] = field(default_factory=list)  # text, and how it stands in the document
    _tags: dict[str, Sequence[str | Segment]] = field(default_factory=dict)  # tag -> pieces of markup
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

    def mark(self, markup: str | Sequence[str | Segment], opens: str | None = None, closes: str | None = None) -> None:
        """Add markup, or its pieces: the beginning or the end of an element of that name, or neither."""
        if opens is not None:
            tag = f"<{self._count}>"
            self._open[opens].append(self._count)
        elif closes is not None and self._open[closes]:
            tag = f"</{self._open[closes].pop()}>"
        else:
            tag = f"<{self._count}/>"
        self._count += not tag.startswith("</")
        self._tags[tag] = [markup] if isinstance(markup, str) else markup
        self.add(tag, joined(self._tags[tag], None))

    def segment(
        self, escape: Callable[[str], str] = str, lines: Callable[[str], str] | None = None, marks: str = ""
    ) -> Segment:
        """The segment of what was added; `escape` makes text of a translation, and `lines` puts all on lines.

        A pair of markup of the characters `marks` around nothing is left out, since it would be text.
        A space of markup is NUL for `lines`, which breaks no line there; a document that has lines has no other NUL.
        """
        tags, inside = dict(self._tags), list[Segment]()
        for pieces in tags.values():
            inside += [piece for piece in pieces if isinstance(piece, Segment)]

        def shown(translation: str, *values: str) -> str:
            def without(found: re.Match[str]) -> str:
                is_mark = set(joined(tags.get(f"<{found[2]}>", "?"), None)) <= {*marks}
                return ("" if found[4] is not None else (found[1] + found[3])[:1]) if is_mark else found[0]

            for _ in range(8 if marks else 0):  # one inside another
                translation = _EMPTY.sub(without, translation).strip()
            parts, at, rest = "", 0, iter(values)
            markup = {tag: joined(pieces, rest).replace(" ", "\0" if lines else " ") for tag, pieces in tags.items()}
            for match in NUMBERED.finditer(translation):  # a tag that ends one takes no number
                if match[0] in markup:  # other numbers are no tags of the text
                    parts += escape(translation[at : match.start()]) + markup[match[0]]
                    at = match.end()
            parts += escape(translation[at:])
            return lines(parts).replace("\0", " ") if lines else parts

        return Segment(self.raw, self.text, shown, attributes=inside if self._is_clear else ())

    @property
    def has_words(self) -> bool:
        """Whether there is a letter outside of the markup, and no text that looks like a numbered tag."""
        return self._is_clear and any(letter.isalpha() for letter in NUMBERED.sub("", self.text))

    @property
    def _is_clear(self) -> bool:
        return len(NUMBERED.findall(self.text)) == len(self._tags)


def wrapped(text: str, ends: Sequence[str], begins_no_line: re.Pattern[str] | None = None) -> str:
    """A text on as many lines as there are ends and one more, of about the same length, broken at spaces.

    No line begins with what `begins_no_line` matches.
    """
    breaks = [
        one.span()
        for one in re.finditer(r"[^\S\r\n]+", text)  # line breaks in it are those of code
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
