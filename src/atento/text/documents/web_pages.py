"""Web pages (.html): text between tags, with the tags of words and phrases inside."""

import html
import re
from collections.abc import Callable

from atento.text.documents.html_text import parts_of
from atento.text.documents.segments import Inline, Segment
from atento.text.markup_tags import halves, name_of

_WORDS = "a abbr acronym b bdi bdo big cite code data del dfn em font i img ins kbd label mark q s samp small span"
_INLINE = frozenset(f"{_WORDS} strike strong sub sup tt u var wbr".split())
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
        name = name_of(part.raw)
        if name in _INLINE or (begun and not name):  # a comment in a sentence
            inline.mark(part.raw, *halves(part.raw))
        else:
            pieces += [*_segment(inline, escape), part.raw]
            inline, begun = Inline(), False
    return [*pieces, *_segment(inline, escape)]


def _segment(inline: Inline, escape: Callable[[str], str]) -> list[str | Segment]:
    """The segment of what was added, without the spaces around it; what has no letter stays."""
    if not inline.has_words:
        return [inline.raw]
    made = inline.segment(escape)
    left, right = len(made.raw) - len(made.raw.lstrip(_BLANK)), len(made.raw.rstrip(_BLANK))
    text = _BLANKS.sub(" ", made.text).strip(_BLANK)
    return [made.raw[:left], Segment(made.raw[left:right], text, made.shown), made.raw[right:]]
