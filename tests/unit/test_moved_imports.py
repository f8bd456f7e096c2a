"""Imports by the names of version 0.2: the same modules, and a warning that has the new name."""

import sys
from importlib import import_module

import pytest

from atento.base.old_names import MOVED
from failing import fails


def test_an_old_name_is_the_same_module_and_warns_and_one_that_never_was_is_not_found(monkeypatch) -> None:
    for old, new in (*MOVED.items(), ("atento.cli.commands.train", "atento_cli.commands.train")):
        monkeypatch.delitem(sys.modules, old, raising=False)
        with pytest.warns(DeprecationWarning, match=rf"`{old}` is now `{new}`"):
            module = import_module(old)
        assert module is import_module(new) and module.__name__ == new == module.__spec__.name  # type: ignore[union-attr]
    for name in ("atento.errors_of_old", "atento.cli.commands.nothing"):
        fails(ModuleNotFoundError, "", import_module, name)
