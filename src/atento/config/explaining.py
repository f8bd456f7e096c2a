"""What each key of a recipe means: read off the text that stands under its field, for people, editors and the docs."""

import ast
import inspect
import re
import textwrap
from collections.abc import Iterator
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass
from functools import cache
from typing import Any

from atento.config import schema
from atento.config.network import NetworkConfig
from atento.config.presets import PRESETS
from atento.config.recipe import Recipe
from atento.errors import RecipeError, nearest

# Keys that are no fields: where they may stand, and what they do.
_OTHER = {
    (Recipe, "extends"): ("text", "Path or name of a recipe that this one changes; what is written here wins."),
    (NetworkConfig, "preset"): (
        f"one of {', '.join(sorted(PRESETS))}",
        "A well-known network to start from; the other keys of this section change it.",
    ),
}
_SENTENCE = re.compile(r"(?<!et al)\. ")  # where one ends
_RANGE = re.compile(r" *\[(?!@)([^\[\]]+)\]")


@dataclass(frozen=True)
class KeyHelp:
    """One key of a recipe.

    Attributes:
        key: dotted, such as `training.steps`; sources are `data.train`, `data.valid` and `data.test`.
        type: the values it takes, in words.
        default: as YAML writes it; "required" where there is none.
        range: which of these values are allowed; "" where the type says it all.
        meaning: what it does, and when to change it.
        keys: the names below it, where it is a section.
    """

    key: str
    type: str
    default: str
    range: str
    meaning: str
    keys: tuple[str, ...] = ()

    @property
    def summary(self) -> str:
        """The first sentence of the meaning, without its full stop."""
        return _SENTENCE.split(self.meaning, maxsplit=1)[0].rstrip(".")


@cache
def field_texts(cls: type) -> dict[str, str]:
    """The text under each field of a configuration class, by field name; one line each."""
    (body,) = ast.parse(textwrap.dedent(inspect.getsource(cls))).body
    assert isinstance(body, ast.ClassDef)
    found = {}
    for statement, after in zip(body.body, body.body[1:]):
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
            text = after.value if isinstance(after, ast.Expr) else None
            if isinstance(text, ast.Constant) and isinstance(text.value, str):
                found[statement.target.id] = " ".join(text.value.split())
    return found


def explain(key: str) -> KeyHelp:
    """What a dotted key means.

    Raises:
        RecipeError: no such key; names the nearest one and all that are known there.
    """
    hint: Any = Recipe
    made: KeyHelp | None = None
    path = ""
    for name in key.split("."):
        if name.isdecimal() and made is not None and schema.element(hint) is not None:
            continue  # a place in a list
        cls = _class(hint)
        known = [] if cls is None else [*schema.keys_of(cls), *(k for c, k in _OTHER if c is cls)]
        if cls is None or name not in known:
            where = f" in {path}" if path else ""
            meant = [one.key for _, keys in sections() for one in keys if not path and one.key.endswith(f".{name}")]
            tail = (
                f"; did you mean {' or '.join(meant)}?"
                if meant
                else nearest(name, known)
                if known
                else ": it has no keys"
            )
            raise RecipeError(f"unknown key {name!r}{where}{tail}")
        path = schema.dotted(path, name)
        made = _help(cls, name, path)
        hint = schema.keys_of(cls).get(name)
    assert made is not None
    return made


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


def reference() -> str:
    """The page `docs/recipe.md`: every key in a table of its section, in Markdown."""
    lines = [
        "# Recipes: every key",
        "",
        "This page lists every key of a recipe with its values, default and meaning. A recipe is a YAML 1.2 file; only",
        "`task` and `data` are required. [Train a translator](train-a-translator.md) shows complete recipes.",
        "",
        "```bash",
        "atento config explain training.steps               # one entry of this page",
        "atento config check micro-world-en-pt              # finds mistakes in a recipe",
        "atento config show micro-world-en-pt --origins     # every value, and where it comes from",
        "atento config schema > recipe.schema.json          # a JSON Schema, with which editors complete keys",
        "```",
        "",
        "Set any key on the command line (`atento train my.yaml training.steps=8000 network.dropout=0.2`) or by an",
        "environment variable (`ATENTO_TRAINING__STEPS=8000`).",
        "",
        "This page is generated: `python tools/recipe_page.py` writes it from the text of each field in",
        "`src/atento/config/`.",
    ]
    for path, keys in sections():
        lines += ["", f"## {path or 'The whole recipe'}", ""]
        if path == "data.train":
            lines += ["One source, or a list of them; `data.valid` and `data.test` are written the same way.", ""]
        lines += ["| key | values | default | meaning |", "| --- | --- | --- | --- |"]
        for one in keys:
            values = one.type if not one.range else f"{one.type}; {one.range}"
            name = one.key.removeprefix(f"{path}.") if path else one.key
            cells = (f"`{name}`", values, "required" if one.default == "required" else f"`{one.default}`", one.meaning)
            lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(lines) + "\n"


def _walk(cls: type, path: str, done: list[type]) -> Iterator[tuple[type, str]]:
    """A section and those below it, each class once, where it is first met."""
    done.append(cls)
    yield cls, path
    for name, hint in schema.keys_of(cls).items():
        below = _class(hint)
        if below is not None and below not in done:
            yield from _walk(below, schema.dotted(path, name), done)


def _class(hint: Any) -> type | None:
    """The section that a type is, or is a list of."""
    for one in (hint, schema.element(hint)):
        found = schema.section(one) if one is not None else None
        if found is not None:
            return found
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


def _section_type(hint: Any, cls: type) -> str:
    """What may be written where a section stands."""
    key = schema.STANDS_FOR.get(cls, "kind")
    kinds = schema.keys_of(cls).get(key)
    short = f", or a text for its `{key}`" if kinds is not None or (cls, key) in _OTHER else ""
    return ("a section, or a list of them" if schema.element(hint) is not None else "a section") + short


def _default(part: "Field[Any]") -> str:
    """A default as YAML writes it; of a section, that its own keys have theirs."""
    value = part.default if part.default_factory is MISSING else part.default_factory()
    if value is MISSING:
        return "required"
    if is_dataclass(value) or (isinstance(value, tuple) and any(is_dataclass(item) for item in value)):
        kind = getattr(value, "kind", None)
        return "as below" if kind is None else str(kind)
    if isinstance(value, tuple | list):
        return f"[{', '.join(map(_yaml, value))}]"
    return _yaml(value)


def _yaml(value: Any) -> str:
    if isinstance(value, tuple | list):
        return f"[{', '.join(map(_yaml, value))}]"
    return '""' if value == "" else schema.shown(value).strip("'") if isinstance(value, str) else schema.shown(value)
