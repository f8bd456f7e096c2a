"""A dotted name of ours in backticks, such as docstrings and comments have, is that of something that is there."""

import pkgutil
import re
from pathlib import Path

import atento

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
