"""A recipe for people: as YAML that reads back equal, as JSON Schema, as a difference; and what each key means."""

import ast
import inspect
import re
import textwrap
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass
from functools import cache, lru_cache
from typing import Any

import yaml
from pydantic import ConfigDict, TypeAdapter

from atento.base.errors import RecipeError, nearest
from atento.config.presets import PRESETS
from atento.config.reading import schema
from atento.config.recipe import Recipe
from atento.config.sections.network import NetworkConfig

# Keys that are no fields: their section, type and meaning.
_OTHER = {
    (Recipe, "extends"): ("text", "Path or name of a recipe whose keys this one changes."),
    (NetworkConfig, "preset"): (f"one of {', '.join(sorted(PRESETS))}", "A known network, which other keys change."),
}
_SENTENCE = re.compile(r"(?<!et al)\. ")  # where one ends
_RANGE = re.compile(r" *(?<!\")\[(?!@|\.\.\.)([^\[\]]+)\]")  # not the text "[NUM]", nor a list [...]


@dataclass(frozen=True)
class KeyHelp:
    """One key of a recipe."""

    key: str  # dotted, such as `training.steps`; sources are `data.train`, `data.valid` and `data.test`
    type: str  # the values it takes, in words
    default: str  # as YAML; "required" without a default
    range: str  # which of these values are allowed; "" where the type says it all
    meaning: str  # its effect, and when to change it
    keys: tuple[str, ...] = ()  # the names of its keys, if it is a section

    @property
    def summary(self) -> str:
        """The first sentence of the meaning, without its full stop."""
        return _SENTENCE.split(self.meaning, maxsplit=1)[0].rstrip(".")


@cache
def field_texts(cls: type) -> dict[str, str]:
    """The text under each field of a configuration class, by field name; one line each."""
    (body,) = ast.parse(textwrap.dedent(inspect.getsource(cls))).body
    assert isinstance(body, ast.ClassDef)
    texts = {}
    for statement, after in zip(body.body, body.body[1:]):
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
            text = after.value if isinstance(after, ast.Expr) else None
            if isinstance(text, ast.Constant) and isinstance(text.value, str):
                texts[statement.target.id] = " ".join(text.value.split())
    return texts


def explain(key: str) -> KeyHelp:
    """Return the help of a dotted key.
    Raises RecipeError: no such key; names the nearest one and all that are known there.
    """
    hint: object = Recipe
    help: KeyHelp | None = None
    path = ""
    for name in key.split("."):
        if name.isdecimal() and help is not None and schema.element(hint) is not None:
            continue  # an index into a list
        cls = _class(hint)
        known = [] if cls is None else [*schema.keys_of(cls), *(k for c, k in _OTHER if c is cls)]
        if cls is None or name not in known:
            found = [one.key for _, keys in sections() for one in keys if one.key.endswith(f".{name}")]
            if found and not path:
                raise RecipeError(f"unknown key {name!r}; did you mean {' or '.join(found)}?")
            raise RecipeError(schema.unknown_key(path, name, nearest(name, known) if known else ": it has no keys"))
        path = schema.dotted(path, name)
        help = _help(cls, name, path)
        hint = schema.keys_of(cls).get(name)
    assert help is not None
    return help


def sections() -> Iterator[tuple[str, list[KeyHelp]]]:
    """Every section of a recipe, the whole recipe ("") first: its dotted key, and its keys in their order.

    The three splits of the data are explained once, as `data.train`.
    """
    for cls, path in _walk(Recipe, "", []):
        names = (*(name for owner, name in _OTHER if owner is cls), *schema.keys_of(cls))
        yield path, [_help(cls, name, schema.dotted(path, name)) for name in names]


def section_classes() -> list[type]:
    """The class of every section, that of the whole recipe first."""
    return [cls for cls, _ in _walk(Recipe, "", [])]


def _walk(cls: type, path: str, done: list[type]) -> Iterator[tuple[type, str]]:
    """Yield a section and those below it, each class once, at its first occurrence."""
    done.append(cls)
    yield cls, path
    for name, hint in schema.keys_of(cls).items():
        below = _class(hint)
        if below is not None and below not in done:
            yield from _walk(below, schema.dotted(path, name), done)


def _class(hint: object) -> type | None:
    """Return the section of a type, or of the elements of a list type."""
    for alternative in (hint, schema.element(hint)):
        section = schema.section(alternative) if alternative is not None else None
        if section is not None:
            return section
    return None


def _help(cls: type, name: str, path: str) -> KeyHelp:
    if (cls, name) in _OTHER:
        kind, meaning = _OTHER[cls, name]
        return KeyHelp(path, kind, "null", "", meaning)
    hint = schema.keys_of(cls)[name]
    text = field_texts(cls).get(name, "")
    allowed = _RANGE.search(text)
    below = _class(hint)
    return KeyHelp(
        key=path,
        type=schema.describe(hint) if below is None else _section_type(hint, below),
        default=_default(next(part for part in fields(cls) if part.name == name)),
        range="" if allowed is None else allowed.group(1),
        meaning=_RANGE.sub("", text, count=1),
        keys=() if below is None else tuple(schema.keys_of(below)),
    )


def _section_type(hint: object, cls: type) -> str:
    """Return the values that a section may be written as."""
    key = schema.SHORT_FORM_KEY.get(cls, "kind")
    kinds = schema.keys_of(cls).get(key)
    short = f", or a text for its `{key}`" if kinds is not None or (cls, key) in _OTHER else ""
    short += f", or a list for its `{key}`" if schema.element(kinds) is not None else ""
    return ("a section, or a list of them" if schema.element(hint) is not None else "a section") + short


def _default(part: "Field[object]") -> str:
    """Return a default as YAML; for a section, a reference to the defaults of its keys."""
    value = part.default if part.default_factory is MISSING else part.default_factory()
    if value is MISSING:
        return "required"
    if is_dataclass(value) or (isinstance(value, tuple) and any(is_dataclass(item) for item in value)):
        kind = getattr(value, "kind", None)
        return "as below" if kind is None else str(kind)
    return f"[{', '.join(map(_yaml, value))}]" if isinstance(value, tuple | list) else _yaml(value)


def _yaml(value: object) -> str:
    if value == {}:
        return "{}"
    if isinstance(value, tuple | list):
        return f"[{', '.join(map(_yaml, value))}]"
    return (
        '""' if value == "" else schema.as_text(value).strip("'") if isinstance(value, str) else schema.as_text(value)
    )


_KEY = re.compile(r"^( *)(\w+):.*")


def dump_recipe(
    recipe: Recipe, origins: Mapping[str, str] | None = None, later: Mapping[str, str] | None = None
) -> str:
    """The whole recipe as YAML, defaults and presets written out; `load_recipe` reads it back to an equal one.

    Args:
        recipe: what to write.
        origins: dotted key -> origin, as in `LoadedRecipe`; written as a comment at the end of each line.
        later: the keys whose values are known when training begins, and what they are; written as comments without a
            value, so that the recipe leaves them open as this one does.
    """
    later = later or {}
    lines = [
        (_KEY.sub(rf"\1# \2: {later[key]}", text), key) if key in later else (text, key)
        for text, key in _lines(recipe, "", "", "")
    ]
    # a heading stays if not all that is below it are comments
    lines = [(text, key) for number, (text, key) in enumerate(lines) if key or not _is_empty(lines, number)]
    if origins is None:
        return "".join(f"{text}\n" for text, _ in lines)
    width = min(48, max(len(text) for text, key in lines if key))
    return "".join(f"{text:<{width}}  # {origins.get(key, 'default')}\n" if key else f"{text}\n" for text, key in lines)


def _is_empty(lines: Sequence[tuple[str, str]], number: int) -> bool:
    """Whether all lines of a section, whose name is line `number`, are comments."""
    indent = len(lines[number][0]) - len(lines[number][0].lstrip())
    for text, key in lines[number + 1 :]:
        inner = text.lstrip(" -")
        if len(text) - len(text.lstrip()) <= indent:
            break
        if key and not inner.startswith("#"):
            return False
    return True


def recipe_schema() -> dict[str, object]:
    """JSON Schema of recipe files, short forms included, so that an editor completes keys and marks mistakes."""
    adapter = TypeAdapter(list[Recipe], config=ConfigDict(extra="forbid"))
    definitions = adapter.json_schema()["$defs"]
    top = definitions.pop("Recipe")
    named = {"TokenizerConfig": "folder of a trained tokenizer", "InitConfig": "model to fine-tune"}
    named |= {"SourceConfig": "path of a text file", "TeacherConfig": "model to learn from"}
    presets = {"NetworkConfig": {"enum": sorted(PRESETS)}}  # the values of a section that is a plain text

    def short_form(part: dict[str, object]) -> list[dict[str, Any]]:
        """Return the schemas of a section's short form."""
        target = str(part.get("$ref", "")).removeprefix("#/$defs/")
        kinds = definitions.get(target, {}).get("properties", {}).get("kind")
        if target in named:
            text: dict[str, Any] = {"type": "string", "description": f"the {named[target]}"}
            return [text, {"type": "array", "items": text}] if target == "TeacherConfig" else [text]
        if target in presets or kinds is None:
            return [presets[target]] if target in presets else []
        return [{word: kinds[word] for word in ("enum", "const") if word in kinds} or {"type": "string"}]

    texts = {cls.__name__: field_texts(cls) for cls in section_classes()}
    for name, definition in [*definitions.items(), ("Recipe", top)]:
        for key, part in definition["properties"].items():
            arms, short = part.get("anyOf", [part]), []
            for arm in arms:
                short += short_form(arm)
                if arm.get("type") == "array" and "prefixItems" not in arm:
                    items, element = short_form(arm["items"]), arm["items"]
                    if items:
                        arm["items"] = {"anyOf": [*items, element]}
                    if arm is part:  # a single value is a list of one
                        short += [*items, *element.get("anyOf", [element])]
            if short:
                default = {"default": part.pop("default")} if "default" in part else {}
                definition["properties"][key] = {"anyOf": [*short, *arms], **default}
            definition["properties"][key]["description"] = texts[name][key]
        if name == NetworkConfig.__name__:
            meaning = explain("network.preset").meaning
            definition["properties"]["preset"] = {"enum": sorted(PRESETS), "description": meaning}
    top["properties"]["extends"] = {"type": "string", "description": explain("extends").meaning}
    top["required"] = []  # `extends` may supply them
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **top, "$defs": definitions}


def recipe_values(recipe: Recipe) -> dict[str, str]:
    """Every dotted key with its value as YAML writes it."""
    return {key: scalar_text(value) for key, value in schema.flatten(recipe).items()}


def recipe_difference(a: Recipe, b: Recipe) -> list[str]:
    """Return the dotted keys with different values, and both values: `training.steps: 2000 -> 3000`."""
    old, new = schema.flatten(a), schema.flatten(b)
    keys = [*old, *(key for key in new if key not in old)]
    return [
        f"{key}: {_or_absent(old, key)} -> {_or_absent(new, key)}"
        for key in keys
        if key not in old or key not in new or type(old[key]) is not type(new[key]) or old[key] != new[key]
    ]


def _or_absent(values: Mapping[str, object], key: str) -> str:
    return scalar_text(values[key]) if key in values else "(absent)"


def _lines(value: Any, indent: str, first: str, path: str) -> Iterator[tuple[str, str]]:
    """Yield the lines of a section, with the dotted key of each value; `first` begins the first line."""
    left_out = ("task", "data", "metrics") if isinstance(value, Recipe) and value.tasks else ()  # `tasks` has them
    for part in (part for part in fields(value) if part.name not in left_out):
        child, key = getattr(value, part.name), schema.dotted(path, part.name)
        lead, first = first or indent, ""
        if is_dataclass(child):
            yield f"{lead}{part.name}:", ""  # the first key of an item stands behind its dash
            yield from _lines(child, f"{indent}  ", "", key)
        elif isinstance(child, tuple) and any(is_dataclass(item) for item in child):
            yield f"{lead}{part.name}:", ""
            for number, item in enumerate(child):
                yield from _lines(item, f"{indent}    ", f"{indent}  - ", schema.dotted(key, number))
        else:
            yield f"{lead}{part.name}: {scalar_text(child)}", key


class _Dumper(yaml.SafeDumper):
    """PyYAML's safe dumper that also quotes what only YAML 1.2 would take for a number, and never folds a line."""

    def ignore_aliases(self, data: object) -> bool:
        return True


# Quoted by the rules of 1.1 and 1.2, a text is a text for readers of both versions.
_CORE = re.compile(
    r"(?:[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+|[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?)\Z"
)
_Dumper.add_implicit_resolver("tag:atento,2026:number", _CORE, list("-+.0123456789"))


def _text(dumper: yaml.SafeDumper, value: str) -> yaml.Node:
    """A text; quoted with escapes where a character of it could be lost on the way back."""
    style = None if value.isprintable() else '"'
    return dumper.represent_scalar("tag:yaml.org,2002:str", value, style=style)


_Dumper.add_representer(str, _text)
_Dumper.add_representer(tuple, yaml.SafeDumper.represent_list)


def scalar_text(value: object) -> str:
    """A value on one line, in flow style; simple values, of which a recipe has hundreds, are remembered."""
    if value is None or type(value) in (bool, int, float, str):
        return _remembered(value, repr(value))  # 0.0 and -0.0 are equal and not written alike
    return _written(value)


@lru_cache(maxsize=1024, typed=True)
def _remembered(value: Hashable, _: str) -> str:
    return _written(value)


def _written(value: object) -> str:
    text = yaml.dump(
        value, Dumper=_Dumper, default_flow_style=True, allow_unicode=True, width=float("inf"), sort_keys=False
    )
    return str(text).removesuffix("\n").removesuffix("\n...")
