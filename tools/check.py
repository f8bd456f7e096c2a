"""Checks a change in under 90 seconds on two cores: format, lint, types, and the unit tests nearest to what changed.

`make check`, or `python tools/check.py [--seconds N] [--since REVISION] [--list]`. What changed is everything since the
commit that the branch left `main` at, uncommitted and new files included. The tests of the nearest files run first,
while types are checked beside them; where the time is up, the rest is left out and named. `make test` runs all.
"""

import argparse
import os
import re
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
BIN = Path(sys.executable).parent
CHECKED = ("src", "benchmarks", "examples", "models", "tests", "tools")
SECONDS = 50.0  # of tests; imports, collection and a last long test fit between this and 90
FILES = 40  # of tests: reading one takes a tenth of a second
ALWAYS = ("tests/unit/test_house_rules.py", "tests/unit/test_docs.py")
FROM = re.compile(r"^[ \t]*from ([\w.]+) import (?:\(([^)]*)\)|([^\n#]+))", re.M)
IMPORT = re.compile(r"^[ \t]*import ([\w.]+)", re.M)


def changed(since: str | None) -> list[str]:
    """Paths that differ from a revision, by default from where the branch left main; new files too."""
    base = since or next(filter(None, (git("merge-base", "HEAD", name) for name in ("main", "origin/main"))), "HEAD")
    tracked = git("diff", "--name-only", base).splitlines()
    return sorted({*tracked, *git("ls-files", "--others", "--exclude-standard").splitlines()})


def git(*arguments: str) -> str:
    """What git prints; empty where it fails."""
    return subprocess.run(["git", "-C", ROOT, *arguments], capture_output=True, text=True).stdout.strip()


class Sources:
    """Who imports whom, late imports too: read by patterns, since nothing may be imported to know it."""

    def __init__(self, root: Path) -> None:
        places = [*((root / "src").rglob("*.py")), *((root / "benchmarks").rglob("*.py"))]
        self.root, self.files = root, {dotted(root, file): file for file in places}
        self.texts = {name: file.read_text(encoding="utf-8") for name, file in self.files.items()}
        self.imports = {name: frozenset(self.imported(text)) - {name} for name, text in self.texts.items()}

    def imported(self, text: str, through: bool = True) -> Iterator[str]:
        """The modules of ours that a text imports; a name that a package hands on counts for the module that has it."""
        for module, several, one in FROM.findall(text):
            for name in re.findall(r"(\w+)(?: as \w+)?", re.sub(r"#.*", "", several or one)):
                if f"{module}.{name}" in self.files:
                    yield f"{module}.{name}"
                elif module in self.files:
                    yield self.handed_on(module, name) if through else module
        yield from (name for name in IMPORT.findall(text) if name in self.files)

    def handed_on(self, module: str, name: str) -> str:
        """The module that a package's name comes from."""
        if self.files[module].name == "__init__.py":
            for origin, several, one in FROM.findall(self.texts[module]):
                if origin in self.files and name in re.findall(r"\w+", several or one):
                    return str(origin)
        return module


def dotted(root: Path, file: Path) -> str:
    """The name that a file is imported by."""
    source = root / "src"
    parts = file.relative_to(source if source in file.parents else root).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def room(module: str) -> str:
    """A room of the library, or another package."""
    return ".".join(module.split(".")[: 2 if module.startswith("atento.") else 1])


def nearest(root: Path, paths: list[str]) -> dict[str, int]:
    """Test files by how near they are to what changed; those that import least come first where they are equally near.

    0: changed themselves; 1: import or name a changed file; 2: import one of its folder, 3: of its room; 4: import a
    file that imports it.
    """
    sources = Sources(root)
    modules = {name for name, file in sources.files.items() if file.relative_to(root).as_posix() in paths}
    rooms, folders = {room(name) for name in modules}, {sources.files[name].parent for name in modules}
    above = {name for name, others in sources.imports.items() if others & modules}
    named = [Path(path).name for path in paths if not path.startswith("tests/") and Path(path).stem != "__init__"]
    found: dict[str, tuple[int, int, str]] = {}
    for file in sorted((root / "tests" / "unit").glob("test_*.py")):
        text, path = file.read_text(encoding="utf-8"), file.relative_to(root).as_posix()
        imports = set(sources.imported(text))
        levels = (
            path in paths,
            bool(imports & modules) or any(f'"{name}"' in text or f"/{name}" in text for name in named),
            any(sources.files[name].parent in folders for name in imports),
            any(room(name) in rooms for name in imports),
            bool(imports & above),
        )
        if any(levels):
            found[path] = (levels.index(True), len(imports), path)
    for path in paths:  # of the other folders, only what changed itself
        if re.fullmatch(r"tests/(integration|parity)/test_\w+\.py", path) and (root / path).exists():
            found[path] = (0, 1000, path)
    near = {path: found[path][0] for path in sorted(found, key=found.__getitem__)}
    return {**{path: 0 for path in ALWAYS if (root / path).exists()}, **near}


class Capped:
    """A plugin of pytest that leaves out the tests which are still to come when the time is up."""

    def __init__(self, seconds: float) -> None:
        self.seconds, self.begun, self.left = seconds, 0.0, Counter[str]()

    def pytest_collection_finish(self) -> None:
        self.begun = time.monotonic()

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> bool | None:
        if time.monotonic() - self.begun < self.seconds:
            return None
        self.left[item.path.relative_to(ROOT).as_posix()] += 1
        return True


def said(left: Mapping[str, int], files: list[str]) -> list[str]:
    """What was left out, in lines: numbers of tests, and whole files."""
    parts = [f"{Path(path).name} ({count} tests)" for path, count in left.items()] + [Path(path).name for path in files]
    return [f"left out, the furthest away: {', '.join(parts)}"] if parts else []


def main(arguments: list[str]) -> int:
    """Return 0 where everything that was run has passed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seconds", type=float, default=SECONDS, help="when tests that have not begun are left out")
    parser.add_argument("--since", help="a revision to compare with, by default where the branch left main")
    parser.add_argument("--list", action="store_true", help="print the test files and how near each is, run nothing")
    options = parser.parse_args(arguments)
    begun, paths = time.monotonic(), changed(options.since)
    near = nearest(ROOT, paths)
    if options.list:
        print(*(f"{level} {path}" for path, level in near.items()), sep="\n")
        return 0
    os.environ |= {"OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": ""}  # as in tools/gate.py
    sys.dont_write_bytecode = False
    types = subprocess.Popen([BIN / "mypy"], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    failed = [
        name
        for name, command in (("format", ["format", "--check", "--quiet"]), ("lint", ["check", "--quiet"]))
        if subprocess.run([BIN / "ruff", *command, *CHECKED], cwd=ROOT).returncode
    ]
    capped = Capped(options.seconds)
    tests = [str(ROOT / path) for path in near][:FILES]
    if pytest.main([f"--rootdir={ROOT}", "-q", "-m", "not gpu and not slow", "--no-header", *tests], plugins=[capped]):
        failed.append("tests")
    told, _ = types.communicate()
    print(told, end="")
    failed += ["types"] if types.returncode else []
    print(f"{len(paths)} files changed; {len(tests)} of {len(near)} test files near them were read")
    print(*said(capped.left, list(near)[FILES:]), sep="\n")
    print(f"{time.monotonic() - begun:.0f} s; {'failed: ' + ', '.join(failed) if failed else 'passed'}")
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
