"""YAML 1.2 core schema on PyYAML's safe scanner: every value knows where it was written; hostile files end early."""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import yaml

from atento.errors import RecipeError

MAX_BYTES = 1 << 20
MAX_DEPTH = 32
MAX_ALIASES = 100
MAX_VALUES = 4_000  # after aliases are followed: 90 aliases, nine a level, would stand for 9 ** 10 values

Place = Callable[[int, int], str]  # line and column, from 1 -> how the place is named in a message

_NULL = frozenset({"", "~", "null", "Null", "NULL"})
_BOOL = {"true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False}
_INT = re.compile(r"[-+]?[0-9]+")
_OCTAL = re.compile(r"0o[0-7]+")
_HEX = re.compile(r"0x[0-9a-fA-F]+")
_FLOAT = re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?")
_INF = re.compile(r"([-+]?)\.(?:inf|Inf|INF)")
_NAN = frozenset({".nan", ".NaN", ".NAN"})
_MAX_DIGITS = 400  # more digits than any float holds; Python itself stops at 4300


@dataclass(frozen=True)
class Written:
    """A value as somebody wrote it: a scalar, a list of `Written` or a dict of them, with the place it stands at.

    `key_place` is where its key stands (the value's own place in a list), `plain` is True for an unquoted scalar,
    `size` and `height` count the values in it and the levels of it, aliases followed.
    """

    value: Any
    place: str
    key_place: str = ""
    plain: bool = False
    size: int = 1
    height: int = 0

    def bare(self) -> Any:
        """The same as ordinary lists, dicts and scalars."""
        if isinstance(self.value, dict):
            return {key: child.bare() for key, child in self.value.items()}
        if isinstance(self.value, list):
            return [child.bare() for child in self.value]
        return self.value


def resolve(text: str) -> Any:
    """What an unquoted scalar means in the YAML 1.2 core schema (section 10.3.2): null, bool, int, float or text.

    Raises:
        RecipeError: an integer of hundreds of digits.
    """
    if text in _NULL:
        return None
    if text in _BOOL:
        return _BOOL[text]
    base = 10 if _INT.fullmatch(text) else 8 if _OCTAL.fullmatch(text) else 16 if _HEX.fullmatch(text) else 0
    if base:
        if len(text) > _MAX_DIGITS:
            raise RecipeError(f"an integer of {len(text)} characters is too large")
        return int(text if base == 10 else text[2:], base)
    if _FLOAT.fullmatch(text):
        return float(text)
    if infinite := _INF.fullmatch(text):
        return float(infinite[1] + "inf")
    return float("nan") if text in _NAN else text


def read_yaml(text: str, place: Place) -> Written:
    """The one document of a YAML text, with the place of every key and value.

    Args:
        text: at most 1 MiB of YAML 1.2; no directive or tag that makes objects, no duplicate key.
        place: names a line and a column (from 1) in messages, such as `my.yaml:12:3`.

    Raises:
        RecipeError: broken YAML, a duplicate key, or a limit passed (size, depth 32, 100 aliases, 4000 values).
    """
    if len(text.encode("utf-8", "surrogatepass")) > MAX_BYTES:
        raise RecipeError(f"{place(1, 1)}: a recipe may hold at most {MAX_BYTES} bytes")
    try:
        composer = _Composer(yaml.parse(text, Loader=yaml.SafeLoader), place)
        return composer.document()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        spot = place(mark.line + 1, mark.column + 1) if mark else place(1, 1)
        raise RecipeError(f"{spot}: not valid YAML: {error.problem or error.context}") from None
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        column = error.position - text.rfind("\n", 0, error.position)
        code = error.character if isinstance(error.character, int) else ord(error.character)
        raise RecipeError(f"{place(line, column)}: character U+{code:04X} may not stand in YAML") from None
    except (ValueError, OverflowError):  # PyYAML hands an escape such as \UFFFFFFFF straight to chr()
        raise RecipeError(
            f"{place(1, 1)}: not valid YAML: an escape or a directive holds a number out of range"
        ) from None


class _Composer:
    """Events in, one tree of `Written` out; the limits are held while the text is read, not after."""

    def __init__(self, events: Iterator[Any], place: Place) -> None:
        self.events = events
        self.place = place
        self.anchors: dict[str, Written] = {}
        self.aliases = 0
        self.values = 0

    def document(self) -> Written:
        """The whole stream, which must be one document; an empty one is null."""
        next(self.events)  # the start of the stream
        event = next(self.events)
        if isinstance(event, yaml.StreamEndEvent):
            return Written(None, self.place(1, 1))
        root = self.compose(next(self.events), "", 0)
        next(self.events)  # the end of the document
        event = next(self.events)
        if not isinstance(event, yaml.StreamEndEvent):
            raise RecipeError(f"{self.spot(event)}: a recipe is one YAML document, and a second one begins here")
        return root

    def spot(self, event: Any) -> str:
        """Where an event begins."""
        return self.place(event.start_mark.line + 1, event.start_mark.column + 1)

    def compose(self, event: Any, path: str, depth: int) -> Written:
        """The value that begins with this event; `path` is its dotted key, `depth` the collections around it."""
        spot = self.spot(event)
        if isinstance(event, yaml.AliasEvent):
            return self.alias(str(event.anchor), spot, depth)
        self.values += 1
        if self.values > MAX_VALUES:
            raise RecipeError(f"{spot}: a recipe may hold at most {MAX_VALUES} values")
        if isinstance(event, yaml.ScalarEvent):
            node = self.scalar(event, path, spot)
        else:
            if depth >= MAX_DEPTH:
                raise RecipeError(f"{spot}: nested deeper than {MAX_DEPTH} levels")
            if event.tag not in (None, "!", "tag:yaml.org,2002:map", "tag:yaml.org,2002:seq"):
                raise RecipeError(f"{spot}: tags are not read in a recipe: got {_tag(event.tag)}")
            if isinstance(event, yaml.MappingStartEvent):
                node = self.mapping(path, spot, depth)
            else:
                node = self.sequence(path, spot, depth)
        if node.size > MAX_VALUES:
            raise RecipeError(f"{spot}: aliases make this more than {MAX_VALUES} values")
        if event.anchor is not None:
            self.anchors[event.anchor] = node
        return node

    def alias(self, name: str, spot: str, depth: int) -> Written:
        """What an alias stands for."""
        self.aliases += 1
        if self.aliases > MAX_ALIASES:
            raise RecipeError(f"{spot}: a recipe may use at most {MAX_ALIASES} aliases")
        if name not in self.anchors:
            raise RecipeError(f"{spot}: alias *{name} has no anchor &{name} that ends before it")
        node = self.anchors[name]
        if depth + node.height > MAX_DEPTH:
            raise RecipeError(f"{spot}: nested deeper than {MAX_DEPTH} levels")
        return node

    def scalar(self, event: Any, path: str, spot: str) -> Written:
        """A scalar: resolved when it is plain, text when it is quoted or tagged `!!str`."""
        if event.tag is None and event.implicit[0]:
            try:
                return Written(resolve(event.value), spot, plain=True)
            except RecipeError as error:
                raise RecipeError(f"{spot}: {path + ': ' if path else ''}{error}") from None
        if event.tag not in (None, "!", "tag:yaml.org,2002:str"):
            raise RecipeError(f"{spot}: tags are not read in a recipe: got {_tag(event.tag)}")
        return Written(event.value, spot)

    def sequence(self, path: str, spot: str, depth: int) -> Written:
        """The rest of a list."""
        items: list[Written] = []
        while not isinstance(event := next(self.events), yaml.SequenceEndEvent):
            items.append(self.compose(event, f"{path}.{len(items)}" if path else str(len(items)), depth + 1))
        return _collection(items, spot, items)

    def mapping(self, path: str, spot: str, depth: int) -> Written:
        """The rest of a mapping; keys are text and stand once."""
        items: dict[str, Written] = {}
        while not isinstance(event := next(self.events), yaml.MappingEndEvent):
            key_place = self.spot(event)
            key = self.compose(event, path, depth + 1).value
            if not isinstance(key, str):
                got = "a list or a mapping" if isinstance(key, list | dict) else "null" if key is None else repr(key)
                raise RecipeError(f"{key_place}: a key must be text (in quotes if need be): got {got}")
            if key in items:
                first = items[key].key_place
                raise RecipeError(f"{key_place}: duplicate key {key!r}; it already stands at {first}")
            child = self.compose(next(self.events), f"{path}.{key}" if path else key, depth + 1)
            items[key] = replace(child, key_place=key_place)
        return _collection(items, spot, list(items.values()))


def _collection(value: Any, spot: str, children: list[Written]) -> Written:
    """A list or a mapping with its size and height."""
    height = 1 + max((child.height for child in children), default=0)
    return Written(value, spot, size=1 + sum(child.size for child in children), height=height)


def _tag(tag: str) -> str:
    """A tag as people write it."""
    return tag.replace("tag:yaml.org,2002:", "!!")
