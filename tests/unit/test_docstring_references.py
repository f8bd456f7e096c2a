"""Dotted names of ours: those in backticks are there, and imports by the names of version 0.2 warn."""

import ast
import pkgutil
import re
import sys
from importlib import import_module
from pathlib import Path

import pytest

import atento
from atento.base.errors import RecipeError
from atento.base.old_names import MOVED
from atento.config.reading.recipe_layers import type_at
from failing import fails

SOURCE = Path(atento.__file__).parents[1]
DOTTED = re.compile(r"`([a-z]\w*(?:\.[A-Za-z_]\w*)+)`")


def full_name(name: str) -> str | None:
    """The name from its package on; None: it is none of ours, such as a key of a recipe or a file."""
    first, *rest = name.split(".")
    if name == "attention.sparse.blocks":  # a key of a network, whose section has the name of a module
        return None
    if first in ("atento", "atento_serve", "atento_world", "atento_lab"):
        return None if rest[0] in ("json", "run_id") else name  # a file; a tag of trackers
    module = SOURCE / "atento" / first / rest[0]
    if module.is_dir() or module.with_suffix(".py").is_file():
        return f"atento.{name}" if len(rest) > 1 else None
    is_file = first in ("config", "metrics") and rest[0] in ("json", "jsonl", "yaml")
    if not (SOURCE / "atento" / first).is_dir() or is_file or first == "config":  # fields of an object named config
        return None
    return None if is_key(name) or is_key(f"network.{name}") else f"atento.{name}"


def is_key(name: str) -> bool:
    """Whether a recipe has that key."""
    try:
        type_at(name, "")
    except RecipeError:
        return False
    return True


def test_dotted_names_resolve() -> None:
    files = {file: set(DOTTED.findall(file.read_text("utf-8"))) for file in sorted(SOURCE.rglob("*.py"))}
    names = {(full, file) for file, found in files.items() for name in found if (full := full_name(name))}
    assert len({name for name, _ in names}) > 20
    assert not sorted(f"{file.relative_to(SOURCE)}: {name}" for name, file in names if not is_there(name))


def is_there(name: str) -> bool:
    """Whether a module, a name in one, or a field of a class is there."""
    owner, _, last = name.rpartition(".")
    try:
        found = pkgutil.resolve_name(owner)
        return last in getattr(found, "__dataclass_fields__", ()) or pkgutil.resolve_name(name) is not None
    except (ImportError, AttributeError):
        return False


def test_the_arguments_that_a_docstring_describes_are_those_of_the_call() -> None:
    wrong = []
    for file in sorted(SOURCE.rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text("utf-8"))):
            if not isinstance(node, ast.FunctionDef | ast.ClassDef):
                continue
            section = re.search(r"^Args:\n((?:    .*\n?|\n)*)", ast.get_docstring(node) or "", re.M)
            described = re.findall(r"^    ([\w*][\w, *]*):", section[1] if section else "", re.M)
            own = [node] if isinstance(node, ast.FunctionDef) else node.body
            calls = [one for one in own if isinstance(one, ast.FunctionDef) and one.name in (node.name, "__init__")]
            taken = {
                argument.arg for call in calls for argument in ast.walk(call.args) if isinstance(argument, ast.arg)
            }
            fields = [one.target for one in node.body if isinstance(one, ast.AnnAssign)]
            taken |= {field.id for field in fields if isinstance(field, ast.Name)}
            names = {name.lstrip("*") for names in described for name in names.split(", ")}
            wrong += [f"{file.name}: {node.name} takes no {name}" for name in sorted(names - taken)] if taken else []
    assert not wrong


def test_an_old_name_is_the_same_module_and_warns_and_one_that_never_was_is_not_found(monkeypatch) -> None:
    for old, new in (*MOVED.items(), ("atento.cli.commands.train", "atento_cli.commands.train")):
        monkeypatch.delitem(sys.modules, old, raising=False)
        with pytest.warns(DeprecationWarning, match=rf"`{old}` is now `{new}`"):
            module = import_module(old)
        assert module is import_module(new) and module.__name__ == new == module.__spec__.name  # type: ignore[union-attr]
    for name in ("atento.errors_of_old", "atento.cli.commands.nothing"):
        fails(ModuleNotFoundError, "", import_module, name)
