"""The language of chat templates: sandboxed Jinja with what `transformers` adds to it."""

import json
from collections.abc import Callable
from datetime import datetime
from typing import Any

from jinja2 import TemplateError, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment


class RaisedByTemplate(TemplateError):
    """The template called `raise_exception`."""


class _Generation(Extension):
    """`{% generation %}` ... `{% endgeneration %}`: what the assistant wrote; it is rendered as it stands."""

    tags = {"generation"}  # noqa: RUF012 (declared by Jinja as of the instance)

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("_contents"), [], [], body).set_lineno(line)

    def _contents(self, caller: Callable[[], str]) -> str:
        return caller()


def _raise_exception(message: object) -> None:
    raise RaisedByTemplate(str(message))


def _tojson(
    value: object, ensure_ascii: bool = False, indent: Any = None, separators: Any = None, sort_keys: bool = False
) -> str:
    """JSON without escapes for HTML, which the filter of Jinja adds."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def chat_environment(now: Callable[[], datetime]) -> ImmutableSandboxedEnvironment:
    """The environment of chat templates; `now` gives the time of `strftime_now`."""
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols]
    )
    environment.filters["tojson"] = _tojson
    environment.globals |= {
        "raise_exception": _raise_exception,
        "strftime_now": lambda form: now().strftime(str(form)),
    }
    return environment
