"""The space of a search: a YAML file of recipe keys, each with choices or a range; its values, ordered and drawn."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any

from atento.base.errors import RecipeError, nearest
from atento.base.limits import open_plain
from atento.config.reading import recipe_layers, schema
from atento.config.reading.dumping import scalar_text
from atento.config.reading.yaml12 import MAX_BYTES, Node, read_yaml

_RANGE_KEYS = ("low", "high", "log", "integer", "step")
_FORM = "a list of choices, or {low, high} with log, integer or step"
# What a search compares its trials by must be the same in all of them.
_FIXED = {
    "name": "it names the recipe",
    "metrics": "scores of different metrics cannot be compared",
    **dict.fromkeys(("data.valid", "data.held_out"), "scores on different validation data cannot be compared"),
    "data.test": "trials are compared on the validation data",
}


@dataclass(frozen=True)
class Choices:
    """A key with a list of values, as nodes with their positions."""

    key: str
    nodes: tuple[Node, ...]

    @property
    def count(self) -> int:
        """The number of values."""
        return len(self.nodes)

    def at(self, index: int) -> Node:
        """Return a value by its number, in the order of the file."""
        return self.nodes[index]

    @property
    def checked(self) -> list[Node]:
        """The values to check before a search."""
        return list(self.nodes)

    def draw(self, uniform: float) -> Node:
        """Return the value at a number that is uniform in [0, 1)."""
        return self.at(int(uniform * self.count))

    def to_dict(self) -> Any:
        """Return the dimension as plain data."""
        return [node.bare() for node in self.nodes]


@dataclass(frozen=True)
class Range:
    """A key with an interval of numbers.

    Attributes:
        low, high: the smallest and the largest value.
    """

    key: str  # the key of the recipe
    low: float
    high: float
    log: bool  # whether the logarithm of the value is uniform instead of the value
    integer: bool  # whether values are whole numbers
    step: float | None  # the values are low, low + step, ... up to high; None: all in between
    position: str  # position in the file

    @property
    def count(self) -> int | None:
        """The number of values; None: there is no step."""
        if self.step is None and not self.integer:
            return None
        return int((Decimal(str(self.high)) - Decimal(str(self.low))) / Decimal(str(self.step or 1))) + 1

    def at(self, index: int) -> Node:
        """Return a value by its number, in rising order."""
        return self._node(float(Decimal(str(self.low)) + index * Decimal(str(self.step or 1))))

    @property
    def checked(self) -> list[Node]:
        """The values to check before a search: both ends."""
        return [self._node(self.low), self._node(self.high)]

    def draw(self, uniform: float) -> Node:
        """Return the value at a number that is uniform in [0, 1), with six significant digits."""
        if self.step is not None:
            return self.at(int(uniform * (self.count or 1)))
        low, high = self.low, self.high + (1 if self.integer else 0)  # cut down, each integer has the same share
        if self.log:
            value = math.exp(math.log(low) + uniform * (math.log(high) - math.log(low)))
        else:
            value = low + uniform * (high - low)
        value = math.floor(value) if self.integer else float(f"{value:.6g}")
        return self._node(min(max(value, self.low), self.high))  # rounding may pass the ends

    def to_dict(self) -> Any:
        """Return the dimension as plain data."""
        return {
            name: value
            for name in _RANGE_KEYS
            if (value := getattr(self, name)) is not None and value is not False  # 0 is a value
        }

    def _node(self, value: float) -> Node:
        return Node(int(value) if self.integer else value, self.position, self.position)


Dimension = Choices | Range


def read_space(space: str | Path | Mapping[str, object]) -> list[Dimension]:
    """Read the space of a search.

    Args:
        space: a YAML file, or a mapping of the same form.

    Returns:
        One dimension a key, in the order of the file.

    Raises RecipeError: the file cannot be read, the space is empty, a key is unknown or cannot be searched, or its
    values have another form; one sentence with file and line.
    """
    if isinstance(space, Mapping):
        root = schema.as_node(space, "space")
    elif isinstance(space, str | Path):
        path = Path(space)
        try:
            with open_plain(path) as file:
                content = file.read(MAX_BYTES + 1)
        except OSError as error:
            raise RecipeError(f"the space {path} cannot be read: {error.strerror}") from None
        root = read_yaml(recipe_layers.decoded(content, str(path)), lambda line, column: f"{space}:{line}:{column}")
    else:
        raise RecipeError(f"a space is a file or a mapping: got {type(space).__name__}")
    if not isinstance(root.value, dict):
        if root.value is None:
            raise RecipeError(f"{root.position}: the space is empty: it needs a recipe key with {_FORM}")
        raise RecipeError(f"{root.position}: a space is a mapping of recipe keys: got {schema.as_text(root.value)}")
    if not root.value:
        raise RecipeError(f"{root.position}: the space is empty: it needs a recipe key with {_FORM}")
    dimensions = [_dimension(key, node) for key, node in root.value.items()]
    for key, node in root.value.items():  # of one value only one key may decide
        outer = next((name for name in root.value if key.startswith(f"{name}.")), None)
        if outer is not None:
            raise RecipeError(f"{_at(node)}: {key} is part of {outer}, which the space sets too; give one of the two")
    return dimensions


def size(dimensions: list[Dimension]) -> int | None:
    """Return the number of different trials; None: there is no bound."""
    counts = [dimension.count for dimension in dimensions]
    return None if None in counts else math.prod(count for count in counts if count is not None)


def _at(node: Node) -> str:
    """The position of the key of a node."""
    return node.key_position or node.position


def _dimension(key: str, node: Node) -> Dimension:
    at = _at(node)
    if not isinstance(key, str) or not all(key.split(".")):
        raise RecipeError(f"{at}: a key of a space is dotted text such as training.learning_rate: got {key!r}")
    for fixed, reason in _FIXED.items():
        if key == fixed or key.startswith(f"{fixed}."):
            raise RecipeError(f"{at}: {key} cannot be searched: {reason}")
    hint = recipe_layers.type_at(key, at)
    if isinstance(node.value, list):
        if not node.value:
            raise RecipeError(f"{node.position}: {key} has no choices: the list is empty")
        texts = [scalar_text(child.bare()) for child in node.value]
        for number, (child, text) in enumerate(zip(node.value, texts)):
            if text in texts[:number]:
                raise RecipeError(f"{child.position}: {key} has the choice {text} twice")
        return Choices(key, tuple(node.value))
    if not isinstance(node.value, dict) or not ({"low", "high"} & node.value.keys()):
        if isinstance(node.value, dict) and schema.section(hint) is not None:
            way = f"write its keys with dots, such as {key}.{next(iter(node.value), 'key')}"
            raise RecipeError(f"{at}: {key} is a section: {way}")
        raise RecipeError(f"{at}: {key} must have {_FORM}: got {schema.as_text(node.value)}")
    return _range(key, node, hint)


def _range(key: str, node: Node, hint: object) -> Range:
    for name, child in node.value.items():
        if name not in _RANGE_KEYS:
            raise RecipeError(f"{_at(child)}: unknown key {name!r} in {key}{nearest(name, list(_RANGE_KEYS))}")
    takes = schema.members_of(hint)
    integers_only = int in takes and float not in takes
    read = partial(_number, key, node)
    low, high, step = read("low"), read("high"), read("step", None)
    log, integer = _switch(key, node, "log", False), _switch(key, node, "integer", integers_only)
    at = node.position
    if int not in takes and float not in takes:
        raise RecipeError(f"{at}: {key} must be {schema.describe(hint)}, so it has no range; list its choices")
    if integers_only and not integer:
        raise RecipeError(f"{node.value['integer'].position}: {key} takes integers only: `integer` is false")
    if not low < high:
        raise RecipeError(f"{at}: {key}: `low` must be below `high`: got {low} and {high}")
    if log and low <= 0:
        raise RecipeError(f"{at}: {key}: `log` needs a `low` above 0: got {low}")
    if log and step is not None:
        raise RecipeError(f"{at}: {key}: `log` and `step` cannot be combined; list the choices")
    if step is not None and not 0 < step <= high - low:
        raise RecipeError(f"{at}: {key}: `step` must be above 0 and at most `high` - `low`: got {step}")
    for name, value in (("low", low), ("high", high), ("step", step)):
        if integer and value is not None and value != int(value):
            raise RecipeError(f"{at}: {key}: `{name}` must be an integer: got {value}")
    return Range(key, low, high, log, integer, step, at)


_REQUIRED = object()


def _number(key: str, node: Node, name: str, default: object = _REQUIRED) -> Any:
    child = node.value.get(name)
    if child is None:
        if default is _REQUIRED:
            raise RecipeError(f"{node.position}: {key}: `{name}` is missing: a range is {{low, high}}")
        return default
    value = child.value
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise RecipeError(f"{child.position}: {key}: `{name}` must be a finite number: got {schema.as_text(value)}")
    return value


def _switch(key: str, node: Node, name: str, default: bool) -> bool:
    child = node.value.get(name)
    if child is None:
        return default
    if not isinstance(child.value, bool):
        raise RecipeError(f"{child.position}: {key}: `{name}` must be true or false: got {schema.as_text(child.value)}")
    return child.value
