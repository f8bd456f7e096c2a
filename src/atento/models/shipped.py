"""The models that come with the package, by name: those of the micro-world. Does not load torch."""

import importlib.util
from pathlib import Path


def shipped_models() -> dict[str, Path]:
    """Return the folder of each model that comes with the package, by its name; sorted."""
    package = importlib.util.find_spec("atento_world")  # found, not imported: its grammar is not needed
    assert package is not None and package.origin is not None
    folder = Path(package.origin).with_name("models")
    found = folder.iterdir() if folder.is_dir() else ()
    return {path.name: path for path in sorted(found) if (path / "config.json").is_file()}
