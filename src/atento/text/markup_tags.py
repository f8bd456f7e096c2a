"""Tags of HTML and XML: how one is found in a text, its name, and which two are a pair; for every reader of them."""

import re
from collections import defaultdict
from collections.abc import Iterable

BLANK = "\\t\\n\\f\\r "
_VALUE = f"""(?:"[^"]*+(?:"|\\Z)|'[^']*+(?:'|\\Z)|[^{BLANK}>"'][^{BLANK}>]*+)"""
_ATTRIBUTE = f"[^{BLANK}/>][^{BLANK}/>=]*+(?:[{BLANK}]*+=[{BLANK}]*+{_VALUE}?+)?+"
ATTRIBUTES = re.compile(f"([^{BLANK}/>][^{BLANK}/>=]*+)(?:[{BLANK}]*+=[{BLANK}]*+({_VALUE}?+))?+")
_REST = f"[^{BLANK}/>]*+)((?:[{BLANK}/]*+{_ATTRIBUTE})*+)([{BLANK}/]*+)(>|\\Z)"
HTML_TAG = re.compile(f"<(/?)([A-Za-z]{_REST}")
"""A tag as the HTML standard reads it, where nothing is text that begins as one: sign, name, attributes, slash, end."""
_ANY_TAG = re.compile(f"<(/?)([A-Za-z0-9]{_REST}")  # also a numbered one, such as <0>

_NAME = r"[A-Za-z0-9][\w:.-]*+"
_ALONE = "allowfullscreen|async|autofocus|autoplay|checked|compact|controls|default|defer|disabled|download|hidden"
_ALONE += "|inert|ismap|itemscope|loop|multiple|muted|nomodule|novalidate|nowrap|open|playsinline|readonly|required"
_ALONE += r"|reversed|selected|[A-Za-z]++[-:@][\w:.@-]++"  # attributes that need no value
TAG = (
    rf"<(?:/{_NAME}\s*+|{_NAME}(?:\s++(?:[^\s\"'<>/=]++\s*+=\s*+(?:\"[^\"]*+\"|'[^']*+'|[^\s\"'<>`]++)|(?i:{_ALONE})"
    r"(?![^\s/>])))*+\s*+/?+)>|<!--(?:[^<-]|-(?!->)|<(?!!--))*+-->|<!\[CDATA\[(?:[^\]<]|\](?!\]>)|<(?!!\[))*+\]\]>"
    r"|<\?[A-Za-z](?:[^?<]|\?(?!>))*+\?>"
)
"""The expression of a tag, comment or CDATA section in a text that may also say `x < y and z > 1`; it has no groups."""

_SINGLE = "area base br col embed hr img input link meta param source track wbr keygen frame"
VOID = frozenset(_SINGLE.split())


def name_of(tag: str) -> str:
    """The name of a tag in lower case; empty for a comment, or what else is no tag."""
    found = _ANY_TAG.match(tag)
    return found[2].lower() if found else ""


def halves(tag: str, single: frozenset[str] = VOID) -> tuple[str | None, str | None]:
    """The name of the element that a tag begins, and of the one that it ends; neither for a single tag or a comment."""
    found = _ANY_TAG.fullmatch(tag)
    name = found[2].lower() if found else ""
    if found is None or "/" in found[4] or name in single:
        return None, None
    return (None, name) if found[1] else (name, None)


def pairs_of(tags: Iterable[str]) -> list[tuple[int, int]]:
    """The numbers of the tags that begin and end an element, by nesting, the inner pairs first.

    A tag inside a pair that does not end there stays single, and so does its end elsewhere. Time is linear.
    """
    pairs, opened, places = list[tuple[int, int]](), list[tuple[str, int]](), defaultdict[str, list[int]](list)
    for number, tag in enumerate(tags):
        begins, ends = halves(tag, frozenset())  # in a text <link> may have an end
        if begins is not None:
            places[begins].append(len(opened))
            opened.append((begins, number))
        elif ends is not None and places[ends]:
            at = places[ends][-1]
            pairs.append((opened[at][1], number))
            for name, _ in opened[at:]:
                places[name].pop()
            del opened[at:]
    return pairs
