"""Write the lock files, with the hashes of all files of each version, and the list of their packages (SBOM).

    make lock       keeps the versions that are locked; LOCK=--upgrade takes the newest
    make sbom       writes sbom.json, in the format of CycloneDX

Torch and the CUDA packages that it brings are left out: the builds of one version differ from index to index, so that
`constraints.txt` alone says the version.
"""

import argparse
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, metadata
from pathlib import Path

ROOT = Path(__file__).parents[1]
LOCKS = {"requirements.lock": "dev", "deploy/requirements.lock": "serve"}
"""File -> the extra that it locks."""
BUILD = ("hatchling", "editables")  # what builds Atento itself
BUILD_OTHERS = {"dev": ("setuptools", "setuptools-scm")}  # what builds rouge-score and seqeval, which have no wheels
ALONE = {"dev": ("mbrs>=0.1.8",)}  # a peer whose own requirements bring other models
OMITTED = re.compile(r"torch|triton|(nvidia|cuda)-.*")


@dataclass(frozen=True)
class Locked:
    """A package of a lock: name, version, the rest of its line (an environment marker), its hashes, who needs it."""

    name: str
    version: str
    marker: str
    hashes: tuple[str, ...]
    needed_by: tuple[str, ...]


def locked(text: str) -> Iterator[Locked]:
    """The packages of the text of a lock."""
    for entry in re.split(r"\n(?=[A-Za-z0-9])", "\n" + text)[1:]:
        head, _, rest = entry.partition("\n")
        match = re.fullmatch(r"([A-Za-z0-9._-]+)==(\S+)(?: ; (.+?))? \\", head)
        assert match, head
        comments = "\n".join(re.findall("^ *#(.*)", rest, flags=re.MULTILINE)).replace(",", "\n")
        needed_by = re.findall(r"^ *(?:via )? *(?!via$)([A-Za-z0-9][\w.-]*)", comments, flags=re.MULTILINE)
        yield Locked(match[1], match[2], match[3] or "", tuple(re.findall(r"sha256:(\w{64})", rest)), tuple(needed_by))


def write_lock(file: str, extra: str, options: list[str]) -> None:
    """Write one lock; the versions that it has, and those of the locks before it, are kept."""
    path = ROOT / file
    with tempfile.TemporaryDirectory() as folder:
        wanted, out = Path(folder) / "wanted.in", Path(folder) / "out.txt"
        wanted.write_text("\n".join((*BUILD, *BUILD_OTHERS.get(extra, ()))))
        kept = [ROOT / "constraints.txt", *(ROOT / name for name in list(LOCKS)[: list(LOCKS).index(file)])]
        constraints = [word for number, one in enumerate(kept) for word in ("-c", _pins(one, Path(folder), number))]
        text = path.read_text() if path.exists() else ""
        out.write_text(text)
        body = _compiled([str(ROOT / "pyproject.toml"), str(wanted), "--extra", extra, *constraints, *options], out)
        for requirement in ALONE.get(extra, ()):
            wanted.write_text(requirement)
            out.write_text(text)
            body += _compiled([str(wanted), "--no-deps", *options], out)
    rows = sorted((row for row in locked(body) if not OMITTED.fullmatch(row.name)), key=lambda row: row.name)
    head = (
        f"# Every package of `.[{extra}]` but torch (constraints.txt), with the hashes of its files; by `make lock`.\n"
    )
    path.write_text(head + "".join(map(_entry, rows)))
    print(f"{file}: {len(rows)} packages")


def _pins(file: Path, folder: Path, number: int) -> str:
    """A file of the versions of a lock, without hashes."""
    text = file.read_text()
    pins = [f"{row.name}=={row.version}" for row in locked(text)] if "--hash" in text else [text]
    copy = folder / f"pins-{number}.txt"
    copy.write_text("\n".join(pins))
    return str(copy)


def _compiled(arguments: list[str], out: Path) -> str:
    command = [sys.executable, "-m", "uv", "pip", "compile", "--quiet", "--universal", "--python-version", "3.11"]
    command += ["--generate-hashes", "--no-header", "--output-file", str(out), *arguments]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return out.read_text()


def _entry(row: Locked) -> str:
    marker = f" ; {row.marker}" if row.marker else ""
    hashes = " \\\n".join(f"    --hash=sha256:{digest}" for digest in row.hashes)
    via = ", ".join(row.needed_by)
    return f"{row.name}=={row.version}{marker} \\\n{hashes}\n" + (f"    # via {via}\n" if via else "")


def bill(extra: str) -> dict[str, object]:
    """The packages of a lock, and torch, as a bill of materials in CycloneDX 1.6."""
    file = next(name for name, of in LOCKS.items() if of == extra)
    rows = [*locked((ROOT / file).read_text())]
    torch = re.search(r"^torch==(\S+)", (ROOT / "constraints.txt").read_text(), flags=re.MULTILINE)
    assert torch
    rows.append(Locked("torch", torch[1], "", (), ("atento",)))
    version = re.search(r'^__version__ = "(.+)"', (ROOT / "src/atento/base/version.py").read_text(), flags=re.MULTILINE)
    assert version
    needs: dict[str, list[str]] = {}
    for row in rows:
        for name in row.needed_by:
            needs.setdefault(name, []).append(_purl(row))
    own = Locked("atento", version[1], "", (), ())
    return {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {"component": _component(own) | {"type": "application"}},
        "components": [_component(row) for row in rows],
        "dependencies": [{"ref": _purl(row), "dependsOn": sorted(needs.get(row.name, []))} for row in [own, *rows]],
    }


def _purl(row: Locked) -> str:
    return f"pkg:pypi/{row.name}@{row.version}"


def _component(row: Locked) -> dict[str, object]:
    component: dict[str, object] = {
        "type": "library",
        "bom-ref": _purl(row),
        "name": row.name,
        "version": row.version,
        "purl": _purl(row),
    }
    if row.hashes:
        component["hashes"] = [{"alg": "SHA-256", "content": digest} for digest in row.hashes]
    try:
        licence = metadata(row.name).get("License-Expression")
    except PackageNotFoundError:
        licence = None
    return component | ({"licenses": [{"expression": licence}]} if licence else {})


def main() -> None:
    """`lock` or `sbom`."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("what", choices=["lock", "sbom"])
    parser.add_argument("--extra", default="serve", choices=LOCKS.values(), help="of the bill (default: serve)")
    parser.add_argument("--out", type=Path, default=ROOT / "sbom.json")
    known, options = parser.parse_known_args()
    if known.what == "sbom":
        known.out.write_text(json.dumps(bill(known.extra), indent=1) + "\n")
        print(f"{known.out}: the packages of `.[{known.extra}]`")
        return
    for file, extra in LOCKS.items():
        write_lock(file, extra, options)


if __name__ == "__main__":
    main()
