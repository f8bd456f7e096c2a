"""A call that must raise, in one line; names that must not be left over."""

import warnings
from collections.abc import Callable, Collection
from types import ModuleType
from typing import Any

import pytest

# the versions of other libraries that the tables of keys were made by
LOCKED = {"transformers": "5.24.0", "peft": "0.21.2", "sentence_transformers": "6.2.0"}


def fails(error: type[BaseException], message: str, call: Callable[..., Any], *arguments: Any, **options: Any) -> None:
    """Assert that the call raises that error, with a message in which the pattern is found."""
    with pytest.raises(error, match=message):
        call(*arguments, **options)


def none_left(names: Collection[str], what: str, library: ModuleType) -> None:
    """That there are no such names: a failure with the locked version, a warning with another one."""
    version = library.__version__
    if names and version != LOCKED[library.__name__]:
        warnings.warn(f"{library.__name__} {version}: {what}: {sorted(names)}", stacklevel=2)
        return
    assert not names, f"{what}: {sorted(names)}"
