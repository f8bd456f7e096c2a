"""The parts of an HTML document: its markup, which stays as it is, and its texts; read in linear time.

Tags are found as the tokenizer of the HTML standard finds them (`text/placeholders.py`): no expression can give back
what it has read, so each character is read once. Which elements are open is in `html_elements.py`.
"""

import html
import re
from dataclasses import dataclass
from itertools import pairwise

from atento.text.documents.html_elements import Kind, OpenElements
from atento.text.placeholders import ATTRIBUTES, BLANK, HTML_TAG

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
            elements.begin(tag[2].lower(), is_kept=_is_kept(tag[3]), is_closed="/" in tag[4])
        return tag.end()
    if document.startswith("<!--", begin):
        if document.startswith((">", "->"), begin + 4):  # <!--> and <!---> are whole comments
            return document.index(">", begin) + 1
        closing = _COMMENT_END.search(document, begin + 4)
        return closing.end() if closing else len(document)
    mark = "]]>" if elements.is_foreign and document.startswith("<![CDATA[", begin) else ">"
    end = document.find(mark, begin)  # of a doctype or a bogus comment
    return len(document) if end < 0 else end + len(mark)


def _is_kept(attributes: str) -> bool:
    """Whether the attributes of a tag say that its element is not translated."""
    values: dict[str, str] = {}
    if "translate" in attributes.lower() or "class" in attributes.lower():
        values = {name: value for name, value, _, _ in reversed(attributes_of(attributes, 0, len(attributes)))}
    return values.get("translate", "").lower() == "no" or "notranslate" in values.get("class", "").split()


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
