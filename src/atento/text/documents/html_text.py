"""Web pages (.html): text between tags, with the tags of words and phrases inside; texts of attributes, if asked.

The parts of a page are its markup, which stays as it is, and its texts, read in linear time. Tags are found as the
tokenizer of the HTML standard finds them (`text/found_spans.py`): no expression can give back what it has read, so each
character is read once. Which elements are open follows the rules of the standard for tags that are left out or cross
one another.
"""

import html
import re
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import Literal

from atento.text.documents.segments import NUMBERED, Inline, Language, Segment
from atento.text.found_spans import ATTRIBUTES, BLANK, HTML_TAG, VOID, halves, name_of

Kind = Literal["markup", "text"]


def _tags(names: str) -> frozenset[str]:
    return frozenset(names.split())


NOT_TEXT = _tags("script style code pre listing kbd samp var textarea svg math xmp iframe noembed noframes plaintext")
_RAW = _tags("script style textarea title xmp iframe noembed noframes plaintext")  # without tags inside
_FORMATTING = _tags("a b big code em font i nobr s small strike strong tt u")
_MARKERS = _tags("applet caption marquee object table td th template")  # tags do not cross their edges
_TABLE_PARTS = _tags("caption colgroup table tbody td tfoot th thead tr")
_CLOSING_P = _tags(
    "address article aside blockquote center details dialog dir div dl fieldset figcaption figure footer form h1 h2 h3"
    " h4 h5 h6 header hgroup hr main menu nav ol p pre listing search section summary table ul li dd dt plaintext xmp"
)
_HEADINGS = _tags("h1 h2 h3 h4 h5 h6")
_SPECIAL = _MARKERS | _TABLE_PARTS | (_CLOSING_P - {"hr"})
_SPECIAL |= _tags("body button frameset head html iframe noembed noframes noscript script select style textarea title")
_GROUPS = {
    "*special": _SPECIAL,
    "*list": _SPECIAL - {"address", "div", "p"},
    "*scope": _MARKERS,
    "*item": _MARKERS | {"ol", "ul"},
    "*paragraph": _MARKERS | {"button"},
    "*table": frozenset({"table", "template"}),
}
"""Name -> the elements that an end tag, or the start of another element, does not reach through."""
_FOREIGN = ("svg", "math")
_HTML_INSIDE = ("foreignobject", "desc", "title", "annotation-xml", "mi", "mo", "mn", "ms", "mtext")
_ENDING_FOREIGN = _tags(
    "b big blockquote body br center code dd div dl dt em embed h1 h2 h3 h4 h5 h6 head hr i img li listing menu meta "
    "nobr ol p pre ruby s small span strong strike sub sup table tt u ul var"
)

_CELLS = ("td", "th", "caption", "colgroup")
_ENDS: dict[str, tuple[str, ...]] = {
    **{name: pair for pair in (("dt", "dd"), ("rt", "rp")) for name in pair},
    **dict.fromkeys(("td", "th"), _CELLS),
    "tr": (*_CELLS, "tr"),
    **dict.fromkeys(("caption", "colgroup", "tbody", "thead", "tfoot"), (*_CELLS, "tr", "tbody", "thead", "tfoot")),
} | {"li": ("li",), "option": ("option",), "optgroup": ("option", "optgroup"), "body": ("head",)}
"""Tag -> the open elements that its start ends (HTML standard, optional tags), beside `p`."""

_Formatting = defaultdict[str, list[tuple[int, bool]]]
"""Tag -> the height of the stack where such an element began, and whether it has no words."""


class OpenElements:
    """The open elements at a place of a document.

    Each question is answered from the places of the elements of a kind in the stack, so the work of a tag does not grow
    with the number of open elements.
    """

    def __init__(self) -> None:
        self._stack: list[tuple[str, bool]] = []  # tag, whether it has no words
        self._places: dict[str, list[int]] = defaultdict(list)  # tag or group -> where such elements are in the stack
        self._formatting: list[_Formatting] = [defaultdict(list)]  # one more for each open marker
        self._kept = 0

    @property
    def kind(self) -> Kind:
        """The kind of a text here."""
        return "markup" if self._kept else "text"

    @property
    def raw(self) -> str:
        """The tag of the element here, if it has no tags inside, else ""."""
        tag = self._stack[-1][0] if self._stack else ""
        return tag if tag in _RAW and not self.is_foreign else ""

    @property
    def is_foreign(self) -> bool:
        """Whether this is a part of a drawing or a formula."""
        return any(self._places[tag] for tag in _FOREIGN)

    def begin(self, tag: str, *, is_kept: bool, is_closed: bool) -> None:
        """Begin an element.

        Args:
            tag: its name in lower case.
            is_kept: whether its attributes say that it has no words.
            is_closed: whether the tag ends with a slash, which counts in drawings and formulas.
        """
        # such a tag ends the drawing that it stands in, but not where a part of the drawing holds HTML
        if self.is_foreign and tag in _ENDING_FOREIGN and not any(self._places[name] for name in _HTML_INSIDE):
            self._pop_to(min(self._places[name][0] for name in _FOREIGN if self._places[name]))
        if self.is_foreign:
            if not is_closed:
                self._push(tag, is_kept)
            return
        for ended in _ENDS.get(tag, ()):  # such as the <li> before this one
            self._close(ended, "*table" if tag in _TABLE_PARTS else "*list")
        if tag in _CLOSING_P:
            self._close("p", "*paragraph")
        if tag in _HEADINGS and self._stack and self._stack[-1][0] in _HEADINGS:  # a heading ends the one before it
            self._pop_to(len(self._stack) - 1)
        if tag in ("a", "nobr"):  # these do not nest
            self._end_formatting(tag)
        is_kept = is_kept or tag in NOT_TEXT
        if tag in _FORMATTING:
            self._formatting[-1][tag].append((len(self._stack), is_kept))  # not in the stack: it may end across others
            self._kept += is_kept
        elif tag not in VOID:
            self._push(tag, is_kept)

    def end(self, tag: str) -> None:
        """End the element that an end tag is of, if one is open."""
        if tag in _FORMATTING and not self._places[tag]:  # not in the stack of elements
            self._end_formatting(tag)
        elif tag in _TABLE_PARTS:
            self._close(tag, "*table")
        elif tag in _FOREIGN:
            self._close(tag, "")
        elif tag in _HEADINGS:
            self._close(max(_HEADINGS, key=self._last), "*scope")
        else:
            groups = {"li": "*item", "p": "*paragraph"}
            self._close(tag, groups.get(tag, "*scope" if tag in _SPECIAL else "*special"))

    def _end_formatting(self, tag: str) -> None:
        """End the last such element; those around text, such as <b>, may end across others."""
        if self._formatting[-1][tag]:
            height, is_kept = self._formatting[-1][tag].pop()
            self._kept -= is_kept
            if self._last("*special") < height:  # no block inside is open
                self._pop_to(height)

    def _close(self, tag: str, group: str) -> None:
        """Close an element, and all inside, unless it lies beyond one of the group."""
        if self._last(tag) >= max(0, self._last(group)):
            self._pop_to(self._last(tag))

    def _last(self, name: str) -> int:
        places = self._places[name]
        return places[-1] if places else -1

    def _push(self, tag: str, is_kept: bool) -> None:
        for name in _names(tag):
            self._places[name].append(len(self._stack))
        self._stack.append((tag, is_kept or tag in NOT_TEXT))
        self._kept += self._stack[-1][1]
        if tag in _MARKERS:
            self._formatting.append(defaultdict(list))

    def _pop_to(self, height: int) -> None:
        while len(self._stack) > height:
            tag, is_kept = self._stack.pop()
            self._kept -= is_kept
            for name in _names(tag):
                self._places[name].pop()
            if tag in _MARKERS:
                ended = self._formatting.pop()
                self._kept -= sum(is_kept for entries in ended.values() for _, is_kept in entries)


def _names(tag: str) -> list[str]:
    """A tag and the groups that it is in."""
    return [tag, *(name for name, tags in _GROUPS.items() if tag in tags)]


_MARKUP = re.compile("<[A-Za-z/!?]")
_COMMENT_END = re.compile("--!?>")
_SCRIPT = re.compile(f"<!--(?:-?>)?|-->|<(/?)script(?=[{BLANK}/>])", re.IGNORECASE)
_LONG_NUMBER = re.compile("&#([0-9]{9,}+)")


@dataclass(frozen=True)
class Part:
    """A part of a document, and `raw`, as it stands there.

    It is a text with its entities resolved; or a tag, a comment, or a whole element whose words stay, such as <code>.
    """

    kind: Kind
    text: str
    raw: str


def parts_of(document: str) -> list[Part]:
    """The parts of a document, in their order.

    What has no words is markup: tags, comments, scripts, styles, code, preformatted text, and elements with
    `translate="no"` or the class `notranslate`.
    """
    elements, begins, at, is_kept = OpenElements(), list[tuple[int, Kind]](), 0, False

    def add(kind: Kind, end: int) -> int:
        nonlocal is_kept
        if end > at and not (begins and begins[-1][1] == kind and (kind == "text" or is_kept)):
            begins.append((at, kind))  # else it goes on
        is_kept = elements.kind == "markup"
        return end

    while at < len(document):
        found = _MARKUP.search(document, at)
        at = add(elements.kind, found.start() if found else len(document))
        at = add("markup", _end_of_markup(document, at, elements) if found else at)
        if raw := elements.raw:  # text without tags, up to the end tag
            at = add(elements.kind, _end_of_raw(document, at, raw))
    slices = pairwise([*begins, (len(document), "markup")])
    texts = [(kind, document[begin:end]) for (begin, kind), (end, _) in slices]
    return [Part(kind, text if kind == "markup" else _unescaped(text), text) for kind, text in texts]


def _unescaped(text: str) -> str:
    """A text with its entities resolved, those of numbers of any length too."""
    return html.unescape(_LONG_NUMBER.sub(lambda number: f"&#{number[1].lstrip('0')[:9] or 0}", text))


def _end_of_markup(document: str, begin: int, elements: OpenElements) -> int:
    """The end of the tag or comment that begins here; elements begin and end by it."""
    tag = HTML_TAG.match(document, begin)
    if tag is not None:
        if tag[5] and tag[1]:
            elements.end(tag[2].lower())
        elif tag[5]:  # else the document ends within the tag, which is then none
            own: dict[str, str] = {}  # attributes that may say that the element is not translated
            if "translate" in tag[3].lower() or "class" in tag[3].lower():
                own = {key: value for key, value, _, _ in reversed(attributes_of(tag[3], 0, len(tag[3])))}
            is_kept = own.get("translate", "").lower() == "no" or "notranslate" in own.get("class", "").split()
            elements.begin(tag[2].lower(), is_kept=is_kept, is_closed="/" in tag[4])
        return tag.end()
    if document.startswith("<!--", begin):
        if document.startswith((">", "->"), begin + 4):  # <!--> and <!---> are whole comments
            return document.index(">", begin) + 1
        closing = _COMMENT_END.search(document, begin + 4)
        return closing.end() if closing else len(document)
    mark = "]]>" if elements.is_foreign and document.startswith("<![CDATA[", begin) else ">"
    end = document.find(mark, begin)  # of a doctype or a bogus comment
    return len(document) if end < 0 else end + len(mark)


def attributes_of(tag: str, begin: int, end: int) -> list[tuple[str, str, int, int]]:
    """The attributes of a tag: name in lower case, value, and where that stands, without quotation marks."""
    rows = list[tuple[str, str, int, int]]()
    for found in ATTRIBUTES.finditer(tag, begin, end):
        (first, last), sign = found.span(2), (found[2] or "")[:1]
        if sign in ('"', "'") and sign:
            first, last = first + 1, last - (last - first > 1 and tag[last - 1] == sign)
        rows.append((found[1].lower(), _unescaped(tag[first:last]) if found[2] else "", first, last))
    return rows


def _end_of_raw(document: str, begin: int, tag: str) -> int:
    """The beginning of the end tag of an element without tags inside."""
    if tag == "plaintext":
        return len(document)
    if tag != "script":
        closing = re.compile(f"</{tag}(?=[{BLANK}/>])", re.IGNORECASE).search(document, begin)
        return closing.start() if closing else len(document)
    depth = 0  # 1: in a comment of the script; 2: in a script of the comment, whose end tag does not count
    for mark in _SCRIPT.finditer(document, begin):
        if mark[1] == "/":
            if depth < 2:  # the end tag of the element itself
                return mark.start()
            depth = 1
        elif mark[1] == "":
            depth = 2 if depth else 0
        else:
            depth = 0 if mark[0].endswith(">") else max(depth, 1)
    return len(document)


_WORDS = "a abbr acronym b bdi bdo big cite code data del dfn em font i img ins kbd label mark q s samp small span"
_INLINE = frozenset(f"{_WORDS} strike strong sub sup tt u var wbr".split())
_BLANK = " \t\n\f\r"  # what counts as one space
_BLANKS = re.compile(f"[{_BLANK}]+")
_TEXTS = ("alt", "title", "placeholder", "aria-label")  # attributes
_CHARSET = re.compile(r"(?i)(?:<meta\b[^<>]*\bcharset|<\?xml\b[^<>]*\bencoding)\s*+=\s*+[\"']?\s*+([\w.:-]+)")


def read_html(text: str, name: str, *, attributes: bool = False) -> list[str | Segment]:
    """The pieces of a page: the texts between tags that are not inline. What `parts_of` calls markup stays.

    Where the page names another encoding than UTF-8, the letters of translations are written as references.
    `attributes`: whether texts of attributes are segments too.
    """
    pieces, inline, begun = list[str | Segment](), Inline(), False
    named = _CHARSET.search(text)
    encoding = "utf-8" if named is None or named[1].lower() in ("utf-8", "utf8", "utf-16") else "ascii"

    def escape(words: str) -> str:
        shown = html.escape(words, quote=False).replace("\xa0", "&#160;")
        return shown.encode(encoding, "xmlcharrefreplace").decode(encoding)

    whole = partial(tag_pieces, escape=escape, attributes=attributes)
    for part in parts_of(text):
        if part.kind == "text":
            inline.add(part.text, part.raw)
            begun = begun or not part.text.isspace()
            continue
        name = name_of(part.raw)
        if name in _INLINE or (begun and not name):  # a comment in a sentence
            inline.mark(whole(part.raw), *halves(part.raw))
        else:
            pieces += [*_segment(inline, escape), *whole(part.raw)]
            inline, begun = Inline(), False
    return [*pieces, *_segment(inline, escape)]


def tag_pieces(raw: str, escape: Callable[[str], str], *, attributes: bool) -> list[str | Segment]:
    """The pieces of a tag, or of an element that stays: the language of a page, and, if asked, texts of attributes."""
    tag, pieces, at = HTML_TAG.match(raw), list[str | Segment](), 0
    name = tag[2].lower() if tag is not None and not tag[1] else ""
    if tag is None or not (name in ("html", "meta") or (attributes and name)):
        return [raw]
    found = {one: (value, start, end) for one, value, start, end in reversed(attributes_of(raw, *tag.span(3)))}
    said = {one: value.lower() for one, (value, _, _) in found.items()}
    is_said = said.get("name", said.get("property", "")).rpartition(":")[2] in ("description", "title")
    texts = {*_TEXTS, "content"} if name == "meta" and is_said else {*_TEXTS}
    is_name = name == "meta" and said.get("http-equiv") == "content-language"
    languages = {"content"} if is_name else {"lang", "xml:lang"} if name == "html" else set()
    for key, (value, start, end) in sorted(found.items(), key=lambda one: one[1][1]):
        piece: str | Segment
        if key in languages and value:
            piece = Language(raw[start:end])
        elif attributes and key in texts and said.get("translate") != "no" and has_letters(value):
            sign = "" if raw[start - 1] in "\"'" else '"'  # of one without them
            quoted = partial(_quoted, escape=escape, sign=sign)
            piece = Segment(raw[start:end], _BLANKS.sub(" ", value).strip(_BLANK), quoted)
        else:
            continue
        pieces += [raw[at:start], piece]
        at = end
    return [*pieces, raw[at:]]


def has_letters(text: str) -> bool:
    """Whether the text of an attribute is one to translate."""
    return any(map(str.isalpha, text)) and NUMBERED.search(text) is None


def _quoted(text: str, escape: Callable[[str], str], sign: str) -> str:
    """The value of an attribute."""
    return sign + escape(text).replace('"', "&quot;").replace("'", "&#39;") + sign


def _segment(inline: Inline, escape: Callable[[str], str]) -> list[str | Segment]:
    """The segment of what was added, without the spaces around it; what has no letter stays."""
    made = inline.segment(escape)
    if not inline.has_words:
        return [made.of_attributes() or inline.raw]
    left, right = len(made.raw) - len(made.raw.lstrip(_BLANK)), len(made.raw.rstrip(_BLANK))
    text = _BLANKS.sub(" ", made.text).strip(_BLANK)
    return [made.raw[:left], replace(made, raw=made.raw[left:right], text=text), made.raw[right:]]
