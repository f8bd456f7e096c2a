"""The layers of a recipe, lowest first: files that extend one another, environment variables, the command line."""

import importlib.resources
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any, BinaryIO

from atento.base.errors import RecipeError, nearest, similar_file
from atento.base.limits import open_plain
from atento.config.reading import schema
from atento.config.reading.yaml12 import MAX_BYTES, Node, read_yaml
from atento.config.recipe import Recipe
from atento.config.tables.formats import DATASETS, FORMATS
from atento.config.tables.renamed_keys import migrated

_RULE = "a recipe is a YAML file that names the data: `atento recipes copy NAME FILE` copies one to begin with"
_DATA = (*DATASETS, *(ending for form in FORMATS.values() for ending in form.endings if ending != ".json"))

ENVIRONMENT = "ATENTO_"
_NO_OVERRIDE = "an override is key=value, such as training.steps=1000, or ~key to go back to the default"


@dataclass(frozen=True)
class RecipeFile:
    """The text of a recipe, its name in messages (`label`), its path if it has one, and the folder of its paths."""

    label: str
    text: str
    path: Path | None
    home: Path
    stem: str


def shipped() -> dict[str, Traversable]:
    """Return the shipped recipes: name -> resource, sorted by name."""
    folder = importlib.resources.files("atento").joinpath("recipes")
    recipes = {entry.name.removesuffix(".yaml"): entry for entry in folder.iterdir() if entry.name.endswith(".yaml")}
    return dict(sorted(recipes.items()))


def shipped_text(name: str) -> str:
    """Return the text of a shipped recipe with its comments.
    Raises RecipeError: no such recipe; names the nearest and all known ones.
    """
    known = shipped()
    if name not in known:
        raise RecipeError(f"no recipe named {name!r}{nearest(name, list(known))}; {_RULE}")
    text: str = known[name].read_text(encoding="utf-8")
    return text


def open_recipe(name: str | Path, beside: Path | None = None) -> RecipeFile:
    """Find and read a recipe: a file, a run folder's, `-` for standard input, or the name of a shipped one.

    Args:
        name: as the user wrote it; a relative path starts at `beside`, or at the current directory.

    Raises:
        RecipeError: neither a file nor a shipped recipe, larger than 1 MiB, or not UTF-8.
    """
    if str(name) == "-" and beside is None:
        content = _read_once(sys.stdin.buffer)
        return RecipeFile("standard input", decoded(content, "standard input"), None, Path.cwd(), "run")
    path = Path(name) if beside is None else beside / name
    try:
        if (path / "run.json").is_file() and str(name) not in shipped():
            path /= "recipe.yaml"  # the run's copy
        if path.is_dir() and str(name) not in shipped():
            raise RecipeError(f"{path} is a folder; a recipe is a YAML file or one of {', '.join(shipped())}")
        if not path.exists() or path.is_dir():
            near = "" if str(name) in shipped() else similar_file(path)
            if near or isinstance(name, Path) or path.suffix in (".yaml", ".yml") or len(Path(name).parts) > 1:
                near = near or f"; shipped recipes: {', '.join(shipped())}"
                raise RecipeError(f"there is no recipe file {path}{near}")
            return RecipeFile(f"{name}.yaml", shipped_text(str(name)), None, Path.cwd(), str(name))
        if path.name.removesuffix(".gz").endswith(_DATA):
            raise RecipeError(f"{path} is a file of data; {_RULE}")
        with open_plain(path) as stream:
            content = stream.read(MAX_BYTES + 1)
    except OSError as error:
        raise RecipeError(f"{path} cannot be read: {error.strerror}") from None
    return RecipeFile(str(path), decoded(content, str(path)), path, path.absolute().parent, path.stem)


@lru_cache(maxsize=1)
def _read_once(stream: BinaryIO) -> bytes:
    """The content of standard input; folds and few labels open the recipe more than once."""
    return stream.read(MAX_BYTES + 1)


def decoded(content: bytes, label: str) -> str:
    """The text of a recipe's bytes. Raises RecipeError: it is not UTF-8, or larger than 1 MiB."""
    if len(content) > MAX_BYTES:
        raise RecipeError(f"{label}: a recipe may hold at most {MAX_BYTES} bytes")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        looks = "UTF-16" if content.startswith((b"\xff\xfe", b"\xfe\xff")) else "WINDOWS-1252"
        raise RecipeError(
            f"{label}:{line}: not UTF-8 at byte {error.start}; it looks like {looks}: save it as UTF-8, or "
            f"`iconv -f {looks} -t UTF-8` converts it"
        ) from None


def read_files(first: RecipeFile) -> tuple[Node, dict[str, Path]]:
    """Merge a recipe with all recipes that it extends; return the tree, and the home folder of each file by its label.
    Raises RecipeError: broken YAML, a file that is not there, or files that extend one another in a circle.
    """
    layers: list[Node] = []
    homes: dict[str, Path] = {}
    identities: list[str] = []
    file: RecipeFile | None = first
    while file is not None:
        label = file.label
        identities.append(str(file.path.resolve()) if file.path else label)
        homes[label] = file.home
        root = read_yaml(file.text, partial("{}:{}:{}".format, label))  # positions as editors and compilers write them
        if root.value is None:
            root = replace(root, value={})
        if not isinstance(root.value, dict):
            raise RecipeError(f"{root.position}: a recipe must be a mapping of keys: got {schema.as_text(root.value)}")
        if file.path is not None and file.path.with_name("run.json").is_file():
            root = migrated(root)  # the run may be of an earlier version
        base = root.value.get("extends")
        layers.append(replace(root, value={key: child for key, child in root.value.items() if key != "extends"}))
        file = (
            None
            if base is None or base.value is None
            else _extended(base, file.path.parent if file.path else Path(), identities)
        )
    tree = layers.pop()
    while layers:
        tree = replace(merge(tree, layer := layers.pop(), Recipe), position=layer.position)
    return tree, homes


def read_mapping(recipe: Mapping[str, object]) -> tuple[RecipeFile, Node, dict[str, Path]]:
    """A recipe given as a mapping in Python, and all that it extends: as `open_recipe` and `read_files` of a file.

    Its relative paths start at the current directory; messages call it "recipe". Raises RecipeError: it holds records.
    """
    file = RecipeFile("recipe", "", None, Path.cwd(), "run")
    root = schema.as_node(recipe, file.label)
    data = root.value.get("data")
    for split, sources in data.value.items() if data is not None and isinstance(data.value, dict) else ():
        if isinstance(sources.value, list) and any(isinstance(item.value, str | list) for item in sources.value[:1]):
            raise RecipeError(
                f"{sources.position}: data.{split} holds records, and a recipe only names files; pass the records as "
                f"`data`: atento.train(recipe, data={{{split!r}: records}})"
            )
    base = root.value.pop("extends", None)
    if base is None or base.value is None:
        return file, root, {file.label: file.home}
    under, homes = read_files(_extended(base, Path(), []))
    return file, replace(merge(under, root, Recipe), position=file.label), {file.label: file.home} | homes


def _extended(base: Node, beside: Path, identities: list[str]) -> RecipeFile:
    """The recipe named by an `extends` key."""
    if not isinstance(base.value, str):
        raise RecipeError(
            f"{base.position}: extends must be the path or name of a recipe: got {schema.as_text(base.value)}"
        )
    try:
        file = open_recipe(base.value, beside)
    except RecipeError as error:
        raise RecipeError(f"{base.position}: extends: {error}") from None
    identity = str(file.path.resolve()) if file.path else file.label
    if identity in identities:
        circle = " -> ".join(Path(name).name for name in [*identities[identities.index(identity) :], identity])
        raise RecipeError(f"{base.position}: recipes extend one another in a circle: {circle}")
    return file


def merge(under: Node, over: Node, hint: object) -> Node:
    """Merge `over` into `under`: mappings are merged key by key, all other values (lists too) are replaced.

    An empty section, such as one with all lines commented out, changes nothing.
    """
    if over.value is None and schema.section(hint) is not None and type(None) not in schema.members_of(hint):
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


def override(tree: Node, key: str, value: Node | None, at: str, hint: object = Recipe) -> Node:
    """Set the value at a dotted key of the tree; None removes the key, so that its default applies.

    A number is an index into a list (one past the end appends); a single source is a list of one.
    Raises RecipeError: the key leads through a value that has no parts, or past the end of a list; begins with `at`.
    """
    if not key:
        return tree if value is None else merge(tree, value, hint)
    tree = schema.expand(tree, hint)
    head, _, remaining = key.partition(".")
    inside = schema.element(hint) if schema.section(hint) is None else None
    if inside is None:
        if tree.value is not None and not isinstance(tree.value, dict):
            raise RecipeError(f"{at}: there is no {head!r} in the value at {tree.position}")
        members = dict(tree.value or {})
        _set(members, head, remaining, value, at, schema.below(hint, head))
        return replace(tree, value=members)
    if tree.value is not None and not isinstance(tree.value, list):
        raise RecipeError(f"{at}: there is no position {head!r} in the value at {tree.position}")
    items = dict(enumerate(tree.value or []))
    if not head.isdecimal() and len(items) <= 1:  # `data.train.file=x` is `data.train.0.file=x`
        head, remaining = "0", key
    if not head.isdecimal() or len(head) > 6 or int(head) > len(items):  # int() takes long for endless digits
        raise RecipeError(f"{at}: {head!r} must be an index from 0 into a list of {len(items)}")
    _set(items, int(head), remaining, value, at, inside)
    return replace(tree, value=list(items.values()))  # a removed item closes the gap


def _set(parts: dict[Any, Node], head: object, remaining: str, value: Node | None, at: str, hint: object) -> None:
    """Follow the remaining dotted key from `head` in the parts of a mapping or a list, and set the value."""
    if value is None:
        if head in parts and remaining:
            parts[head] = override(parts[head], remaining, None, at, hint)
        elif head in parts:
            del parts[head]
    elif head in parts or remaining:
        empty = Node({} if schema.section(hint) else None, value.position, key_position=value.position)
        parts[head] = override(parts.get(head, empty), remaining, value, at, hint)
    else:
        parts[head] = value


def settings(overrides: Sequence[str] | Mapping[str, object], position: str) -> list[tuple[str, Node | None]]:
    """Overrides as dotted keys and written values; the value of `key=value` is YAML, `~key` removes the key.
    Raises RecipeError: no `=`, an empty key, or a value that is not YAML.
    """
    if isinstance(overrides, Mapping):
        overrides = dict(overrides)  # values of Python, not texts of YAML
        for key in overrides:
            if not isinstance(key, str) or not all(key.split(".")):
                raise RecipeError(f"{position}: an override's key is dotted text such as 'training.steps': got {key!r}")
        return [(key, schema.as_node(value, position)) for key, value in overrides.items()]
    if isinstance(overrides, str):
        raise RecipeError(f"{position}: overrides are a list of key=value: got the one text {overrides!r}")
    result: list[tuple[str, Node | None]] = []
    for text in overrides:
        key, equals, value = str(text).partition("=")
        key = key.strip()
        if key.startswith("~") and not equals:
            key, written = key[1:], None
        elif not equals:
            raise RecipeError(f"{position}: {_NO_OVERRIDE}: got {text!r}")
        else:
            try:  # all parts of the value have the same position
                written = replace(read_yaml(value, lambda line, column: position), key_position=position)
            except RecipeError as error:
                reason = str(error).removeprefix(f"{position}: ")
                hint = " (quotes make any value text)" if reason.startswith("not valid YAML") else ""
                reason = f"{reason.removeprefix(f'{key}: ')}{hint}"
                raise RecipeError(f"{position}: {key}: {reason}: got {schema.as_text(value)}") from None
        if not key or not all(key.split(".")):
            raise RecipeError(f"{position}: {_NO_OVERRIDE}: got {text!r}")
        result.append((key, written))
    return result


def environment(variables: Mapping[str, str]) -> Iterable[tuple[str, str, str]]:
    """The overrides among environment variables, as (name, dotted key, value), in the order of the names.

    `ATENTO_TRAINING__LEARNING_RATE` is `training.learning_rate`; a name without `__` is no key of a recipe.
    """
    for name in sorted(variables):
        if name.startswith(ENVIRONMENT) and "__" in name:
            yield name, name.removeprefix(ENVIRONMENT).lower().replace("__", "."), variables[name]


def apply(tree: Node, changes: Iterable[tuple[str, Node | None]], position: str) -> Node:
    """The tree after these overrides.
    Raises RecipeError: an unknown key, with the position, the nearest known key and all known ones; null (or nothing
    after the `=`) for a type without null.
    """
    for key, value in changes:
        hint = type_at(key, position)
        if value is not None and value.value is None and type(None) not in schema.members_of(hint):
            raise RecipeError(f"{position}: {key} {schema.refused_null(key, hint, f'~{key} goes back to the default')}")
        tree = override(tree, key, value, f"{position}: {key}")
    return tree


def type_at(key: str, position: str) -> object:
    """Return the type of the value at a dotted key of a recipe.
    Raises RecipeError: an unknown key; begins with `position` and names the nearest known key.
    """
    hint: object = Recipe
    path = ""
    for head in key.split("."):
        if schema.section(hint) is None and schema.element(hint) is not None and not head.isdecimal():
            hint = schema.element(hint)  # a single source, without its index
        cls = schema.section(hint)
        known = [*schema.keys_of(cls), *schema.EXTRA_KEYS.get(cls, ())] if cls else []
        if cls is not None and head not in known:
            raise RecipeError(f"{position}: {schema.unknown_key(path, head, nearest(head, known))}")
        part = schema.below(hint, head)
        if part is None and head not in schema.EXTRA_KEYS.get(cls, ()):
            raise RecipeError(f"{position}: {key}: {path} has no keys to set separately; set the whole value")
        hint, path = part, schema.dotted(path, head)
    return hint
