"""Characters that stand for those of a request while a template is rendered.

So the result shows which of its characters the request brought.

A template reads the strings of a request by their methods: `content.split('x')`, `'x' in content`, `role == 'user'`. A
`Guarded` string answers as the real one would.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

_FIRST, _LAST = 0x20000, 0x110000  # ideographs first: without case, never blank, and printed as they are by `repr`


class StandIns:
    """A stand-in for each of some characters.

    Args:
        characters: those that are replaced.
        taken: characters that the strings have, none of which becomes a stand-in.
        only: what is replaced of a string: the matches of this pattern. None: every one of the characters.
    """

    def __init__(self, characters: Iterable[str], taken: Iterable[str], only: re.Pattern[str] | None = None) -> None:
        in_use = set(taken)
        free = (chr(code) for code in range(_FIRST, _LAST) if chr(code) not in in_use)
        self._hiding = {ord(character): free_one for character, free_one in zip(sorted(set(characters)), free)}
        self._showing = {ord(stand_in): chr(code) for code, stand_in in self._hiding.items()}
        self._only = only

    def hidden(self, text: str) -> str:
        """The text with stand-ins; its length is the same."""
        if self._only is None:
            return text.translate(self._hiding)
        return self._only.sub(lambda match: match[0].translate(self._hiding), text)

    def shown(self, text: str) -> str:
        """The text without stand-ins."""
        return text.translate(self._showing)

    def stands_in(self, text: str) -> bool:
        """Whether one of its characters is a stand-in."""
        return any(ord(character) in self._showing for character in text)

    def guarded(self, value: object) -> object:
        """A value of JSON with all its strings guarded."""
        if isinstance(value, str):
            return Guarded(self.hidden(value), self)
        if isinstance(value, Mapping):
            return {self.guarded(name): self.guarded(part) for name, part in value.items()}
        return [self.guarded(part) for part in value] if isinstance(value, list) else value


class Guarded(str):
    """A string with stand-ins, whose methods read it as the string without."""

    _stand_ins: StandIns

    def __new__(cls, text: str, stand_ins: StandIns) -> "Guarded":
        new = super().__new__(cls, text)
        new._stand_ins = stand_ins
        return new

    def __hash__(self) -> int:
        return hash(self._stand_ins.shown(self))

    def __radd__(self, before: str) -> "Guarded":
        return Guarded(before + str(self), self._stand_ins)

    def replace(self, old: str, new: str, count: int = -1) -> "Guarded":  # type: ignore[override]
        """The text that replaces another one is not of the request, unless it brought it."""
        return Guarded(super().replace(_hidden(old, self._stand_ins), new, count), self._stand_ins)


def _hidden(value: object, stand_ins: StandIns) -> Any:
    """An argument of a method, as it stands in strings with stand-ins."""
    if isinstance(value, tuple):
        return tuple(_hidden(part, stand_ins) for part in value)
    return stand_ins.hidden(value) if type(value) is str else value


def _of(value: object, stand_ins: StandIns) -> object:
    """The result of a method."""
    if isinstance(value, list | tuple):
        return type(value)(_of(part, stand_ins) for part in value)
    return Guarded(value, stand_ins) if isinstance(value, str) else value


def _method(name: str, *, reads: bool) -> Callable[..., object]:
    """A method of `str` for guarded strings; `reads`: its arguments are looked for in the string."""
    plain = getattr(str, name)

    def method(self: Guarded, *arguments: object) -> object:
        given = [_hidden(argument, self._stand_ins) for argument in arguments] if reads else arguments
        return _of(plain(self, *given), self._stand_ins)

    return method


_READING = "__contains__ __eq__ __ne__ startswith endswith find rfind index rindex count split rsplit partition"
for _name in f"{_READING} rpartition strip lstrip rstrip removeprefix removesuffix".split():
    setattr(Guarded, _name, _method(_name, reads=True))
for _name in ("__add__", "__getitem__", "__mul__", "__rmul__", "splitlines"):
    setattr(Guarded, _name, _method(_name, reads=False))
