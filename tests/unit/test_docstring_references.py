"""Dotted names of ours: those in backticks are there, and imports by the names of version 0.2 warn."""

import pkgutil
import re
import sys
from importlib import import_module
from pathlib import Path

import pytest

import atento
from atento.base.old_names import MOVED
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
    return f"atento.{name}" if len(rest) > 1 and (module.is_dir() or module.with_suffix(".py").is_file()) else None


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


def test_an_old_name_is_the_same_module_and_warns_and_one_that_never_was_is_not_found(monkeypatch) -> None:
    for old, new in (*MOVED.items(), ("atento.cli.commands.train", "atento_cli.commands.train")):
        monkeypatch.delitem(sys.modules, old, raising=False)
        with pytest.warns(DeprecationWarning, match=rf"`{old}` is now `{new}`"):
            module = import_module(old)
        assert module is import_module(new) and module.__name__ == new == module.__spec__.name  # type: ignore[union-attr]
    for name in ("atento.errors_of_old", "atento.cli.commands.nothing"):
        fails(ModuleNotFoundError, "", import_module, name)
