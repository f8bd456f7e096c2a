"""The versions of other libraries that the tables of keys were made by."""

import warnings
from collections.abc import Collection
from types import ModuleType

LOCKED = {"transformers": "5.24.0", "peft": "0.21.2", "sentence_transformers": "6.2.0"}


def none_left(names: Collection[str], what: str, library: ModuleType) -> None:
    """That there are no such names: a failure with the locked version, a warning with another one."""
    version = library.__version__
    if names and version != LOCKED[library.__name__]:
        warnings.warn(f"{library.__name__} {version}: {what}: {sorted(names)}", stacklevel=2)
        return
    assert not names, f"{what}: {sorted(names)}"
