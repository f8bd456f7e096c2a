"""Where a text has what a translation must not change: tags, placeholders, addresses, numbers and emoji.

What stands side by side, with nothing but marks and blanks between, is one span, which keeps them: `{a}, {b}`.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise

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


_OF_ADDRESS = r"(?>\([^\s<>()]*\)|[^\s<>])"
# keycaps; symbols; signs that U+FE0F makes symbols; with colours, joiners and the letters of flags
EMOJI = (
    "(?:(?:[0-9#*]\ufe0f?\u20e3|(?:[\U0001f000-\U0001faff\u231a\u231b\u2600-\u27bf\u2b00-\u2bff\u23e9-\u23fa]"
    "|[\u00a9\u00ae\u203c-\u3299]\ufe0f)[\ufe0f\u200d\U0001f3fb-\U0001f3ff\U000e0020-\U000e007f]*+)+)"
)
_KINDS = {
    "tag": TAG,
    # a bracket at its end is of it where its other half is
    "address": rf"(?:(?:https?|ftp)://|www\.){_OF_ADDRESS}*(?:\([^\s<>()]*+\)|[^\s<>.,;:!?)\"'»”\]])"
    r"|(?<![\w.+-])[\w.+-]++@[\w-]++(?:\.[\w-]++)++",
    "placeholder": PLACEHOLDER,
    "emoji": EMOJI,
    # with its signs, and with letters, as in 1980s and 2h30, but for 3rd, which is another word elsewhere
    "number": r"(?<![\w.,])(?:[A-Z]{0,3}[$€£¥₹][ \u00a0\u202f]?)?+\d++(?:[.,:/-]\d++)*+"  # R$ 1,50
    r"(?:(?!(?:st|nd|rd|th)\b)[A-Za-z]\w*+)?+(?:[ \u00a0\u202f]?[%‰$€£¥₹](?![\w(%{]))?+(?!\w)",
}
SPANS = re.compile("|".join(f"(?P<{kind}>{pattern})" for kind, pattern in _KINDS.items()))
_JOINED = re.compile(rf"\d[.,:/-]?(?:{TAG})+[.,:/-]?\d")  # numbers that would be one without the tags between them
_AROUND = ("()", "[]", "«»", "“”", "‘’", '""', "''", "（）", "「」", "《》")
CLOSING = ".,;:!?)»”…]。！？，、；："
_SIGNS = frozenset("#@~^*+=/\\|_$-\u200e\u200f\u061c\u2066\u2067\u2068\u2069")  # that belong to what they touch
_UNITS = frozenset("%‰°²³")  # behind it
_APART = re.compile(r"\w|[.!?…](?=\s)|[。！？]")  # between two spans that are not one
_LIST = re.compile(r"[,;]\s|[、，；]|\A\s+\Z")  # between a number and something else


@dataclass(frozen=True)
class Found:
    """A span of a text."""

    kind: str  # "tag", "address", "placeholder", "emoji" or "number": what it begins with
    # `start`, `end`: where it stands
    start: int
    end: int
    is_half: bool = False  # whether it is a tag that begins or ends an element around words, or without its other half
    parts: int = 1  # how many things it joins


def found_in(text: str, *, tags_only: bool = False) -> list[Found]:
    """The spans of a text, or its tags alone, with those between them; in linear time.

    A pair of tags around spans and marks, without words, is one; of tags alone, one around a number is so if it touches
    what stands before it, or begins with a bracket, as the mark of a note does, since words may depend on a number.
    Signs that touch a span, and brackets and quotation marks around it, belong to it.
    """
    tags_only, matches = tags_only and not _JOINED.search(text), list(SPANS.finditer(text))
    kinds = [str(match.lastgroup) for match in matches]
    gaps = [text[a.end() : b.start()] for a, b in pairwise(matches)]
    words = [0, *accumulate(any(map(str.isalnum, gap)) for gap in gaps)]
    marks = [0, *accumulate(not gap.isspace() and gap != "" for gap in gaps)]
    things = [0, *accumulate(kind != "tag" or not any(halves(match[0])) for kind, match in zip(kinds, matches))]
    numbers = [0, *accumulate(kind == "number" for kind in kinds)]
    tags, around, within = [n for n, kind in enumerate(kinds) if kind == "tag"], set[int](), [0] * len(kinds)
    for pair in pairs_of(matches[n][0] for n in tags):
        first, last = tags[pair[0]], tags[pair[1]]
        start, inside = matches[first].span()
        is_note = text[max(0, start - 1) : start].strip() != "" or text[inside] in "[("
        is_kept = marks[first] == marks[last] or things[first] != things[last]  # else it is around a mark
        is_kept = is_kept and (is_note or not tags_only or numbers[first] == numbers[last])
        if words[first] == words[last] and is_kept:
            within[first] += 1
            within[last] -= 1
        else:
            around |= {first, last}
    groups, depth = list[tuple[int, int]](), 0  # the first and last match of each
    for number, step in enumerate(within):
        if depth:
            groups[-1] = (groups[-1][0], number)
        elif kinds[number] == "tag" or not tags_only:
            groups.append((number, number))
        depth += step
    out, last = list[Found](), -1
    for place, (first, final) in enumerate(groups):
        is_half = first == final and kinds[first] == "tag" and (first in around or any(halves(matches[first][0])))
        one = Found(kinds[first], matches[first].start(), matches[final].end(), is_half, 1 + final - first)
        high = matches[groups[place + 1][0]].start() if place + 1 < len(groups) else len(text)
        one = _widened(text, one, out[-1].end if out else 0, high, numbers[final + 1] > numbers[first])
        if out and last + 1 == first and _are_joined(text, out[-1], one):
            low, one = out[-2].end if len(out) > 1 else 0, replace(out.pop(), end=one.end, parts=2)
            one = _widened(text, one, low, high)
        out.append(one)
        last = final
    return out


def _are_joined(text: str, one: Found, other: Found) -> bool:
    """Whether two spans are one, with what stands between them."""
    gap = text[one.end : other.start]
    is_list = "number" in (one.kind, other.kind) and _LIST.search(gap)
    return not (one.is_half or other.is_half or is_list or _APART.search(gap))


def _widened(text: str, found: Found, low: int, high: int, has_number: bool = False) -> Found:
    """A span with signs that touch it, brackets and quotation marks around it, and the letters of H<sub>2</sub>O."""
    if found.is_half:
        return found

    def past(at: int, limit: int, belongs: Callable[[str], bool]) -> int:
        step = 1 if limit > at else -1
        while at != limit and belongs(text[min(at, at + step)]):
            at += step
        return at

    start, end = found.start, found.end
    first, last = past(start, low, str.isalnum), past(end, high, str.isalnum)
    if has_number and found.kind == "tag" and first < start and last > end:
        start, end = first, last
    first, last = past(start, low, _SIGNS.__contains__), past(end, high, (_SIGNS | _UNITS).__contains__)
    start = start if low < first and not (text[first - 1].isspace() or text[first - 1] in "([«“‘\"'（「《") else first
    end = end if last < high and not (text[last].isspace() or text[last] in CLOSING + "’\"'）」》") else last
    while low < start and end < high and text[start - 1] + text[end] in _AROUND:
        start, end = start - 1, end + 1
    return replace(found, start=start, end=end)
