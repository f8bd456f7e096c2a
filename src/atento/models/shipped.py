"""The models that come with the package, by name: the micro-world's, and those of `atento-models`; no torch."""

import importlib.util
from pathlib import Path


def shipped_models() -> dict[str, Path]:
    """Return the folder of each model that is installed with the package, by its name; sorted."""
    packages = (importlib.util.find_spec(name) for name in ("atento_models", "atento_world"))  # found, not imported
    folders = (Path(package.origin).with_name("models") for package in packages if package and package.origin)
    found = {path.name: path for folder in folders if folder.is_dir() for path in folder.iterdir()}
    return {name: path for name, path in sorted(found.items()) if (path / "config.json").is_file()}
