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

from atento.errors import AtentoError, MissingPartError

# Catalogues and manuals in Portuguese, their English sides, what menus show, and the licence.
_WANTED = re.compile(
    r"[/_.-](pt|pt_PT|pt_BR|pt-br|pt-BR)(/LC_MESSAGES/.*\.mo|[./].*\.(po|qm|page|docbook|xml|html)|\.(po|qm|html))$"
    r"|/help/C/.*\.(page|docbook|xml)$|/HTML/en/.*\.docbook$|/html/en/.*\.html$|/help/en/.*\.html$|\.en\.html$"
    r"|(^|/)(en|pt|pt-BR|pt-br)(-[0-9a-f]{32})?\.json$|/description\.(en|pt_BR)\.utf8$|/stamps/.*\.txt$|\.dict\.dz$"
    r"|/strings/\w+\.properties$|/annotations(Derived)?/(en|pt)\.xml$"
    r"|\.desktop$|\.(metainfo|appdata)\.xml$|\.entities$|/copyright$"
)


def unpacked(registry: str, packages: Sequence[str], folder: Path) -> Path:
    """Return a folder with the texts of some packages; what is there already is used as it is.

    Args:
        registry: "debian", "pypi" or "npm".
        packages: their names; the first names the folder, and packages of Debian may be several.
        folder: where unpacked packages are kept.

    Raises MissingPartError: a tool that is needed is not on this machine. AtentoError: the download was refused.
    """
    tree = folder / packages[0].replace("/", "+")
    if tree.is_dir():
        return tree
    client = _CLIENTS[registry]
    for tool in client[:1] if registry != "debian" else ("apt-get", "dpkg-deb"):
        if shutil.which(tool) is None:
            raise MissingPartError(f"packages of {registry} need {tool}, which is not on this machine")
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder, prefix=".unpacking-") as name:
        scratch, made = Path(name), Path(name) / "tree"
        made.mkdir()
        _run([*client, *packages], scratch, f"{client[0]} could not download {', '.join(packages)}")
        for package in sorted(path for path in scratch.iterdir() if path.is_file()):
            _extract(package, made)
            package.unlink()
        made.rename(tree)
    return tree


_CLIENTS = {
    "debian": ["apt-get", "download"],
    "pypi": [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:"],
    "npm": ["npm", "pack", "--silent"],
}


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
