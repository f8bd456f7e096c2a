"""Imports by the names of version 0.2, which work for one version and warn: `docs/compatibility.md`."""

import sys
import warnings
from collections.abc import Sequence
from importlib import import_module
from importlib.machinery import ModuleSpec
from types import ModuleType

TYPE_CHECKING = False  # as in `atento/__init__.py`
if TYPE_CHECKING:
    from importlib.abc import Loader
else:
    Loader = object  # whose import would take milliseconds

_BASE = ("errors", "limits", "terminal", "nfc", "processes", "start_up", "splitmix", "precision", "version")
MOVED = {
    "atento.scale.model_hash": "atento.models.model_hash",
    "atento.runs.plans.minutes": "atento.runs.time_budget",
    "atento.runs.plans.run_plan": "atento.runs.run_plan",
    "atento.runs.launch_files": "atento_cli.plans.launch_files",
    "atento.runs.position_report": "atento_cli.plans.position_report",
    "atento.runs.plans": "atento_cli.plans",
    "atento.runs.cross_validation": "atento_cli.search.cross_validation",
    "atento.runs.search": "atento_cli.search",
    "atento.runs.augmented_data": "atento_cli.corpus.augmented_data",
    "atento.data.corpus": "atento_cli.corpus",
    **{f"atento.{room}": f"atento_cli.{room}" for room in ("suites", "scale", "convert", "demo")},
    "atento.cli": "atento_cli",
    **{f"atento.{name}": f"atento.base.{name}" for name in _BASE},
}


def new_name(name: str) -> str | None:
    """What a module is called now, or None if it has not moved."""
    for old, new in MOVED.items():  # what stands in another comes before it
        if name == old or name.startswith(f"{old}."):
            return new + name[len(old) :]
    return None


class Moved(Loader):
    """Imports a module under its old name: the same module object, so that its classes are the same classes."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """A specification if the module has moved."""
        moved = fullname.startswith("atento.") and new_name(fullname)
        return ModuleSpec(fullname, self, origin=moved) if moved else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """The module under its new name."""
        new = spec.origin or ""
        warnings.warn(f"`{spec.name}` is now `{new}`", DeprecationWarning, stacklevel=2)
        module = import_module(new)
        spec.loader_state = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        """It has run already; it keeps its own specification."""
        spec = module.__spec__
        module.__spec__ = spec.loader_state if spec else None


def import_old_names() -> None:
    """Let imports by old names work; `import atento` does it."""
    if not any(isinstance(finder, Moved) for finder in sys.meta_path):
        sys.meta_path.insert(0, Moved())  # before the finder of files, which would load a module a second time
