"""Web pages (.html): text between tags, with the tags of words and phrases inside; texts of attributes, if asked."""

import html
import re
from collections.abc import Callable
from dataclasses import replace
from functools import partial

from atento.text.documents.html_text import attributes_of, parts_of
from atento.text.documents.segments import NUMBERED, Inline, Language, Segment
from atento.text.found_spans import HTML_TAG, halves, name_of

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
