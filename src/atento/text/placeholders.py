"""Placeholders by the format of a message, or in any text, and tags: how each is found, and which are a pair."""

import re
from collections import Counter, defaultdict
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


_FLAGS, _SIZE = "[-+ #0'I]*+", "(?:hh|ll|[hljztLq])?+"
_NUMBERS = r"(?:\*(?:\d++\$)?+|\d++)?+(?:\.(?:\*(?:\d++\$)?+|\d*+))?+"  # width and precision
_NESTED = "[^{}]*+"
for _ in range(6):
    _NESTED = rf"(?:[^{{}}]++|\{{{_NESTED}\}})*+"
_BRACES = rf"\{{\{{\w*+\}}\}}|\{{\{{|\}}\}}|\{{{_NESTED}\}}"


def _printf(conversions: str, name: str = r"(?:\d++\$)?+") -> str:
    return rf"%{name}{_FLAGS}{_NUMBERS}{_SIZE}[{conversions}%]"


_FORMATS = {
    "c": _printf("diouxXeEfFgGaAcCsSpnm") + r"|%<PRI\w+>",
    "objc": _printf("diouxXeEfFgGaAcCsSpnm@"),
    "python": _printf("diouxXeEfFgGcrsa", r"(?:\([^()]*+\))?+"),
    "java-printf": _printf("bBhHsScCdoxXeEfgGaAtTn"),
    "javascript": _printf("bcdosxXfj"),
    "lua": _printf("cdiouxXaAeEfgGqs"),
    "perl": _printf("csdiouxXeEfFgGbBaApnv"),
    "php": r"%(?:\d++\$)?+(?:[-+ 0]|'.)*+\d*+(?:\.\d++)?+[bcdeEfFgGosuxX%]",
    "ruby": r"%\{\w++\}|" + _printf("diouxXeEfgGaAcspbB", r"(?:<\w++>|\d++\$)?+"),
    "qt": r"%L?(?:[0-9]{1,2}|n)",
    "qt-plural": "%L?n",
    **dict.fromkeys(("kde", "kde-kuit"), r"%(?:[0-9]++|n)"),
    "boost": r"%\d++%|%\|[^|]*+\||" + _printf("diouxXeEfgGaAcspn"),
    **dict.fromkeys(("python-brace", "c++", "rust", "csharp"), _BRACES),
    "java": rf"\{{{_NESTED}\}}",
    "perl-brace": r"\{\w++\}",
    "sh": r"\$(?:\w++|\{\w++\})",
}
"""Flag of gettext without `-format` -> the expression of its placeholders."""

PLACEHOLDER = (
    r"\{\{\{[^{}]*+\}\}\}|\{\{[^{}]*+\}\}|\{%[^{}%]*+%\}|\{#[^{}#]*+#\}|<%(?:[^%<]|%(?!>))*+%>"
    rf"|\{{\w++\s*+,{_NESTED}\}}|[$%#]?\{{[^{{}}\s]*+\}}|%%"
    rf"|%(?:\d++\$|\([\w.]++\)){_FLAGS}{_NUMBERS}{_SIZE}[diouxXeEfFgGaAcsSpr@]"
    rf"|(?<![\d%])%[-+0#]*+(?=[#*.\d]|(?<=[#0])){_NUMBERS}{_SIZE}[diouxXeEfFgGaAcsSpr](?!\d)"
    r"|%(?:ll|l|h|z)?[sdiufFgGeExXcpr@](?![A-Za-z])|(?<![\w%])%(?:ll|l|h|z)?[sdiuf](?=[A-Z]|[a-z]{1,2}(?![A-Za-z]))"
    r"|%L?\d{1,2}(?![\w%])|%L?n(?![A-Za-z])|(?<![\w$])\$[A-Za-z_]\w*+|(?<![\w:/.])(?::[A-Za-z_]\w*+:?+)(?![\w/])"
    r"|&(?:[A-Za-z]++|#\d++|#x[0-9A-Fa-f]++);"
)
"""The expression of what is a placeholder, or an entity, in a text of any kind; it has no groups."""
_IN_ORDER = re.compile(r"%(?!\d+\$|L?\d+%?\Z|L?n\Z|[(<{|%])|\{[:!}]")  # without a number or a name


def expression_of(flags: Iterable[str]) -> re.Pattern[str]:
    """The placeholders of a message, by the format that its flags name, such as `c-format`; else those of any text."""
    named = (_FORMATS.get(flag.removesuffix("-format")) for flag in flags)
    return re.compile("|".join(filter(None, named)) or PLACEHOLDER)


def in_order(placeholders: Iterable[str]) -> list[str]:
    """Those that say by their place alone what they stand for: a translation must have them in the same order."""
    return [one for one in placeholders if _IN_ORDER.match(one)]


def agree(source: str, output: str, expression: re.Pattern[str]) -> bool:
    """Whether an output has the placeholders of its source."""
    one, other = expression.findall(source), expression.findall(output)
    return Counter(one) == Counter(other) and in_order(one) == in_order(other)
