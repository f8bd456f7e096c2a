"""Placeholders of message formats: the grammar of each format of gettext, and what is one in any text."""

_FLAGS, _SIZE = "[-+ #0'I]*+", "(?:hh|ll|[hljztLq])?+"
_NUMBERS = r"(?:\*(?:\d++\$)?+|\d++)?+(?:\.(?:\*(?:\d++\$)?+|\d*+))?+"  # width and precision
_NESTED = "[^{}]*+"
for _ in range(6):
    _NESTED = rf"(?:[^{{}}]++|\{{{_NESTED}\}})*+"
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
