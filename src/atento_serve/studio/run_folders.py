"""Which runs Studio may read: those in the folders that the command line named, and beside them."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from atento.base.errors import UsageError
from atento.runs.run_record import is_run


def found_runs(given: Sequence[str]) -> Mapping[str, Path]:
    """The runs that may be read, by their names: those of some folders that are runs, and those in the other folders.

    Links in a folder are left out: nothing outside these folders is read.
    """
    folders: list[Path] = []
    for path in map(Path, given):
        inside_it = [] if is_run(path) else _entries(path)
        # a link could lead out of the folder
        folders += [path, *sorted(one for one in inside_it if not one.is_symlink())]
    runs: dict[str, Path] = {}
    seen: set[Path] = set()
    for folder in filter(is_run, folders):
        if (place := folder.resolve()) not in seen:
            names = (folder.name, f"{folder.parent.name}/{folder.name}", str(folder))
            runs[next(name for name in names if name not in runs)] = folder  # the shortest name that is free
            seen.add(place)
    return runs


def _entries(folder: Path) -> list[Path]:
    try:
        return list(folder.iterdir())
    except OSError:
        return []


def inside(folder: Path, name: str) -> Path:
    """A file of a run. Raises UsageError: it is a link that leads out of the run."""
    path = folder / name
    if not path.resolve().is_relative_to(folder.resolve()):
        raise UsageError(f"{name} of the run {folder.name} leads out of its folder, so it is not read")
    return path
