"""A paragraph of a Word document: its texts with formatting and links as numbered tags, and its runs written anew."""

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from html import escape, unescape
from itertools import groupby

from atento.text.documents.segments import NUMBERED, Segment

_TEXT = re.compile(rb"<[^\s<>/]+(?:\s[^<>]*)?>([^<>]*)</[^<>]+>")  # of an element that is known to be one
_PREFIX = rb"((?:[^\s<>:/]+:)?)"
_RUN = re.compile(rb"<" + _PREFIX + rb"r\b")
_RUN_END = re.compile(rb"</" + _PREFIX + rb"r\s*>")
_TAG = re.compile(rb"<(?:[^\"'<>]|\"[^\"]*\"|'[^']*')*+>")
_UNSEEN = re.compile(  # of a formatting
    rb"<%s(?:lang|noProof)\b[^<>]*/>|<%srPr>\s*</%srPr>|<%srPr/>" % ((_PREFIX.replace(b"((", b"(?:("),) * 4)
)
_BREAKS = ("w:br", "w:tab", "w:cr")  # what follows is a text of its own
_MOST_BOXES = 50  # inside one another
_GONE = ("w:del", "w:moveFrom")  # what was deleted, or stands elsewhere
_IGNORED = ("w:proofErr", "w:lastRenderedPageBreak")


@dataclass(eq=False)
class _Box:
    """What stands around runs: an element, such as a link or an insertion, or a field between two runs of its own.

    `head` and `tail`: where it is written up to its first run, and from its last.
    """

    tag: str  # "": a field
    start: int
    first: int  # of the items
    head: int = -1
    tail: int = -1
    end: int = -1
    is_split: bool = False  # its borders end texts, because it holds a break or others of its kind


@dataclass(frozen=True)
class _Style:
    """How a text is shown: its run's properties, and the element around the run."""

    properties: bytes = b""
    box: _Box | None = None

    @property
    def seen(self) -> tuple[bytes, _Box | None]:
        """Equal for texts that look alike."""
        return _UNSEEN.sub(b"", _UNSEEN.sub(b"", self.properties)), self.box


@dataclass(frozen=True)
class _Item:
    """A text (`is_text`), or what else stands between texts, in a run or beside the runs."""

    start: int
    end: int
    properties: bytes
    boxes: tuple[_Box, ...]
    run: int = -1  # where its run begins; -1: it is in none
    is_text: bool = False

    @property
    def style(self) -> _Style:
        """How it is shown, where no border of a box ends the text."""
        return _Style(self.properties, None if self.split_box else next(iter(self.boxes), None))

    @property
    def split_box(self) -> _Box | None:
        """The innermost box, whose borders end the text; None: there is no such box."""
        return self.boxes[-1] if self.boxes and self.boxes[0].is_split else None


@dataclass
class Paragraph:
    """A paragraph that is being read; `begin` and `end` get the elements in it, but for other paragraphs."""

    _rows: list[list[_Item]] = field(default_factory=list)  # what stands between breaks
    _items: list[_Item] = field(default_factory=list)
    _stack: list[tuple[str, int]] = field(default_factory=list)  # kind of an open element, where it begins
    _boxes: list[_Box] = field(default_factory=list)
    _properties: bytes = b""
    _run: int = -1
    _has_text: bool = False  # the run
    _has_field: bool = False  # the run: a part of one
    _ends_field: bool = False  # the run

    def begin(self, tag: str, attributes: dict[str, str], at: int) -> None:
        """An element begins."""
        inside = self._stack[-1][0] if self._stack else "box"
        if inside == "box":
            kind = "run" if tag == "w:r" else "kept" if tag in _GONE else "box"
        elif inside == "run":
            kinds = {"w:rPr": "properties", "w:t": "text", "w:fldChar": "field"}
            kind = kinds.get(tag, "break" if tag in _BREAKS else "kept")
        else:
            kind = "part"
        if kind == "run":
            self._run, self._properties, self._has_text, self._has_field = at, b"", False, False
        elif kind == "box":
            self._boxes.append(_Box(tag, at, len(self._items)))
        elif kind == "break" or (kind == "text" and self._has_field) or (kind == "field" and self._has_text):
            self.split()
        if kind == "field":
            part, self._has_field = attributes.get("w:fldCharType", ""), True  # it begins, ends, or its result begins
            if part == "begin" and len(self._boxes) < _MOST_BOXES:
                if self._items and self._items[-1].run == self._run:  # it has more than the field
                    self.split()
                self._boxes.append(_Box("", self._run, len(self._items)))
            elif part == "end" and self._boxes and not self._boxes[-1].tag:
                self._ends_field = True  # with its run
            elif part == "begin" or not self._boxes or self._boxes[-1].tag or self._boxes[-1].head >= 0:  # unexpected
                self.split()
        self._stack.append((kind, at))

    def end(self, tag: str, at: int, content: bytes) -> None:
        """The last element that began ends."""
        kind, start = self._stack.pop()
        begun, ended = _TAG.match(content, start), _TAG.match(content, at)
        is_empty = begun is not None and begun[0].endswith(b"/>")  # an empty element ends behind its tag
        stop = at if is_empty or ended is None else ended.end()
        if kind == "properties":
            self._properties = content[start:stop]
        elif kind == "text" and _TEXT.match(content, start):  # else an empty element, or another way to write it
            self._add(start, stop, is_text=True)
            self._has_text = True
            for box in self._boxes:
                box.head = self._run if box.head < 0 else box.head
        elif kind == "run":
            for box in self._boxes if self._has_text else ():
                box.tail = stop
            self._run, ends_field, self._ends_field = -1, self._ends_field, False
            if ends_field and not self._boxes[-1].tag:
                self._end_box(stop)
        elif kind == "kept" and tag not in _IGNORED:
            self._add(start, stop)
        elif kind == "box":
            while self._boxes[-1].start != start:  # a field that goes on behind the element
                self._boxes.pop()
                self.split()
            self._end_box(stop)

    def _add(self, start: int, end: int, *, is_text: bool = False) -> None:
        self._items.append(_Item(start, end, self._properties, tuple(self._boxes), self._run, is_text))

    def _end_box(self, stop: int) -> None:
        box = self._boxes.pop()
        box.end = stop
        if box.head < 0:  # no text: it is one thing
            del self._items[box.first :]
            if box.tag not in _IGNORED:
                self._add(box.start, stop)
            return
        for one in (*self._boxes, box) if self._boxes else ():
            one.is_split = True
        if not box.is_split:  # what stands before its first run, or behind its last, is written with it
            inside = [one for one in self._items[box.first :] if one.end > box.head and one.start < box.tail]
            self._items[box.first :] = inside

    def split(self) -> None:
        """Let what follows be a text of its own."""
        self._rows.append(self._items)
        self._items = []
        for box in self._boxes:
            box.is_split, box.first = True, 0

    def segments(self, content: bytes) -> Iterator[tuple[int, int, Segment]]:
        """The texts of the paragraph, which has ended, with where they begin and end; what has no letter is none."""
        self.split()  # a field may go on in the next paragraph
        for row in self._rows:
            for _, group in groupby(row, key=lambda item: id(item.split_box)):
                items = list(group)
                texts = [number for number, item in enumerate(items) if item.is_text]
                if texts and (found := _segment(content, items[texts[0] : texts[-1] + 1])) is not None:
                    yield found


@dataclass
class _Writer:
    """Writes runs one after another, and the boxes around them."""

    content: bytes
    prefix: bytes  # of the names of elements, such as "w:"
    style: _Style
    in_run: bool
    out: list[bytes] = field(default_factory=list)
    ends: set[tuple[int, bool]] = field(default_factory=set)  # of boxes: written already, or outside of the text

    def go(self, style: _Style, *, in_run: bool) -> None:
        """End and begin what is needed for something of a style, in a run or beside runs."""
        stays = style.box is self.style.box
        if self.in_run and not (in_run and stays and style.seen == self.style.seen):
            self.out.append(b"</%sr>" % self.prefix)
            self.in_run = False
        if not stays:
            self.out += [self._edge(self.style.box, begins=False), self._edge(style.box, begins=True)]
        if in_run and not self.in_run:
            self.out.append(b"<%sr>" % self.prefix + style.properties)
            self.in_run = True
        self.style = style

    def _edge(self, box: _Box | None, *, begins: bool) -> bytes:
        """The beginning or end of a box; without what else stands there, where that is written elsewhere."""
        if box is None:
            return b""
        again = (box.start, begins) in self.ends
        self.ends.add((box.start, begins))
        if not again:
            return self.content[box.start : box.head] if begins else self.content[box.tail : box.end]
        found = _TAG.match(self.content, box.start)
        if not box.tag or found is None:
            return b""
        return found[0] if begins else b"</%s>" % re.split(rb"[\s/>]", found[0][1:], maxsplit=1)[0]

    def put(self, style: _Style, raw: bytes, *, in_run: bool = True) -> None:
        """Write something of a style."""
        self.go(style, in_run=in_run)
        self.out.append(raw)


def _segment(content: bytes, items: Sequence[_Item]) -> tuple[int, int, Segment] | None:
    """The segment of some texts and what stands between them. None: it has no letter."""
    letters = Counter[tuple[bytes, _Box | None]]()
    for item in items:
        letters[item.style.seen] += len(_plain(content, item)) if item.is_text and item.style.box is None else 0
    base_seen = max(letters, key=lambda seen: letters[seen])  # most of the text has it
    base = next((one.style for one in items if one.style.seen == base_seen and one.style.box is None), _Style())
    tags, parts = list[_Style | _Item](), list[str]()  # what each number stands for
    for seen, group in groupby(items, key=lambda item: item.style.seen if item.is_text else None):
        members = list(group)
        text = "".join(_plain(content, item) for item in members if item.is_text)
        words = text.strip() or (text if seen is not None and seen[1] is not None else "")  # a link is not lost
        if seen is None:
            parts += [f"<{len(tags) + number}/>" for number in range(len(members))]  # things that stay, as images
            tags += members
        elif seen == base.seen or not words:
            parts.append(text)
        else:  # spaces stand outside
            start = text.index(words)
            parts += [text[:start], f"<{len(tags)}>", words, f"</{len(tags)}>", text[start + len(words) :]]
            tags.append(members[0].style)
    text = "".join(parts)
    is_clear = len(NUMBERED.findall(text)) == sum(2 if isinstance(one, _Style) else 1 for one in tags)
    if not is_clear or not any(letter.isalpha() for letter in NUMBERED.sub("", text)):
        return None
    (start, before), (end, after) = _first(content, items[0]), _last(content, items[-1])
    run = _RUN.match(content, items[0].run)
    prefix = run[1] if run is not None else b"w:"

    def shown(translation: str) -> str:
        edges = {(box.start, begins) for (style, _), begins in ((before, True), (after, False)) if (box := style.box)}
        writer = _Writer(content, prefix, *before, ends=edges)
        placed = list(_placed(translation, base, tags))
        for (style, what), (following, behind) in zip(placed, [*placed[1:], (base, "")]):
            if isinstance(what, str):
                next_box = following.box if isinstance(behind, str) else behind.style.box
                if not what.strip() and style.box is None and writer.style.box is next_box:
                    style = _Style(style.properties, next_box)  # a space in a link
                words = escape(what, quote=False).encode()
                writer.put(style, b'<%st xml:space="preserve">%s</%st>' % (prefix, words, prefix))
                continue
            box = writer.style.box if what.style.box is writer.style.box else style.box  # where it was, if it is open
            writer.put(_Style(what.properties, box), content[what.start : what.end], in_run=what.run >= 0)
        for box in (one.box for one in tags if isinstance(one, _Style)):  # tags that are lost: a box may hold an image
            if box and box.tag and (box.start, True) not in writer.ends:
                writer.go(_Style(b"", box), in_run=False)
        writer.go(after[0], in_run=after[1])
        return b"".join(writer.out).decode("utf-8")

    return start, end, Segment(content[start:end].decode("utf-8"), text, shown)


def _placed(translation: str, base: _Style, tags: Sequence[_Style | _Item]) -> Iterator[tuple[_Style, str | _Item]]:
    """The texts of a translation and what stands between them, each with its style; nothing is lost or doubled."""
    opened, left = list[int](), {number: one for number, one in enumerate(tags) if isinstance(one, _Item)}
    for part in NUMBERED.split(translation):
        number = int(part.strip("</>")) if NUMBERED.fullmatch(part) else len(tags)
        style = tags[opened[-1]] if opened else base
        assert isinstance(style, _Style)
        if number >= len(tags):
            if part:
                yield style, part
            continue
        tag = tags[number]
        if isinstance(tag, _Item):
            if left.pop(number, None) is not None:
                yield style, tag
        elif part.startswith("</"):
            opened = [one for one in opened if one != number]
        else:
            opened.append(number)
    for item in left.values():  # what the translation has lost
        yield base, item


def _plain(content: bytes, item: _Item) -> str:
    """The characters of a text."""
    match = _TEXT.match(content, item.start)
    return unescape(match[1].decode("utf-8")) if match is not None else ""


def _first(content: bytes, item: _Item) -> tuple[int, tuple[_Style, bool]]:
    """Where writing begins, the style there, and whether in a run: before the run and its box where they begin so."""
    head, box = _TAG.match(content, item.run), item.style.box
    if head is None or content[head.end() : item.start] != item.properties:
        return item.start, (item.style, True)
    style = _Style(b"", box if box and box.head != item.run else None)
    return (box.start if box and box.head == item.run else item.run), (style, False)


def _last(content: bytes, item: _Item) -> tuple[int, tuple[_Style, bool]]:
    """Where writing ends, as `_first`."""
    run_end = _RUN_END.match(content, item.end)
    if run_end is None:
        return item.end, (item.style, True)
    end, box = run_end.end(), item.style.box
    return (box.end if box and box.tail == end else end), (_Style(b"", box if box and box.tail != end else None), False)
