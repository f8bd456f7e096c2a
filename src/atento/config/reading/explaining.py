"""The meaning of each recipe key, from the text under its field, for the command line, editors and docs."""

import ast
import inspect
import re
import textwrap
from collections.abc import Iterator
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass
from functools import cache

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
