"""A process that renders one chat template, and ends with a template that takes too long.

A line of JSON on standard input is the template, every further one a conversation, which a line answers. The limits are
of memory (`RLIMIT_AS`) and of processor time (`ITIMER_PROF`, whose signal ends the process), so that no operation of a
template can pass them.
"""

import json
import random
import re
import resource
import signal
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from typing import Any

from jinja2 import Template, TemplateError, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from atento_serve.chat.stand_ins import StandIns


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


SECONDS = 2.0  # of the processor, for one conversation
MEMORY = 512 << 20  # bytes of the process
CHARACTERS = 4 << 20  # of a rendered conversation
ROLES = frozenset({"system", "developer", "user", "assistant", "tool", "function"})
_QUOTED = frozenset("\"'\\")  # they change as `tojson` writes them


class TemplateFailed(Exception):
    """The template is wrong, or passes a limit; says where."""


class Renderer:
    """A chat template.

    Args:
        source: its text.
        specials: the strings of the special tokens.
        names: variables that hold special tokens.

    Raises:
        TemplateFailed: it is no template.
    """

    def __init__(self, source: str, specials: Sequence[str], names: Mapping[str, str]) -> None:
        self._now, self._names = datetime.now(), dict(names)
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols]
        )
        environment.filters["tojson"] = _tojson
        environment.globals["raise_exception"] = _raise_exception
        environment.globals["strftime_now"] = lambda form: self._now.strftime(str(form))
        try:
            self._template: Template = environment.from_string(source)
        except (TemplateError, RecursionError) as error:
            raise TemplateFailed(_described(error)) from None
        self._alphabet = {char for text in specials for char in text if char.isprintable()} - _QUOTED - {" "}
        # the longer one of two that begin alike
        spelled = sorted((text for text in specials if self._alphabet & set(text)), key=len, reverse=True)
        pattern = "|".join(map(re.escape, spelled)) or "(?!)"  # (?!) matches nothing
        self._specials, self._spelled = re.compile(pattern), re.compile(pattern, re.IGNORECASE)

    def parts(self, messages: list[dict[str, object]], variables: Mapping[str, object]) -> list[str]:
        """A conversation up to where the answer begins, cut at the special tokens that the template writes.

        What the template does with a message is done with its real text. Then it is rendered again with stand-ins
        for characters of the request: where the text is the same, they show which special tokens are spelled by the
        request. First every character that occurs in special tokens has a stand-in; if that text differs, because
        the template looks at words, those of whole special tokens alone; if that differs too, special tokens must be
        such as the request does not spell.

        Args:
            messages: `role`, `content` and further fields.
            variables: of the template, beside those that `transformers` gives.

        Returns:
            A text, a special token, a text and so on; a text at both ends.

        Raises:
            RaisedByTemplate: the template refuses the messages. TemplateFailed: it is wrong, or passes a limit.
        """
        self._now = datetime.now()  # both renderings see the same time
        try:
            real = self._rendered(messages, variables)
        except RaisedByTemplate:
            raise
        except Exception as error:
            raise TemplateFailed(_described(error)) from None
        if self._specials.search(real) is None:
            return [real]
        # characters that occur here cannot stand in
        taken = real + json.dumps([messages, variables], ensure_ascii=False)
        for only in (None, self._spelled):
            stand_ins = StandIns(self._alphabet, taken, only)
            with suppress(Exception):  # the template may refuse stand-ins
                hidden = self._rendered(
                    [_guarded(message, stand_ins) for message in messages],
                    {name: stand_ins.guarded(value) for name, value in variables.items()},
                )
                if stand_ins.shown(hidden) == real:  # nothing but stand-ins differs
                    return self._cut(real, hidden, stand_ins)
        spelled = {
            match[0].lower() for text in _strings([messages, variables]) for match in self._spelled.finditer(text)
        }
        # none of the tokens is one that the request spells
        if not any(match[0].lower() in spelled for match in self._specials.finditer(real)):
            return self._cut(real, real, stand_ins)
        raise TemplateFailed(
            "it looks at special tokens that a message spells, so that theirs cannot be told from its own"
        )

    def _rendered(self, messages: list[dict[str, object]], variables: Mapping[str, object]) -> str:
        random.seed(0)  # the filter `random`, which must choose the same again
        given = {"tools": None, "documents": None, "add_generation_prompt": True, **self._names, **variables}
        texts, count = [], 0
        for text in self._template.generate(messages=messages, **given):
            texts.append(text)
            count += len(text)
            if count > CHARACTERS:
                raise TemplateFailed(f"it writes more than {CHARACTERS:,} characters")
        return "".join(texts)

    def _cut(self, text: str, hidden: str, stand_ins: StandIns) -> list[str]:
        """Cut a text at the special tokens whose places in `hidden` have no stand-in."""
        parts, begin, at = list[str](), 0, 0
        while (match := self._specials.search(text, at)) is not None:
            if stand_ins.stands_in(hidden[match.start() : match.end()]):
                at = match.start() + 1
            else:
                parts += [text[begin : match.start()], match[0]]
                begin = at = match.end()
        return [*parts, text[begin:]]


def _strings(value: object) -> Iterator[str]:
    """All strings of a value of JSON."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        yield from _strings([*value, *value.values()])
    elif isinstance(value, list):
        for part in value:
            yield from _strings(part)


def _guarded(message: Mapping[str, object], stand_ins: StandIns) -> dict[str, object]:
    """A message with stand-ins; the names of its fields, and the usual roles, which are a part of templates, stay."""
    return {
        name: value if name == "role" and value in ROLES else stand_ins.guarded(value)
        for name, value in message.items()
    }


def _described(error: Exception) -> str:
    """What is wrong, with the line of the template."""
    if isinstance(error, TemplateFailed):
        return str(error)
    line = getattr(error, "lineno", None)
    for frame, number in traceback.walk_tb(error.__traceback__):
        line = number if frame.f_code.co_filename in ("<template>", "<unknown>") else line
    where = "" if line is None else f"line {line}: "
    if isinstance(error, MemoryError):
        return f"{where}it takes more than {MEMORY >> 20} MiB of memory"
    name = "" if isinstance(error, TemplateError) else f"{type(error).__name__}: "
    return f"{where}{name}{str(error)[:200]}"


def _answer(renderer: Renderer | TemplateFailed, job: Mapping[str, Any]) -> dict[str, object]:
    try:
        if isinstance(renderer, TemplateFailed):
            raise renderer
        return {"parts": renderer.parts(job["messages"], job["variables"])}
    except RaisedByTemplate as error:
        return {"refused": str(error)[:1000]}
    except TemplateFailed as error:
        return {"failed": str(error)}


def main() -> None:
    """Answer lines until standard input ends."""
    with suppress(ValueError, OSError):  # macOS does not know this limit
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    renderer: Renderer | TemplateFailed | None = None
    for line in sys.stdin.buffer:
        value = json.loads(line)
        signal.setitimer(signal.ITIMER_PROF, SECONDS)
        if renderer is None:
            try:
                renderer = Renderer(**value)
            except TemplateFailed as error:
                renderer = error
        else:
            answer = json.dumps(_answer(renderer, value)).encode()
            signal.setitimer(signal.ITIMER_PROF, 0)
            sys.stdout.buffer.write(answer + b"\n")
            sys.stdout.buffer.flush()
        signal.setitimer(signal.ITIMER_PROF, 0)


if __name__ == "__main__":
    main()
