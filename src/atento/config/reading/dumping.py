"""Write a recipe: as YAML that reads back equal, as JSON Schema for editors, and as the difference from another."""

import re
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from functools import lru_cache
from typing import Any

import yaml
from pydantic import ConfigDict, TypeAdapter

from atento.config.presets import PRESETS
from atento.config.reading import schema
from atento.config.reading.explaining import explain, field_texts, section_classes
from atento.config.recipe import Recipe
from atento.config.sections.network import NetworkConfig

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
