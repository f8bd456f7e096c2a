"""Web pages (.html): text between tags, with the tags of words and phrases inside."""

import html
import re
from collections.abc import Callable

from atento.text.documents.html_text import parts_of
from atento.text.documents.segments import Inline, Segment

_WORDS = "a abbr acronym b bdi bdo big cite code data del dfn em font i img ins kbd label mark q s samp small span"
_INLINE = frozenset(f"{_WORDS} strike strong sub sup tt u var wbr".split())
_TAG = re.compile(r"<(/?)([A-Za-z][^\s/<>]*+)[^<>]*+>")
_COMMENT = re.compile(r"<!--(?:-?>|.*?(?:--!?>|\Z))|<[!?][^>]*+(?:>|\Z)", re.DOTALL)  # and what reads as one
_MARKUP = re.compile(f"(?:{_COMMENT.pattern})|{_TAG.pattern}", re.DOTALL)
_ENDS = re.compile(r"\A(?:</[A-Za-z][^<>]*+>)++")
_VOID = ("img", "wbr")
_BLANK = " \t\n\f\r"  # what counts as one space
_BLANKS = re.compile(f"[{_BLANK}]+")
_CHARSET = re.compile(r"(?i)(?:<meta\b[^<>]*\bcharset|<\?xml\b[^<>]*\bencoding)\s*+=\s*+[\"']?\s*+([\w.:-]+)")


def read_html(text: str, name: str) -> list[str | Segment]:
    """The pieces of a page: the texts between tags that are not inline. What `parts_of` calls markup stays.

    Where the page names another encoding than UTF-8, the letters of translations are written as references.
    """
    pieces, inline, begun = list[str | Segment](), Inline(), False
    named = _CHARSET.search(text)
    encoding = "utf-8" if named is None or named[1].lower() in ("utf-8", "utf8", "utf-16") else "ascii"

    def escape(words: str) -> str:
        shown = html.escape(words, quote=False).replace("\xa0", "&#160;")
        return shown.encode(encoding, "xmlcharrefreplace").decode(encoding)

    for part in parts_of(text):
        if part.kind == "text":
            inline.add(part.text, part.raw)
            begun = begun or not part.text.isspace()
            continue
        breaks = [match[0] for match in _MARKUP.finditer(part.raw)]
        if "".join(breaks) != part.raw:  # with a text that stays, as of <code>
            rest = _ENDS.sub("", part.raw)  # what ends before it stands apart
            breaks = [match[0] for match in _TAG.finditer(part.raw.removesuffix(rest))] + [rest]
        for raw in breaks:
            if _is_inline(raw) or (begun and _COMMENT.fullmatch(raw)):  # a comment in a sentence
                _mark(inline, raw)
            else:
                pieces += [*_segment(inline, escape), raw]
                inline, begun = Inline(), False
    return [*pieces, *_segment(inline, escape)]


def _is_inline(markup: str) -> bool:
    names = [match[2].lower() for match in _TAG.finditer(markup)]
    return bool(names) and all(name in _INLINE for name in names) and "<!" not in markup


def _mark(inline: Inline, markup: str) -> None:
    """Add an inline tag, or an element whose text stays, as <code>, whole."""
    tag = _TAG.fullmatch(markup)
    name = tag[2].lower() if tag is not None else ""
    if tag is None or name in _VOID or markup.endswith("/>"):
        inline.mark(markup)
    else:
        inline.mark(markup, None if tag[1] else name, name if tag[1] else None)


def _segment(inline: Inline, escape: Callable[[str], str]) -> list[str | Segment]:
    """The segment of what was added, without the spaces around it; what has no letter stays."""
    if not inline.has_words:
        return [inline.raw]
    made = inline.segment(escape)
    left, right = len(made.raw) - len(made.raw.lstrip(_BLANK)), len(made.raw.rstrip(_BLANK))
    text = _BLANKS.sub(" ", made.text).strip(_BLANK)
    return [made.raw[:left], Segment(made.raw[left:right], text, made.shown), made.raw[right:]]
