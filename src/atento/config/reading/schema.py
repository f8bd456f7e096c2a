"""Build the config dataclasses from a recipe's nodes: types by reflection and pydantic, readable messages."""

import re
import types
from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, dataclass, field, fields, is_dataclass, replace
from functools import cache, partial
from math import isfinite
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from pydantic import ConfigDict, TypeAdapter, ValidationError
from pydantic_core import ErrorDetails

from atento.base.errors import RecipeError, nearest
from atento.config import presets
from atento.config.literals import OneOf
from atento.config.reading.yaml12 import Node
from atento.config.recipe import SourceConfig, TokenizerConfig
from atento.config.sections.initial import InitConfig, TeacherConfig
from atento.config.sections.network import NetworkConfig
from atento.config.tables.renamed_keys import elsewhere, renamed

T = TypeVar("T")
# If a section is a plain text, or a list where the key has one, it is the value of this key; of `kind` for others.
SHORT_FORM_KEY: dict[object, str] = {
    TokenizerConfig: "path",
    NetworkConfig: "preset",
    SourceConfig: "file",
    InitConfig: "model",
    TeacherConfig: "model",
}
# Keys of a section besides its fields.
_OWN = {"vocab_size": 0}  # a released network's vocabulary is that of a tokenizer which is not the recipe's
EXTRA_KEYS: dict[object, tuple[str, ...]] = {NetworkConfig: ("preset",)}

# The value that switches an option off, for options without null.
SWITCHED_OFF = {
    **dict.fromkeys(
        ("training.clip", "training.weight_decay", "training.label_smoothing", "training.subword_dropout"), "0"
    ),
    **dict.fromkeys(("training.warmup", "training.average", "training.early_stop", "training.r_drop"), "0"),
    **dict.fromkeys(("network.dropout", "network.attention.dropout", "network.feed_forward.dropout"), "0"),
    "network.positions": "none",
    "metrics": "[]",
}

_WORDS: dict[object, str] = {
    int: "an integer",
    float: "a number",
    str: "text",
    bool: "true or false",
    type(None): "null",
}
_MANY: dict[object, str] = {int: "integers", float: "numbers", str: "texts"}
_WHOLE = re.compile(r"[-+]?[0-9]+(?:_[0-9]+)+")
_GROUPED = re.compile(r"[-+]?[1-9][0-9]{0,2}\.[0-9]{3}")  # a thousand, as some languages write it
_NAMED = re.compile(r"`([\w.]+)`")
_LARGEST = 2**63


def dotted(path: str, key: str | int) -> str:
    """The dotted key of a part."""
    return f"{path}.{key}" if path else str(key)


def members_of(hint: object) -> tuple[object, ...]:
    """The alternatives of a type: those of a union, else the type itself."""
    if get_origin(hint) is Annotated:
        return members_of(get_args(hint)[0])
    return get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)


def section(hint: object) -> type | None:
    """The dataclass among the alternatives of a type."""
    return next((arm for arm in members_of(hint) if isinstance(arm, type) and is_dataclass(arm)), None)


def element(hint: object) -> object:
    """Return the element type of a type's variable-length tuple, or None."""
    for arm in members_of(hint):
        inside = get_args(arm)
        if get_origin(arm) is tuple and len(inside) == 2 and inside[1] is Ellipsis:
            return inside[0]
    return None


@cache
def keys_of(cls: type) -> dict[str, object]:
    """The fields of a section and their types."""
    plain, marked = get_type_hints(cls), get_type_hints(cls, include_extras=True)
    one_of = {name: hint for name, hint in marked.items() if isinstance(getattr(hint, "__metadata__", (0,))[0], OneOf)}
    return {part.name: (plain | one_of)[part.name] for part in fields(cls) if part.init}


def below(hint: object, key: str) -> object:
    """Return the type of a part of a section, a list or a mapping; None if there is no such part."""
    cls = section(hint)
    if cls is not None:
        return keys_of(cls).get(key)
    free = next((get_args(arm)[1] for arm in members_of(hint) if get_origin(arm) in (dict, Mapping)), None)
    return element(hint) if free is None else free


def unknown_key(path: str, key: str, tail: str) -> str:
    """The message for a key that a section does not have: where it is now, or that it is unknown, with this end."""
    return renamed(path, key) or elsewhere(path, key) or f"unknown key {key!r}{f' in {path}' * bool(path)}{tail}"


def describe(hint: object) -> str:
    """A type in words: `an integer or null`, `one of linear, cosine`, `a list of 2 numbers`."""
    words = []
    if get_origin(hint) is Annotated and (
        named := [marker for marker in get_args(hint)[1:] if isinstance(marker, OneOf)]
    ):
        return f"one of {', '.join(named[0].table)}"
    for arm in members_of(hint):
        inside = get_args(arm)
        if get_origin(arm) is Literal:
            words.append(f"one of {', '.join(map(str, inside))}")
        elif get_origin(arm) is tuple:
            mappings = bool(inside) and isinstance(inside[0], type) and is_dataclass(inside[0])
            noun = "mappings" if mappings else _MANY.get(inside[0] if inside else None, "values")
            words.append(f"a list of {noun}" if Ellipsis in inside else f"a list of {len(inside)} {noun}")
        elif get_origin(arm) in (dict, Mapping) or (isinstance(arm, type) and is_dataclass(arm)):
            words.append("a mapping")
        else:
            words.append(_WORDS.get(arm, getattr(arm, "__name__", str(arm))))
    return " or ".join(words)


def as_text(value: object) -> str:
    """Format a value for a message: shortened, with the names of YAML."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, dict | list):
        return f"a {'mapping' if isinstance(value, dict) else 'list'} of {len(value)}"
    if isinstance(value, int) and abs(value) >= 10**30:
        return f"an integer of about {value.bit_length() * 3 // 10} digits"  # a digit has about 3.3 bits
    text = repr(value) if isinstance(value, int | float | str) else f"a value of type {type(value).__name__}"
    return text if len(text) <= 60 else f"{text[:57]}..."


def expand(node: Node, hint: object) -> Node:
    """Expand the short forms: a single value to a list of one, a text to a section with one key."""
    if element(hint) is not None and section(hint) is None and node.value is not None:
        if isinstance(node.value, list):
            return node
        # an item of a list has no key
        return replace(node, value=[expand(replace(node, key_position=""), element(hint))])
    cls = section(hint)
    if cls is None or str in members_of(hint):
        return node
    key = SHORT_FORM_KEY.get(cls, "kind")
    # `teacher: [a, b]`: a list is short for the key that takes one
    several = isinstance(node.value, list) and element(keys_of(cls).get(key)) is not None
    if (isinstance(node.value, str) or several) and key in (*keys_of(cls), *EXTRA_KEYS.get(cls, ())):
        if key == "path" and node.value in get_args(keys_of(cls).get("kind")):
            text = node.value
            raise RecipeError(
                f"{node.position}: {text!r} reads as the path of a tokenizer; "
                f"write {{kind: {text}}} for the kind, ./{text} for a folder of that name"
            )
        return replace(node, value={key: replace(node, key_position=node.position)})
    return node


@dataclass
class Reader:
    """Builds sections; records by dotted key the origins of values that are not defaults, and positions."""

    origins: dict[str, str] = field(default_factory=dict)
    positions: dict[str, str] = field(default_factory=dict)
    alone: set[str] = field(default_factory=set)  # lists that are written as their only section

    def refused(self, rule: str, *keys: str) -> RecipeError:
        """An error with the place of the first of these keys that is written, or the last key."""
        places = (self.positions.get(key) or self.origins.get(key) for key in keys)
        return RecipeError(f"{next(filter(None, places), keys[-1])}: {rule}")

    def fit(self, node: Node, hint: object, path: str, start: object = None) -> Any:
        """Return the value of a node as type `hint`; an incomplete section changes `start`, the value of a preset.
        Raises RecipeError: with the position, the dotted key, the rule and the value got.
        """
        written, node = node, expand(node, hint)
        self.positions[path] = node.position
        cls, inside = section(hint), element(hint)
        if cls is not None and (
            isinstance(node.value, dict) or (node.value is None and type(None) not in members_of(hint))
        ):
            # another kind has other defaults
            keep = isinstance(start, cls) and isinstance(node.value, dict) and "kind" not in node.value
            return self.build(cls, node, path, start if keep else None)
        if cls is not None and not any(_takes(arm, node.value) for arm in members_of(hint)):
            raise RecipeError(f"{node.position}: {path} must be {describe(hint)}: got {as_text(node.value)}")
        if inside is not None and section(inside) is not None and node.value and isinstance(node.value, list):
            self.alone |= set() if isinstance(written.value, list) else {path}
            return tuple(self.fit(part, inside, dotted(path, n)) for n, part in enumerate(node.value))
        self.origins[path] = node.position
        return _leaf(node, hint, path)

    def build(self, cls: Any, node: Node, path: str, start: Any = None) -> Any:
        """Build a section: check its keys, fit each value, apply its own rules; errors name the position."""
        children = node.value if isinstance(node.value, dict) else {}
        known, extra = keys_of(cls), EXTRA_KEYS.get(cls, ())
        for key, child in children.items():
            if key not in known and key not in extra:
                rule = unknown_key(path, key, nearest(key, [*known, *extra]))
                raise RecipeError(f"{child.key_position or child.position}: {rule}")
        named = children.get("preset") if "preset" in extra else None
        if named is not None:
            name, origin = _leaf(named, str, f"{path}.preset"), f"preset {named.value}"
            start = self.with_position(lambda: presets.preset(name, **_OWN), named, path)
            # what is written beside the preset replaces its origins below
            self.origins |= {dotted(path, key): origin for key in flatten(start)}
            self.origins[dotted(path, "preset")] = named.position
        values = {}
        for key, child in children.items():
            if key in known:
                values[key] = self.fit(child, known[key], dotted(path, key), getattr(start, key, None))
        for part in fields(cls):
            needed = part.init and part.default is MISSING and part.default_factory is MISSING
            if needed and part.name not in values and start is None:
                raise RecipeError(
                    f"{node.position}: {dotted(path, part.name)} is missing: {describe(known[part.name])}"
                )
        make = partial(cls, **values) if start is None else partial(replace, start, **values)
        if named is not None:
            make = partial(presets.preset, name, **_OWN | values)
        result = self.with_position(make, node, path)
        # the keys for which -1 has a meaning
        below_0 = {part.name for part in fields(cls) if isinstance(part.default, int) and part.default < 0}
        for key, value in values.items():
            if isinstance(value, int) and value < 0 and str not in members_of(known[key]) and key not in below_0:
                raise RecipeError(f"{children[key].position}: {dotted(path, key)} must not be negative: got {value}")
        return result

    def with_position(self, make: Callable[[], T], node: Node, path: str) -> T:
        """Call `make`; add to a `RecipeError` the position of the first written key that it names."""
        try:
            return make()
        except RecipeError as error:
            for name in _NAMED.findall(str(error)):
                key = name.removeprefix(f"{path}.").removeprefix(f"{path.rpartition('.')[2]}.")
                named_node: Node | None = node
                for part in key.split("."):
                    inside = None if named_node is None else named_node.value
                    named_node = inside.get(part) if isinstance(inside, dict) else None
                if named_node is not None:
                    raise RecipeError(f"{named_node.position}: {error}") from None
            raise RecipeError(f"{node.position}: {error}") from None


def _takes(arm: object, value: object) -> bool:
    """Whether an alternative that is no section may hold such a value."""
    if isinstance(arm, type) and is_dataclass(arm):
        return False
    plain = get_origin(arm) or arm
    if plain is Literal:
        return value in get_args(arm)
    return isinstance(value, list) if plain is tuple else isinstance(plain, type) and isinstance(value, plain)


def _exactly(value: object, hint: object) -> bool:
    """Whether pydantic would take a value as it is: for most, which saves it the making of an adapter of each type."""
    if get_origin(hint) is Annotated and not all(isinstance(marker, OneOf) for marker in get_args(hint)[1:]):
        return False
    for arm in members_of(hint):
        inside = get_args(arm)
        if get_origin(arm) is Literal and type(value) is str and value in inside:
            return True
        if get_origin(arm) is tuple and Ellipsis in inside and type(value) is tuple:
            return all(_exactly(item, inside[0]) for item in value)
        if type(value) is arm and arm in (str, int, bool, float, type(None)):
            return not isinstance(value, float) or isfinite(value)
    return False  # pydantic decides


@cache
def _adapter(hint: Any) -> TypeAdapter[object]:
    """Return pydantic's strict adapter of a type: no text for a number, no bool for an integer, nothing infinite."""
    return TypeAdapter(hint, config=ConfigDict(strict=True, allow_inf_nan=False))


def _plain_value(node: Node, hint: object) -> object:
    """Convert a node for pydantic's strict mode: lists to tuples if the type is a tuple, `30_000` and `4e3` to int."""
    kinds = members_of(hint)
    if isinstance(node.value, list):
        parts = next((get_args(arm) for arm in kinds if get_origin(arm) is tuple), None)
        if parts is None:
            inside = next((get_args(arm) for arm in kinds if get_origin(arm) is list), (Any,))
            return [_plain_value(child, inside[0]) for child in node.value]
        # a list of another length than that of the type is left to pydantic, which counts
        element_types = [parts[0]] * len(node.value) if Ellipsis in parts else [*parts, *[Any] * len(node.value)]
        return tuple(_plain_value(child, kind) for child, kind in zip(node.value, element_types, strict=False))
    if isinstance(node.value, dict):
        inside = next((get_args(arm) for arm in kinds if get_origin(arm) in (dict, Mapping)), (Any, Any))
        return {key: _plain_value(child, inside[1]) for key, child in node.value.items()}
    written = node.plain and isinstance(node.value, str) and _WHOLE.fullmatch(node.value)
    if written and str not in kinds and (int in kinds or float in kinds):
        return int(node.value)
    whole = isinstance(node.value, float) and node.value.is_integer() and int in kinds and float not in kinds
    return int(node.value) if whole else node.value


def _leaf(node: Node, hint: object, path: str) -> Any:
    """Return the value of a node that is no section, checked by pydantic; raise its first error as one sentence."""
    kinds = members_of(hint)
    if int in kinds and float not in kinds and _GROUPED.fullmatch(node.plain):
        whole = node.plain.replace(".", "")
        raise RecipeError(
            f"{node.position}: {path} must be {describe(hint)}: got {node.plain}; a thousand has no point: {whole}"
        )
    value = _plain_value(node, hint)
    if isinstance(value, int) and abs(value) >= _LARGEST and not isinstance(value, bool):
        raise RecipeError(f"{node.position}: {path} must lie below 2^63: got {as_text(value)}")
    if _exactly(value, hint):
        return value
    try:
        return _adapter(hint).validate_python(value)
    except ValidationError as error:
        # the deepest: of a union, what is wrong inside the alternative that fits
        first = max(error.errors(include_url=False, include_context=False), key=lambda one: len(one["loc"]))
    for step in first["loc"]:  # down to the item at fault; labels of unions are skipped
        if isinstance(node.value, list) and isinstance(step, int) and step < len(node.value):
            node, path = node.value[step], dotted(path, step)
            hint = next((get_args(arm) for arm in members_of(hint) if get_origin(arm) is tuple), (Any,) * (step + 1))
            hint = hint[0] if Ellipsis in hint else hint[step]
        elif isinstance(node.value, dict) and step in node.value:
            node, path = node.value[step], dotted(path, step)
            hint = next((get_args(arm)[1] for arm in members_of(hint) if get_origin(arm) in (dict, Mapping)), Any)
    raise RecipeError(f"{node.position}: {path} {_complaint(node, hint, first, path)}")


def refused_null(key: str, hint: object, default: str) -> str:
    """Return the end of the message for a null value of a type without null: how to switch the option off, and how to
    get the default.
    """
    off = f"{SWITCHED_OFF[key]} switches it off; " if key in SWITCHED_OFF else ""
    return f"must be {'text' if hint is None else describe(hint)}: got null or nothing ({off}{default})"


def _complaint(node: Node, hint: object, first: ErrorDetails, path: str) -> str:
    """Return the end of the message: the rule and the value."""
    value, text = node.value, as_text(node.value)
    if isinstance(value, float) and value - value != 0:  # infinite, or not a number
        return f"must be a finite number: got {value}"
    if first["type"] in ("greater_than", "greater_than_equal", "less_than", "less_than_equal", "multiple_of"):
        return f"{first['msg'].replace('Input should be', 'must be')}: got {text}"
    choices = [str(choice) for arm in members_of(hint) if get_origin(arm) is Literal for choice in get_args(arm)]
    if choices and isinstance(value, str):
        close = nearest(value, choices).partition(" Known:")[0]
        return f"must be {describe(hint)}: got {text}{close}"
    if str in members_of(hint) and value is not None and not isinstance(value, list | dict):
        return f"must be {describe(hint)}: got {text} (put it in quotes if it is text)"
    if value is None:
        return refused_null(path, hint, "leave the key out for the default")
    comma = isinstance(value, str) and re.fullmatch(r"[-+]?[0-9]+,[0-9]+", value)
    return f"must be {describe(hint)}: got {text}" + ("; the sign of decimals is a point" if comma else "")


def plain(value: object) -> object:
    """A value of Python: a number, an array or a column of NumPy, pandas or PyTorch becomes a number or a list."""
    return value.tolist() if hasattr(value, "tolist") else value


def as_node(value: object, position: str) -> Node:
    """Convert a Python value, such as an override, to nodes."""
    value = plain(value)
    if is_dataclass(value) and not isinstance(value, type):
        value = {part.name: getattr(value, part.name) for part in fields(value)}
    if isinstance(value, Mapping):
        items = {str(key): as_node(child, position) for key, child in value.items()}
        return Node({key: replace(child, key_position=position) for key, child in items.items()}, position)
    if isinstance(value, list | tuple):
        return Node([as_node(child, position) for child in value], position)
    return Node(str(value) if isinstance(value, Path) else value, position, key_position=position)


def flatten(value: object, path: str = "") -> dict[str, object]:
    """Return the values of a section by dotted key; sections and lists of sections are flattened."""
    return dict(_leaves(value, path))


def _leaves(value: object, path: str) -> Iterator[tuple[str, object]]:
    """The dotted keys and values under a value, in the order of the fields."""
    if is_dataclass(value):
        for part in fields(value):
            yield from _leaves(getattr(value, part.name), dotted(path, part.name))
    elif isinstance(value, tuple) and any(is_dataclass(item) for item in value):
        for number, item in enumerate(value):
            yield from _leaves(item, dotted(path, number))
    else:
        yield path, value
