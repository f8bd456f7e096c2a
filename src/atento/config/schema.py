"""From what was written to the config dataclasses: types by reflection and pydantic, messages in plain words."""

import re
import types
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, Field, dataclass, field, fields, is_dataclass, replace
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from pydantic import ConfigDict, TypeAdapter, ValidationError

from atento.config import presets
from atento.config.literals import OneOf
from atento.config.network import NetworkConfig
from atento.config.recipe import SourceConfig, TokenizerConfig
from atento.config.renamed import renamed
from atento.config.yaml12 import Written
from atento.errors import RecipeError, nearest

# A text where a section is expected stands for this one key of it; any other section takes `kind`.
STANDS_FOR: dict[Any, str] = {TokenizerConfig: "path", NetworkConfig: "preset", SourceConfig: "file"}
# Keys a section takes besides its fields.
_OWN = {"vocab_size": 0}  # a released network's vocabulary is that of a tokenizer which is not the recipe's
EXTRA_KEYS: dict[Any, tuple[str, ...]] = {NetworkConfig: ("preset",)}

# What switches an option off, where null does not.
SWITCHED_OFF = {
    **dict.fromkeys(
        ("training.clip", "training.weight_decay", "training.label_smoothing", "training.subword_dropout"), "0"
    ),
    **dict.fromkeys(("training.warmup", "training.average", "training.early_stop"), "0"),
    **dict.fromkeys(("network.dropout", "network.attention.dropout", "network.feed_forward.dropout"), "0"),
    "network.positions": "none",
    "metrics": "[]",
}

_WORDS: dict[Any, str] = {int: "an integer", float: "a number", str: "text", bool: "true or false", type(None): "null"}
_MANY: dict[Any, str] = {int: "integers", float: "numbers", str: "texts"}
_WHOLE = re.compile(r"[-+]?[0-9]+(?:_[0-9]+)+")
_NAMED = re.compile(r"`([\w.]+)`")
_LARGEST = 2**63


def dotted(path: str, key: str | int) -> str:
    """The dotted key of a part."""
    return f"{path}.{key}" if path else str(key)


def arms(hint: Any) -> tuple[Any, ...]:
    """The alternatives of a type: those of a union, else the type itself."""
    if get_origin(hint) is Annotated:
        return arms(get_args(hint)[0])
    return get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)


def section(hint: Any) -> type | None:
    """The dataclass among the alternatives of a type."""
    return next((arm for arm in arms(hint) if isinstance(arm, type) and is_dataclass(arm)), None)


def element(hint: Any) -> Any:
    """What a type's variable-length tuple holds, or None where it has none."""
    for arm in arms(hint):
        inside = get_args(arm)
        if get_origin(arm) is tuple and len(inside) == 2 and inside[1] is Ellipsis:
            return inside[0]
    return None


@cache
def keys_of(cls: type) -> dict[str, Any]:
    """The fields of a section and their types."""
    hints = get_type_hints(cls, include_extras=True)
    return {part.name: hints[part.name] for part in fields(cls) if part.init}


def below(hint: Any, key: str) -> Any:
    """The type of a part of a section, a list or a free mapping; None where there is no such part."""
    cls = section(hint)
    if cls is not None:
        return keys_of(cls).get(key)
    free = next((get_args(arm)[1] for arm in arms(hint) if get_origin(arm) in (dict, Mapping)), None)
    return element(hint) if free is None else free


def describe(hint: Any) -> str:
    """A type in words: `an integer or null`, `one of linear, cosine`, `a list of 2 numbers`."""
    words = []
    if get_origin(hint) is Annotated and (named := [one for one in get_args(hint)[1:] if isinstance(one, OneOf)]):
        return f"one of {', '.join(named[0].table)}"
    for arm in arms(hint):
        inside = get_args(arm)
        if get_origin(arm) is Literal:
            words.append(f"one of {', '.join(map(str, inside))}")
        elif get_origin(arm) is tuple:
            mappings = bool(inside) and isinstance(inside[0], type) and is_dataclass(inside[0])
            what = "mappings" if mappings else _MANY.get(inside[0] if inside else None, "values")
            words.append(f"a list of {what}" if Ellipsis in inside else f"a list of {len(inside)} {what}")
        elif get_origin(arm) in (dict, Mapping) or (isinstance(arm, type) and is_dataclass(arm)):
            words.append("a mapping")
        else:
            words.append(_WORDS.get(arm, getattr(arm, "__name__", str(arm))))
    return " or ".join(words)


def shown(value: Any) -> str:
    """A value for a message: short, and as YAML names it."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, dict | list):
        return f"a {'mapping' if isinstance(value, dict) else 'list'} of {len(value)}"
    if isinstance(value, int) and abs(value) >= 10**30:
        return f"an integer of about {value.bit_length() * 3 // 10} digits"
    text = repr(value) if isinstance(value, int | float | str) else f"a value of type {type(value).__name__}"
    return text if len(text) <= 60 else f"{text[:57]}..."


def expand(node: Written, hint: Any) -> Written:
    """The short forms written out: one value for a list of one, a text for a section's main key."""
    if element(hint) is not None and section(hint) is None and node.value is not None:
        if isinstance(node.value, list):
            return node
        return replace(node, value=[expand(replace(node, key_place=""), element(hint))])
    cls = section(hint)
    if cls is not None and isinstance(node.value, str) and str not in arms(hint):
        key = STANDS_FOR.get(cls, "kind")
        if key in (*keys_of(cls), *EXTRA_KEYS.get(cls, ())):
            kinds = get_args(keys_of(cls).get("kind"))
            if key == "path" and node.value in kinds:
                text = node.value
                raise RecipeError(
                    f"{node.place}: {text!r} reads as the path of a tokenizer; "
                    f"write {{kind: {text}}} for the kind, ./{text} for a folder of that name"
                )
            return replace(node, value={key: replace(node, key_place=node.place)})
    return node


@dataclass
class Reading:
    """One reading of a recipe, by dotted key: where values that are not defaults come from, and where parts stand."""

    origins: dict[str, str] = field(default_factory=dict)
    places: dict[str, str] = field(default_factory=dict)

    def fit(self, node: Written, hint: Any, path: str, start: Any = None) -> Any:
        """The value of that type. `start` is the preset's value, which a partly written section changes.

        Raises:
            RecipeError: with the place, the dotted key, the rule and the value got.
        """
        node = expand(node, hint)
        self.places[path] = node.place
        cls, inside = section(hint), element(hint)
        if cls is not None and (isinstance(node.value, dict) or (node.value is None and type(None) not in arms(hint))):
            keep = (
                start if isinstance(start, cls) and isinstance(node.value, dict) and "kind" not in node.value else None
            )
            return self.build(cls, node, path, keep)
        if cls is not None and not any(_takes(arm, node.value) for arm in arms(hint)):
            raise RecipeError(f"{node.place}: {path} must be {describe(hint)}: got {shown(node.value)}")
        if inside is not None and section(inside) is not None and node.value and isinstance(node.value, list):
            return tuple(self.fit(part, inside, dotted(path, n)) for n, part in enumerate(node.value))
        self.origins[path] = node.place
        return _leaf(node, hint, path)

    def build(self, cls: Any, node: Written, path: str, start: Any = None) -> Any:
        """A section: its keys known, each value fitted, its own rules held; errors name the place of the fault."""
        written = node.value if isinstance(node.value, dict) else {}
        known, extra = keys_of(cls), EXTRA_KEYS.get(cls, ())
        for key, child in written.items():
            if key not in known and key not in extra:
                where = f" in {path}" if path else ""
                tail = nearest(key, [*known, *extra])
                moved = renamed(path, key)
                if moved is not None:
                    raise RecipeError(f"{child.key_place or child.place}: {moved}")
                raise RecipeError(f"{child.key_place or child.place}: unknown key {key!r}{where}{tail}")
        named = written.get("preset") if "preset" in extra else None
        if named is not None:
            name = _leaf(named, str, f"{path}.preset")
            start = self.located(lambda: presets.preset(name, **_OWN), named, path)
            origin = f"preset {named.value}"
            self.origins.update({dotted(path, key): origin for key in flatten(start)})
        values = {}
        for key, child in written.items():
            if key in known:
                values[key] = self.fit(child, known[key], dotted(path, key), getattr(start, key, None))
        for part in fields(cls):
            if part.init and part.name not in values and start is None and _required(part):
                raise RecipeError(f"{node.place}: {dotted(path, part.name)} is missing: {describe(known[part.name])}")
        if named is not None:
            made = self.located(lambda: presets.preset(name, **_OWN | values), node, path)
        elif start is not None:
            made = self.located(lambda: replace(start, **values), node, path)
        else:
            made = self.located(lambda: cls(**values), node, path)
        below_0 = {part.name for part in fields(cls) if isinstance(part.default, int) and part.default < 0}
        for key, value in values.items():
            if isinstance(value, int) and value < 0 and str not in arms(known[key]) and key not in below_0:
                raise RecipeError(f"{written[key].place}: {dotted(path, key)} must not be negative: got {value}")
        return made

    def located(self, make: Any, node: Written, path: str) -> Any:
        """Call `make`; a `RecipeError` gets the place of the first key that it names and that was written."""
        try:
            return make()
        except RecipeError as error:
            for name in _NAMED.findall(str(error)):
                found = _under(node, name.removeprefix(f"{path}.").removeprefix(f"{path.rpartition('.')[2]}."))
                if found is not None:
                    raise RecipeError(f"{found.place}: {error}") from None
            raise RecipeError(f"{node.place}: {error}") from None


def _under(node: Written, key: str) -> Written | None:
    """What was written under a dotted key, or None."""
    found: Written | None = node
    for part in key.split("."):
        found = found.value.get(part) if found is not None and isinstance(found.value, dict) else None
    return found


def _takes(arm: Any, value: Any) -> bool:
    """Whether an alternative that is no section may hold such a value."""
    if isinstance(arm, type) and is_dataclass(arm):
        return False
    plain = get_origin(arm) or arm
    if plain is Literal:
        return value in get_args(arm)
    return isinstance(value, list) if plain is tuple else isinstance(plain, type) and isinstance(value, plain)


def _required(part: "Field[Any]") -> bool:
    """Whether a field has no default."""
    return part.default is MISSING and part.default_factory is MISSING


@cache
def _adapter(hint: Any) -> TypeAdapter[Any]:
    """pydantic's strict reading of one type: no text for a number, no bool for an integer, nothing infinite."""
    return TypeAdapter(hint, config=ConfigDict(strict=True, allow_inf_nan=False))


def _whole(value: Any, hint: Any, plain: bool) -> Any:
    """Whole numbers written as `30_000` or `4e3`, where a number is wanted and text is not."""
    kinds = arms(hint)
    if plain and isinstance(value, str) and str not in kinds and (int in kinds or float in kinds):
        return int(value) if _WHOLE.fullmatch(value) else value
    whole = isinstance(value, float) and value.is_integer()
    return int(value) if whole and int in kinds and float not in kinds else value


def _ready(node: Written, hint: Any) -> Any:
    """A written value as pydantic's strict mode wants it: tuples where the type has tuples, whole numbers read."""
    if isinstance(node.value, list):
        parts = next((get_args(arm) for arm in arms(hint) if get_origin(arm) is tuple), None)
        if parts is None:
            inside = next((get_args(arm) for arm in arms(hint) if get_origin(arm) is list), (Any,))
            return [_ready(child, inside[0]) for child in node.value]
        each = [parts[0]] * len(node.value) if Ellipsis in parts else [*parts, *[Any] * len(node.value)]
        return tuple(_ready(child, kind) for child, kind in zip(node.value, each, strict=False))
    if isinstance(node.value, dict):
        inside = next((get_args(arm) for arm in arms(hint) if get_origin(arm) in (dict, Mapping)), (Any, Any))
        return {key: _ready(child, inside[1]) for key, child in node.value.items()}
    return _whole(node.value, hint, node.plain)


def _leaf(node: Written, hint: Any, path: str) -> Any:
    """A value that is no section, checked by pydantic; its first complaint becomes one plain sentence."""
    value = _ready(node, hint)
    if isinstance(value, int) and abs(value) >= _LARGEST and not isinstance(value, bool):
        raise RecipeError(f"{node.place}: {path} must lie below 2^63: got {shown(value)}")
    try:
        return _adapter(hint).validate_python(value)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False)[0]
    for step in first["loc"]:  # down to the item at fault; a union's own labels are no steps of ours
        if isinstance(node.value, list) and isinstance(step, int) and step < len(node.value):
            node, path = node.value[step], dotted(path, step)
            hint = next((get_args(arm) for arm in arms(hint) if get_origin(arm) is tuple), (Any,) * (step + 1))
            hint = hint[0] if Ellipsis in hint else hint[step]
        elif isinstance(node.value, dict) and step in node.value:
            node, path = node.value[step], dotted(path, step)
            hint = next((get_args(arm)[1] for arm in arms(hint) if get_origin(arm) in (dict, Mapping)), Any)
    raise RecipeError(f"{node.place}: {path} {_complaint(node, hint, first, path)}")


def refused_null(key: str, hint: Any, default: str) -> str:
    """The rest of the sentence for a null, or nothing, where the type has no null: what switches the option off, and
    what gives the default.
    """
    off = f"{SWITCHED_OFF[key]} switches it off; " if key in SWITCHED_OFF else ""
    return f"must be {'text' if hint is None else describe(hint)}: got null or nothing ({off}{default})"


def _complaint(node: Written, hint: Any, first: Any, path: str) -> str:
    """The rest of the sentence: what the value must be, and what it is."""
    value, got = node.value, shown(node.value)
    if isinstance(value, float) and value - value != 0:
        return f"must be a finite number: got {value}"
    if first["type"] in ("greater_than", "greater_than_equal", "less_than", "less_than_equal", "multiple_of"):
        return f"{first['msg'].replace('Input should be', 'must be')}: got {got}"
    choices = [str(choice) for arm in arms(hint) if get_origin(arm) is Literal for choice in get_args(arm)]
    if choices and isinstance(value, str):
        close = nearest(value, choices).partition(" Known:")[0]
        return f"must be {describe(hint)}: got {got}{close}"
    if str in arms(hint) and value is not None and not isinstance(value, list | dict):
        return f"must be {describe(hint)}: got {got} (put it in quotes if it is text)"
    if value is None:
        return refused_null(path, hint, "leave the key out for the default")
    return f"must be {describe(hint)}: got {got}"


def as_written(value: Any, place: str) -> Written:
    """A Python value in the form of a written one, as overrides given in Python are."""
    if is_dataclass(value) and not isinstance(value, type):
        value = {part.name: getattr(value, part.name) for part in fields(value)}
    if isinstance(value, Mapping):
        items = {str(key): as_written(child, place) for key, child in value.items()}
        return Written({key: replace(child, key_place=place) for key, child in items.items()}, place)
    if isinstance(value, list | tuple):
        return Written([as_written(child, place) for child in value], place)
    return Written(str(value) if isinstance(value, Path) else value, place, key_place=place)


def flatten(value: Any, path: str = "") -> dict[str, Any]:
    """Every value of a section by dotted key: sections and lists of sections opened, other values whole."""
    return dict(_leaves(value, path))


def _leaves(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    """The dotted keys and values under a value, in the order of the fields."""
    if is_dataclass(value):
        for part in fields(value):
            yield from _leaves(getattr(value, part.name), dotted(path, part.name))
    elif isinstance(value, tuple) and any(is_dataclass(item) for item in value):
        for number, item in enumerate(value):
            yield from _leaves(item, dotted(path, number))
    else:
        yield path, value
