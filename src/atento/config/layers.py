"""The layers of a recipe, lowest first: files that extend one another, environment variables, the command line."""

import importlib.resources
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from atento.config import schema
from atento.config.recipe import Recipe
from atento.config.renamed import migrated, renamed
from atento.config.yaml12 import MAX_BYTES, Written, read_yaml
from atento.errors import RecipeError, nearest

ENVIRONMENT = "ATENTO_"
_NO_OVERRIDE = "an override is key=value, such as training.steps=1000, or ~key to go back to the default"


@dataclass(frozen=True)
class RecipeFile:
    """A recipe's text: what it is called in messages, its path if it has one, what its own paths are relative to."""

    label: str
    text: str
    path: Path | None
    home: Path
    stem: str


def shipped() -> dict[str, Any]:
    """The shipped recipes: name -> the resource, in the order of the names."""
    folder = importlib.resources.files("atento").joinpath("recipes")
    found = {entry.name.removesuffix(".yaml"): entry for entry in folder.iterdir() if entry.name.endswith(".yaml")}
    return dict(sorted(found.items()))


def shipped_text(name: str) -> str:
    """The text of a shipped recipe, comments and all.

    Raises:
        RecipeError: no such recipe; names the nearest and all known ones.
    """
    known = shipped()
    if name not in known:
        raise RecipeError(f"no recipe named {name!r}{nearest(name, list(known))}")
    text: str = known[name].read_text(encoding="utf-8")
    return text


def open_recipe(name: str | Path, beside: Path | None = None) -> RecipeFile:
    """Find and read a recipe: a file, a run folder's, `-` for standard input, or the name of a shipped one.

    Args:
        name: what the user wrote; a relative path starts at `beside`, or at the current directory.

    Raises:
        RecipeError: neither a file nor a shipped recipe, larger than 1 MiB, or not UTF-8.
    """
    if str(name) == "-" and beside is None:
        return RecipeFile(
            "standard input", _decode(sys.stdin.buffer.read(MAX_BYTES + 1), "standard input"), None, Path.cwd(), "run"
        )
    path = Path(name) if beside is None else beside / name
    try:
        if (path / "run.json").is_file() and str(name) not in shipped():
            path /= "recipe.yaml"  # what the run keeps
        if path.is_dir() and str(name) not in shipped():
            raise RecipeError(f"{path} is a folder; a recipe is a YAML file or one of {', '.join(shipped())}")
        if not path.exists() or path.is_dir():
            if isinstance(name, Path) or path.suffix in (".yaml", ".yml") or len(Path(name).parts) > 1:
                raise RecipeError(f"there is no recipe file {path}; shipped recipes: {', '.join(shipped())}")
            return RecipeFile(f"{name}.yaml", shipped_text(str(name)), None, Path.cwd(), str(name))
        with path.open("rb") as stream:
            content = stream.read(MAX_BYTES + 1)
    except OSError as error:
        raise RecipeError(f"{path} cannot be read: {error.strerror}") from None
    return RecipeFile(str(path), _decode(content, str(path)), path, path.absolute().parent, path.stem)


def _decode(content: bytes, label: str) -> str:
    """The text of a recipe's bytes: UTF-8, at most 1 MiB."""
    if len(content) > MAX_BYTES:
        raise RecipeError(f"{label}: a recipe may hold at most {MAX_BYTES} bytes")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise RecipeError(f"{label}:{line}: not UTF-8 at byte {error.start}") from None


def read_files(first: RecipeFile) -> tuple[Written, dict[str, Path]]:
    """A recipe and all that it extends, joined: the written tree, and the home folder of every file by its label.

    Raises:
        RecipeError: broken YAML, a file that is not there, or files that extend one another in a circle.
    """
    layers: list[Written] = []
    homes: dict[str, Path] = {}
    seen: list[str] = []
    file: RecipeFile | None = first
    while file is not None:
        label = file.label
        seen.append(str(file.path.resolve()) if file.path else label)
        homes[label] = file.home
        root = read_yaml(file.text, partial(_at, label))
        if root.value is None:
            root = replace(root, value={})
        if not isinstance(root.value, dict):
            raise RecipeError(f"{root.place}: a recipe is a mapping of keys: got {schema.shown(root.value)}")
        if file.path is not None and file.path.with_name("run.json").is_file():
            root = migrated(root)  # what a run keeps may be of an earlier version
        base = root.value.get("extends")
        layers.append(replace(root, value={key: child for key, child in root.value.items() if key != "extends"}))
        file = (
            None
            if base is None or base.value is None
            else _extended(base, file.path.parent if file.path else Path(), seen)
        )
    tree = layers.pop()
    while layers:
        tree = replace(merge(tree, layer := layers.pop(), Recipe), place=layer.place)
    return tree, homes


def read_mapping(recipe: Mapping[str, Any]) -> tuple[RecipeFile, Written, dict[str, Path]]:
    """A recipe given as a mapping in Python, and all that it extends: as `open_recipe` and `read_files` of a file.

    Its relative paths start at the current directory; messages call it "recipe".
    """
    file = RecipeFile("recipe", "", None, Path.cwd(), "run")
    root = schema.as_written(recipe, file.label)
    _refuse_records(root)
    base = root.value.pop("extends", None)
    if base is None or base.value is None:
        return file, root, {file.label: file.home}
    under, homes = read_files(_extended(base, Path(), []))
    return file, replace(merge(under, root, Recipe), place=file.label), {file.label: file.home} | homes


def _refuse_records(recipe: Written) -> None:
    """Raises RecipeError: a split of the recipe's data holds records where it should say where they are."""
    data = recipe.value.get("data")
    for split, sources in data.value.items() if data is not None and isinstance(data.value, dict) else ():
        if isinstance(sources.value, list) and any(isinstance(one.value, str | list) for one in sources.value[:1]):
            raise RecipeError(
                f"{sources.place}: data.{split} holds records, and a recipe says where they are; give the records as "
                f"`data`: atento.train(recipe, data={{{split!r}: records}})"
            )


def _at(label: str, line: int, column: int) -> str:
    """A place in a file, as editors and compilers write it."""
    return f"{label}:{line}:{column}"


def _extended(base: Written, beside: Path, seen: list[str]) -> RecipeFile:
    """The recipe named by an `extends` key."""
    if not isinstance(base.value, str):
        raise RecipeError(f"{base.place}: extends must be the path or name of a recipe: got {schema.shown(base.value)}")
    try:
        found = open_recipe(base.value, beside)
    except RecipeError as error:
        raise RecipeError(f"{base.place}: extends: {error}") from None
    identity = str(found.path.resolve()) if found.path else found.label
    if identity in seen:
        circle = " -> ".join(Path(name).name for name in [*seen[seen.index(identity) :], identity])
        raise RecipeError(f"{base.place}: recipes extend one another in a circle: {circle}")
    return found


def merge(under: Written, over: Written, hint: Any) -> Written:
    """`over` laid on `under`: mappings join key by key, everything else (a list too) is replaced whole.

    An empty section (all its lines commented out, say) says nothing, and leaves what is under it.
    """
    if over.value is None and schema.section(hint) is not None and type(None) not in schema.arms(hint):
        return under
    if schema.element(hint) is not None or not isinstance(over.value, dict):
        return over
    under = schema.expand(under, hint)
    if not isinstance(under.value, dict):
        return over
    joined = dict(under.value)
    for key, child in over.value.items():
        joined[key] = merge(joined[key], child, schema.below(hint, key)) if key in joined else child
    return replace(over, value=joined)


def override(tree: Written, key: str, value: Written | None, at: str, hint: Any = Recipe) -> Written:
    """The tree with the value at a dotted key laid over what is there; None takes the key out, so its default holds.

    A number is a place in a list (one past the end appends); a source written alone is the list of it.

    Raises:
        RecipeError: the key leads through a value that has no parts, or past the end of a list; begins with `at`.
    """
    if not key:
        return tree if value is None else merge(tree, value, hint)
    tree = schema.expand(tree, hint)
    head, _, rest = key.partition(".")
    inside = schema.element(hint) if schema.section(hint) is None else None
    if inside is None:
        if tree.value is not None and not isinstance(tree.value, dict):
            raise RecipeError(f"{at}: there is no {head!r} in what is written at {tree.place}")
        members = dict(tree.value or {})
        _lay(members, head, rest, value, at, schema.below(hint, head))
        return replace(tree, value=members)
    if tree.value is not None and not isinstance(tree.value, list):
        raise RecipeError(f"{at}: there is no place {head!r} in what is written at {tree.place}")
    items = dict(enumerate(tree.value or []))
    if not head.isdecimal() and len(items) <= 1:
        head, rest = "0", key
    if not head.isdecimal() or len(head) > 6 or int(head) > len(items):
        raise RecipeError(f"{at}: {head!r} must be a place, counted from 0, in the {len(items)} written here")
    _lay(items, int(head), rest, value, at, inside)
    return replace(tree, value=list(items.values()))


def _lay(parts: dict[Any, Written], head: Any, rest: str, value: Written | None, at: str, hint: Any) -> None:
    """Follow the rest of a dotted key from `head`, in the parts of a mapping or a list, and put the value there."""
    if value is None:
        if head in parts and rest:
            parts[head] = override(parts[head], rest, None, at, hint)
        elif head in parts:
            del parts[head]
    elif head in parts or rest:
        empty = Written({} if schema.section(hint) else None, value.place, key_place=value.place)
        parts[head] = override(parts.get(head, empty), rest, value, at, hint)
    else:
        parts[head] = value


def settings(overrides: Sequence[str] | Mapping[str, object], place: str) -> list[tuple[str, Written | None]]:
    """Overrides as dotted keys and written values; the value of `key=value` is YAML, `~key` takes the key out.

    Raises:
        RecipeError: no `=`, an empty key, or a value that is not YAML.
    """
    if isinstance(overrides, Mapping):
        overrides = dict(overrides)
        for key in overrides:
            if not isinstance(key, str) or not all(key.split(".")):
                raise RecipeError(f"{place}: an override's key is dotted text such as 'training.steps': got {key!r}")
        return [(key, schema.as_written(value, place)) for key, value in overrides.items()]
    if isinstance(overrides, str):
        raise RecipeError(f"{place}: overrides are a list of key=value: got the one text {overrides!r}")
    found: list[tuple[str, Written | None]] = []
    for text in overrides:
        key, equals, value = text.partition("=")
        key = key.strip()
        if key.startswith("~") and not equals:
            key, written = key[1:], None
        elif not equals:
            raise RecipeError(f"{place}: {_NO_OVERRIDE}: got {text!r}")
        else:
            written = _value(key, value, place)
        if not key or not all(key.split(".")):
            raise RecipeError(f"{place}: {_NO_OVERRIDE}: got {text!r}")
        found.append((key, written))
    return found


def _value(key: str, text: str, place: str) -> Written:
    """The YAML value of an override; every part of it stands at the same place."""
    try:
        return replace(read_yaml(text, lambda line, column: place), key_place=place)
    except RecipeError as error:
        reason = str(error).removeprefix(f"{place}: ")
        hint = " (quotes make any value text)" if reason.startswith("not valid YAML") else ""
        raise RecipeError(
            f"{place}: {key}: {reason.removeprefix(f'{key}: ')}{hint}: got {schema.shown(text)}"
        ) from None


def environment(variables: Mapping[str, str]) -> Iterable[tuple[str, str, str]]:
    """The overrides among environment variables, as (name, dotted key, value), in the order of the names.

    `ATENTO_TRAINING__LEARNING_RATE` is `training.learning_rate`; a name without `__` is no key of a recipe.
    """
    for name in sorted(variables):
        if name.startswith(ENVIRONMENT) and "__" in name:
            yield name, name.removeprefix(ENVIRONMENT).lower().replace("__", "."), variables[name]


def apply(tree: Written, changes: Iterable[tuple[str, Written | None]], place: str) -> Written:
    """The tree after these overrides.

    Raises:
        RecipeError: a key that leads nowhere, with the place, the nearest known key and all known ones; a null (or
            nothing behind the `=`) where the type has no null.
    """
    for key, value in changes:
        hint = _type_at(key, place)
        if value is not None and value.value is None and type(None) not in schema.arms(hint):
            raise RecipeError(f"{place}: {key} {schema.refused_null(key, hint, f'~{key} goes back to the default')}")
        tree = override(tree, key, value, f"{place}: {key}")
    return tree


def _type_at(key: str, place: str) -> Any:
    """The type at a dotted key; an unknown key is refused."""
    hint: Any = Recipe
    path = ""
    for head in key.split("."):
        if schema.section(hint) is None and schema.element(hint) is not None and not head.isdecimal():
            hint = schema.element(hint)  # a source written alone, without its place
        cls = schema.section(hint)
        known = [*schema.keys_of(cls), *schema.EXTRA_KEYS.get(cls, ())] if cls else []
        if cls is not None and head not in known:
            where = f" in {path}" if path else ""
            moved = renamed(path, head)
            raise RecipeError(f"{place}: {moved or f'unknown key {head!r}{where}{nearest(head, known)}'}")
        part = schema.below(hint, head)
        if part is None and head not in schema.EXTRA_KEYS.get(cls, ()):
            raise RecipeError(f"{place}: {key}: {path} has no parts to set one by one; write it whole")
        hint, path = part, schema.dotted(path, head)
    return hint
