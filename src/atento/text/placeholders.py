"""Placeholders of message formats: the grammar of each format of gettext, and what is one in any text."""

import re
from collections import Counter
from collections.abc import Iterable

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
    "kde": r"%(?:[0-9]++|n)",
    "kde-kuit": r"%(?:[0-9]++|n)",
    "boost": r"%\d++%|%\|[^|]*+\||" + _printf("diouxXeEfgGaAcspn"),
    "python-brace": _BRACES,
    "c++": _BRACES,
    "rust": _BRACES,
    "csharp": _BRACES,
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
