"""The lock files fit pyproject.toml, hold every package that is needed, and name no registry."""

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.markers import Marker
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).parents[2]
LOCKS = {"requirements.lock": "dev", "deploy/requirements.lock": "serve"}
ENTRY = re.compile(r"^([a-z0-9-]+)==(\S+)(?: ; (.+?))? \\\n((?:    --hash=sha256:[0-9a-f]{64}(?: \\)?\n)+)", re.M)
KEYS = ("python_full_version", "python_version", "sys_platform", "platform_machine")
MACHINES = [
    dict(zip(KEYS, (f"3.{minor}.0", f"3.{minor}", system, cpu)))
    for minor in (11, 12, 13)
    for system, cpu in (("linux", "x86_64"), ("linux", "aarch64"), ("darwin", "arm64"))
]


def locked(file: str, machine: dict[str, str]) -> dict[str, Version]:
    text = (ROOT / file).read_text(encoding="utf-8")
    rows = [(name, version, marker) for name, version, marker, _ in ENTRY.findall(text)]
    assert len(rows) == len(re.findall("^[^ #].*==", text, flags=re.MULTILINE)), "every package has hashes"
    here = {name: Version(version) for name, version, marker in rows if not marker or Marker(marker).evaluate(machine)}
    assert len(here) == sum(not marker or Marker(marker).evaluate(machine) for *_, marker in rows), "a package once"
    return here


@pytest.mark.parametrize("machine", MACHINES, ids=lambda machine: "-".join(machine.values()))
@pytest.mark.parametrize("file", LOCKS)
def test_the_lock_has_each_dependency_at_a_version_of_its_range(file: str, machine: dict[str, str]) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    packages = locked(file, machine)
    wanted = [*project["project"]["dependencies"], *project["project"]["optional-dependencies"][LOCKS[file]]]
    wanted += project["build-system"]["requires"]
    for requirement in map(Requirement, wanted):
        name = canonicalize_name(requirement.name)
        if name != "torch":
            assert packages[name] in requirement.specifier, f"{name}: run `make lock`"


@pytest.mark.parametrize("file", LOCKS)
def test_the_lock_names_no_registry_and_leaves_torch_to_the_constraints(file: str) -> None:
    text = (ROOT / file).read_text(encoding="utf-8")
    assert "://" not in text and "--index" not in text
    assert not re.search(r"^(torch|triton|nvidia-.*|cuda-.*)==", text, flags=re.MULTILINE)
    assert re.search(r"^torch==", (ROOT / "constraints.txt").read_text(encoding="utf-8"), flags=re.MULTILINE)


def test_what_has_no_wheel_is_built_from_its_locked_source_by_locked_packages() -> None:
    """Isolated builds fetched setuptools, and setuptools-scm of seqeval, without a version or a hash."""
    recipe = re.sub(r"\\\n\s*", "", (ROOT / "Makefile").read_text(encoding="utf-8"))
    steps = re.search(r"\$\(VENV\)/installed-dev: .*\n((?:\t.*\n)+)", recipe)
    assert steps is not None
    chosen, wheels, sources, *_ = steps[1].splitlines()
    assert "--only-binary :all:" in wheels and "--no-build-isolation" in sources
    built = re.search(r"!/\^\((.+?)\)==/", chosen)
    assert built is not None
    text = (ROOT / "requirements.lock").read_text(encoding="utf-8")
    hashes = {name: found.count("sha256") for name, _, _, found in ENTRY.findall(text)}
    assert {hashes[name] for name in built[1].split("|")} == {1}  # the source alone
    assert {"setuptools", "setuptools-scm"} <= hashes.keys()


def test_the_image_and_the_service_have_the_versions_of_the_tests() -> None:
    for machine in MACHINES:
        assert locked("deploy/requirements.lock", machine).items() <= locked("requirements.lock", machine).items()


def test_the_bill_of_materials_has_every_package_and_torch(tmp_path: Path) -> None:
    out = tmp_path / "sbom.json"
    subprocess.run([sys.executable, ROOT / "tools" / "lock.py", "sbom", "--out", out], check=True, capture_output=True)
    bill = json.loads(out.read_text(encoding="utf-8"))
    assert bill["bomFormat"] == "CycloneDX" and bill["metadata"]["component"]["name"] == "atento"
    versions = {row["name"]: row["version"] for row in bill["components"]}
    text = (ROOT / "deploy" / "requirements.lock").read_text(encoding="utf-8")
    assert versions.items() >= {(name, version) for name, version, *_ in ENTRY.findall(text)} and "torch" in versions
    references = {row["bom-ref"] for row in bill["components"]}
    depends = {row["ref"]: row["dependsOn"] for row in bill["dependencies"]}
    assert {reference for row in depends.values() for reference in row} <= references
    own = next(row for reference, row in depends.items() if "/atento@" in reference)
    assert any("/fastapi@" in reference for reference in own) and any("/torch@" in reference for reference in own)
