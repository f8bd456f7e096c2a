"""YAML 1.2 core schema on PyYAML's safe scanner: every value has its position; limits protect against hostile files."""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import yaml

from atento.base.errors import RecipeError

MAX_BYTES = 1 << 20
MAX_DEPTH = 32
MAX_ALIASES = 100
MAX_VALUES = 4_000  # after aliases are followed: 90 aliases, nine a level, would be 9 ** 10 values

Position = Callable[[int, int], str]  # line and column, from 1 -> the position in a message

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
class Node:
    """A value of a YAML document with its position: a scalar, a list of `Node`, or a dict of `Node`.

    `key_position` is the position of its key (of the value itself in a list), `plain` an unquoted scalar as
    written, `size` and `height` count its values and levels, aliases included.
    """

    value: Any
    position: str
    key_position: str = ""
    plain: str = ""
    size: int = 1
    height: int = 0

    def bare(self) -> object:
        """Return the value as ordinary lists, dicts and scalars."""
        if isinstance(self.value, dict):
            return {key: child.bare() for key, child in self.value.items()}
        if isinstance(self.value, list):
            return [child.bare() for child in self.value]
        return self.value


def resolve(text: str) -> object:
    """Resolve an unquoted scalar by the YAML 1.2 core schema (section 10.3.2): null, bool, int, float or text.
    Raises RecipeError: an integer of hundreds of digits.
    """
    if text in _NULL:
        return None
    if text in _BOOL:
        return _BOOL[text]
    base = 10 if _INT.fullmatch(text) else 8 if _OCTAL.fullmatch(text) else 16 if _HEX.fullmatch(text) else 0
    if base:
        if len(text) > _MAX_DIGITS:
            raise RecipeError(f"an integer of {len(text)} characters is too large")
        return int(text if base == 10 else text[2:], base)  # without 0o or 0x
    if _FLOAT.fullmatch(text):
        return float(text)
    if infinite := _INF.fullmatch(text):
        return float(infinite[1] + "inf")
    return float("nan") if text in _NAN else text


def read_yaml(text: str, position: Position) -> Node:
    """Parse a YAML text of one document into nodes.

    Args:
        text: at most 1 MiB of YAML 1.2; no directive or tag that makes objects, no duplicate key.
        position: names a line and a column (from 1) in messages, such as `my.yaml:12:3`.

    Raises:
        RecipeError: broken YAML, a duplicate key, or a limit exceeded (size, depth 32, 100 aliases, 4000 values).
    """
    if len(text.encode("utf-8", "surrogatepass")) > MAX_BYTES:
        raise RecipeError(f"{position(1, 1)}: a recipe may hold at most {MAX_BYTES} bytes")
    try:
        return _Composer(yaml.parse(text, Loader=yaml.SafeLoader), position).document()
    except yaml.MarkedYAMLError as error:
        problem = error.problem_mark or error.context_mark
        spot = position(problem.line + 1, problem.column + 1) if problem else position(1, 1)
        raise RecipeError(f"{spot}: not valid YAML: {error.problem or error.context}") from None
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        column = error.position - text.rfind("\n", 0, error.position)
        code = error.character if isinstance(error.character, int) else ord(error.character)
        raise RecipeError(f"{position(line, column)}: character U+{code:04X} is not allowed in YAML") from None
    except (ValueError, OverflowError):  # PyYAML passes an escape such as \UFFFFFFFF directly to chr()
        raise RecipeError(
            f"{position(1, 1)}: not valid YAML: an escape or a directive holds a number out of range"
        ) from None


class _Composer:
    """Builds a tree of `Node` from events; checks the limits while reading."""

    def __init__(self, events: Iterator[yaml.Event], position: Position) -> None:
        self.events = events
        self.position = position
        self.anchors: dict[str, Node] = {}
        self.aliases = 0
        self.values = 0

    def document(self) -> Node:
        """Read the stream, which must be one document; an empty one is null."""
        next(self.events)  # the start of the stream
        event = next(self.events)
        if isinstance(event, yaml.StreamEndEvent):
            return Node(None, self.position(1, 1))
        root = self.compose(next(self.events), "", 0)
        next(self.events)  # the end of the document
        event = next(self.events)
        if not isinstance(event, yaml.StreamEndEvent):
            raise RecipeError(f"{self.spot(event)}: a recipe is one YAML document, and a second one begins here")
        return root

    def spot(self, event: Any) -> str:
        """Where an event begins."""
        return self.position(event.start_mark.line + 1, event.start_mark.column + 1)

    def compose(self, event: Any, path: str, depth: int) -> Node:
        """Read the value that begins with this event; `path` is its dotted key, `depth` its enclosing collections."""
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
                raise RecipeError(f"{spot}: tags are not supported in a recipe: got {_tag(event.tag)}")
            if isinstance(event, yaml.MappingStartEvent):
                node = self.mapping(path, spot, depth)
            else:
                node = self.sequence(path, spot, depth)
        if node.size > MAX_VALUES:  # each alias counts as what it stands for: few bytes could name billions
            raise RecipeError(f"{spot}: aliases make this more than {MAX_VALUES} values")
        if event.anchor is not None:
            self.anchors[event.anchor] = node
        return node

    def alias(self, name: str, spot: str, depth: int) -> Node:
        """Return the node of an alias."""
        self.aliases += 1
        if self.aliases > MAX_ALIASES:
            raise RecipeError(f"{spot}: a recipe may use at most {MAX_ALIASES} aliases")
        if name not in self.anchors:
            raise RecipeError(f"{spot}: alias *{name} has no anchor &{name} that ends before it")
        node = self.anchors[name]
        if depth + node.height > MAX_DEPTH:
            raise RecipeError(f"{spot}: nested deeper than {MAX_DEPTH} levels")
        return node

    def scalar(self, event: yaml.ScalarEvent, path: str, spot: str) -> Node:
        """A scalar: resolved when it is plain, text when it is quoted or tagged `!!str`."""
        if event.tag is None and event.implicit[0]:
            try:
                return Node(resolve(event.value), spot, plain=event.value)
            except RecipeError as error:
                raise RecipeError(f"{spot}: {path + ': ' if path else ''}{error}") from None
        if event.tag not in (None, "!", "tag:yaml.org,2002:str"):
            raise RecipeError(f"{spot}: tags are not supported in a recipe: got {_tag(event.tag)}")
        return Node(event.value, spot)

    def sequence(self, path: str, spot: str, depth: int) -> Node:
        """Read a list to its end."""
        items: list[Node] = []
        while not isinstance(event := next(self.events), yaml.SequenceEndEvent):
            items.append(self.compose(event, f"{path}.{len(items)}" if path else str(len(items)), depth + 1))
        return _collection(items, spot, items)

    def mapping(self, path: str, spot: str, depth: int) -> Node:
        """Read a mapping to its end; keys are texts without duplicates."""
        items: dict[str, Node] = {}
        while not isinstance(event := next(self.events), yaml.MappingEndEvent):
            key_position = self.spot(event)
            key = self.compose(event, path, depth + 1).value  # also a key may be an alias
            if not isinstance(key, str):
                kind = "a list or a mapping" if isinstance(key, list | dict) else "null" if key is None else repr(key)
                hint = (
                    "; a comma ends an entry, and the sign of decimals is a point" if type(key) in (int, float) else ""
                )
                raise RecipeError(f"{key_position}: a key must be text (in quotes if need be): got {kind}{hint}")
            if key in items:
                first = items[key].key_position
                raise RecipeError(f"{key_position}: duplicate key {key!r}; first defined at {first}")
            child = self.compose(next(self.events), f"{path}.{key}" if path else key, depth + 1)
            items[key] = replace(child, key_position=key_position)
        return _collection(items, spot, list(items.values()))


def _collection(value: object, spot: str, children: list[Node]) -> Node:
    """A list or a mapping with its size and height."""
    height = 1 + max((child.height for child in children), default=0)
    return Node(value, spot, size=1 + sum(child.size for child in children), height=height)


def _tag(tag: str) -> str:
    """Return a tag in its short form."""
    return tag.replace("tag:yaml.org,2002:", "!!")
