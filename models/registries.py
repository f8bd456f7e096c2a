"""Packages of Debian, PyPI and npm by name: downloaded by their own clients, their texts unpacked."""

import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from atento.base.errors import AtentoError, MissingPartError

# Catalogues and manuals in Portuguese, their English sides, what menus show, and the licence.
_WANTED = re.compile(
    r"[/_.-](pt|pt_PT|pt_BR|pt-br|pt-BR)(/LC_MESSAGES/.*\.mo|[./].*\.(po|qm|page|docbook|xml|html)|\.(po|qm|html))$"
    r"|/help/C/.*\.(page|docbook|xml)$|/HTML/en/.*\.docbook$|/html/en(-US)?/.*\.html$|/help/en/.*\.html$|\.en\.html$"
    r"|(^|/)(en|pt|pt-BR|pt-br)(-[0-9a-f]{32})?\.json$|/description\.(en|pt_BR)\.utf8$|/stamps/.*\.txt$|\.dict\.dz$"
    r"|/strings/\w+\.properties$|/annotations(Derived)?/(en|pt)\.xml$"
    r"|\.desktop$|\.(metainfo|appdata)\.xml$|\.entities$|/copyright$"
)


_CLIENTS = {
    "debian": ["apt-get", "download"],
    "pypi": [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:"],
    "npm": ["npm", "pack", "--silent"],
}
_TOGETHER = 40  # packages a download: apt-get reads all its lists each time


def tree_of(names: Sequence[str], folder: Path) -> Path:
    """The folder of packages that are unpacked together: that of the first."""
    return folder / names[0].replace("/", "+")


def unpack(wanted: Sequence[tuple[str, tuple[str, ...]]], folder: Path) -> list[str]:
    """Download packages, and unpack the texts in them into folders, those alone that are not there yet.

    Args:
        wanted: registry ("debian", "pypi", "npm") and names of packages that share a folder.
        folder: where the folders are kept.

    Returns: why packages could not be had, a line each: another release of Debian may lack some.

    Raises MissingPartError: a tool that is needed is not on this machine.
    """
    missing = [(registry, names) for registry, names in wanted if not tree_of(names, folder).is_dir()]
    for registry in dict.fromkeys(registry for registry, _ in missing):
        for tool in (_CLIENTS[registry][0], *(["dpkg-deb"] if registry == "debian" else [])):
            if shutil.which(tool) is None:
                raise MissingPartError(f"packages of {registry} need {tool}, which is not on this machine")
    folder.mkdir(parents=True, exist_ok=True)
    lacking = []
    for registry in _CLIENTS:
        groups = [names for each, names in missing if each == registry]
        for batch in (groups[start : start + _TOGETHER] for start in range(0, len(groups), _TOGETHER)):
            try:
                _unpack_batch(registry, batch, folder)
            except AtentoError:
                for names in batch:  # all but the one that is not to be had
                    try:
                        _unpack_batch(registry, [names], folder)
                    except AtentoError as error:
                        lacking.append(str(error))
    return lacking


def _unpack_batch(registry: str, batch: Sequence[tuple[str, ...]], folder: Path) -> None:
    names = [name for group in batch for name in group]
    with tempfile.TemporaryDirectory(dir=folder, prefix=".unpacking-") as scratch:
        place, made = Path(scratch), Path(scratch) / "trees"
        command = [*_CLIENTS[registry], *names]
        if registry != "debian" and len(names) > 1:
            raise AtentoError("one at a time")  # the names of their files do not tell which is which
        _run(command, place, f"{command[0]} could not download {', '.join(names)}")
        for group in batch:
            tree = tree_of(group, made)
            tree.mkdir(parents=True)
            patterns = [f"{name}_*.deb" for name in group] if registry == "debian" else ["*.whl", "*.tgz"]
            for package in sorted(path for pattern in patterns for path in place.glob(pattern)):
                _extract(package, tree)
                package.unlink()
            tree.rename(tree_of(group, folder))


def _extract(package: Path, tree: Path) -> None:
    if package.suffix == ".whl":
        with zipfile.ZipFile(package) as archive:
            archive.extractall(tree, [name for name in archive.namelist() if _WANTED.search(name)])
    elif package.suffix == ".tgz":
        with tarfile.open(package) as members:
            _extract_wanted(members, tree)
    else:
        _run(["dpkg-deb", "-e", str(package), str(tree / "DEBIAN")], package.parent, f"{package.name} is damaged")
        with (
            subprocess.Popen(["dpkg-deb", "--fsys-tarfile", str(package)], stdout=subprocess.PIPE) as process,
            tarfile.open(fileobj=process.stdout, mode="r|") as members,
        ):
            _extract_wanted(members, tree)


def _extract_wanted(members: tarfile.TarFile, tree: Path) -> None:
    for member in members:
        if member.isfile() and _WANTED.search(member.name):
            members.extract(member, tree, filter="data")


def _run(command: list[str], folder: Path, failure: str) -> None:
    process = subprocess.run(command, cwd=folder, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    if process.returncode:
        last = process.stderr.strip().splitlines()[-1:] or [f"exit status {process.returncode}"]
        hint = "; `apt-get update` (as root) renews the package lists" if command[0] == "apt-get" else ""
        raise AtentoError(f"{failure}: {last[0]}" + hint)


_KNOWN = ("GPL", "LGPL", "AGPL", "GFDL", "MIT", "BSD", "MPL", "Apache", "CC", "Artistic", "public domain", "Expat")


def licence(tree: Path, package: str) -> str:
    """What debian/copyright says of all files, or the names of the licences in it, the most frequent first."""
    path = tree / "usr/share/doc" / package / "copyright"
    text = path.read_text("utf-8", errors="replace") if path.is_file() else ""
    for stanza in re.split(r"\n\s*\n", text):
        match = re.search(r"^License:[ \t]*(\S[^\n]*)", stanza, flags=re.MULTILINE)
        if match and re.search(r"^Files:\s*\*\s*$", stanza, flags=re.MULTILINE):
            return match[1].strip()
    names = re.findall(r"common-licenses/([\w.+-]*\w)", text) or [name for name in _KNOWN if name in text]
    return ", ".join(name for name, _ in Counter(names).most_common(3)) or "see its copyright file"
