"""The repository: what `make` leaves, hints to install, public CI, locked packages, the notes of a release (W1)."""

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.markers import Marker
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version
from tools import release
from tools.release import PYTHONS

from atento.base.errors import install_hint

ROOT = Path(__file__).parents[2]
MAKEFILE, CHANGELOG, README = ((ROOT / name).read_text("utf-8") for name in ("Makefile", "CHANGELOG.md", "README.md"))
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
EXTRAS = PYPROJECT["project"]["optional-dependencies"]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")), *sorted((ROOT / "deploy").rglob("*"))]
SOURCES = sorted((ROOT / "src").rglob("*.py"))
WORKFLOW_FILE = ROOT / ".github" / "workflows" / "ci.yml"
WORKFLOW: dict[Any, Any] = yaml.safe_load(WORKFLOW_FILE.read_text(encoding="utf-8"))
JOBS = WORKFLOW["jobs"]
STEPS = [(name, step) for name, job in JOBS.items() for step in job["steps"]]
EXTRA_OF = {"requirements.lock": "dev", "deploy/requirements.lock": "serve"}
LOCKS = {name: (ROOT / name).read_text(encoding="utf-8") for name in EXTRA_OF}
ENTRY = re.compile(r"^([a-z0-9-]+)==(\S+)(?: ; (.+?))? \\\n((?:    --hash=sha256:[0-9a-f]{64}(?: \\)?\n)+)", re.M)
KEYS = ("python_full_version", "python_version", "sys_platform", "platform_machine")
MACHINES = [
    dict(zip(KEYS, (f"3.{minor}.0", f"3.{minor}", system, cpu)))
    for minor in (11, 12, 13)
    for system, cpu in (("linux", "x86_64"), ("linux", "aarch64"), ("darwin", "arm64"))
]


def test_lint_does_not_depend_on_what_the_demo_leaves_behind(tmp_path: Path) -> None:
    """`make demo` makes `runs/`; such a folder in the root once changed how `from runs import` was sorted."""
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    shutil.copytree(ROOT / "tests", tmp_path / "tests", ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "src").symlink_to(ROOT / "src")
    (tmp_path / "runs" / "demo").mkdir(parents=True)
    command = [sys.executable, "-m", "ruff", "check", "--no-cache", "tests"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


def test_hints_name_an_extra_that_is_made_by_one_function_and_no_package_unpublished() -> None:
    for file in (file for file in (*PAGES, *SOURCES) if file.is_file()):
        text = file.read_text(encoding="utf-8")
        assert not re.search(r"pip install [^`\n]*\batento\b(?!-[\d*])|atento\[", text), file
        for command, extra in re.findall(r"(pip install [^`\n]*?)\.\[(\w+)\]", text):
            assert extra in EXTRAS, (file, extra)
            assert "-e " in command or "--editable" in command or file.parent.name == "deploy", f"{file}: {command}"
    calls = [call for file in SOURCES for call in re.findall(r"install_hint\(['\"](\w+)['\"]\)", file.read_text())]
    assert len(calls) > 10 and set(calls) <= set(EXTRAS)
    written = [file.name for file in SOURCES if "pip install -e" in file.read_text(encoding="utf-8")]
    assert written == ["errors.py"]
    assert install_hint("plot") == "pip install -e '.[plot]' in your clone of Atento"
    assert re.search(r"^serve: install\n\t.*--constraint constraints.txt --editable '\.\[serve\]'$", MAKEFILE, re.M)
    installs = re.findall(r"pip install .*'?\.(?:\[\w+\])?'?$", MAKEFILE, re.M)
    assert len(installs) == 3 and all("--editable" in line for line in installs)
    assert "make serve" in README


@pytest.mark.skipif(shutil.which("make") is None, reason="needs make")
def test_make_serve_says_what_it_would_run() -> None:
    """A dry run, whatever is installed: its last command adds the extra; without the variables of the outer make."""
    alone = {name: value for name, value in os.environ.items() if name not in ("MAKEFLAGS", "MFLAGS", "MAKELEVEL")}
    done = subprocess.run(["make", "-n", "serve"], cwd=ROOT, env=alone, capture_output=True, text=True, check=True)
    last = "pip install --quiet --constraint constraints.txt --editable '.[serve]'"
    assert done.stdout.splitlines()[-1].endswith(last)


def test_the_readme_says_what_it_downloads_and_a_missing_package_is_named_in_one_sentence() -> None:
    lines = README.splitlines()
    first = next(number for number, line in enumerate(lines) if "make " in line)
    note = next(number for number, line in enumerate(lines) if "TORCH_INDEX=URL" in line)
    assert abs(first - note) < 6
    program = "import sys; sys.modules['torch'] = None; sys.argv = ['atento', 'doctor']; from atento_cli import main"
    done = subprocess.run([sys.executable, "-c", program + "; main.main()"], capture_output=True, text=True)
    assert done.returncode == 1 and done.stdout == ""
    assert done.stderr == "error: the package torch is not installed: pip install torch, or install Atento once more\n"


def test_it_runs_targets_of_the_makefile_and_may_read_the_repository_and_nothing_else() -> None:
    targets = set(re.findall(r"^(\w[\w-]*):", MAKEFILE, flags=re.M))
    lines = [(name, line) for name, step in STEPS for line in re.findall(r"\bmake (.+)", step.get("run", ""))]
    made = {(name, target) for name, line in lines for target in line.split() if "=" not in target}
    assert {target for _, target in made} <= targets
    assert {("lint", "lint"), ("tests", "test"), ("docs", "docs"), ("release", "dist"), ("newest", "test")} <= made
    assert tuple(JOBS["tests"]["strategy"]["matrix"]["python"]) == PYTHONS
    versions = [str(step.get("with", {}).get("python-version")) for _, step in STEPS]
    (installed,) = [one for one in versions if "\n" in one]
    assert tuple(sorted(installed.split())) == PYTHONS
    assert len(WORKFLOW[True]["schedule"]) == 1, "`on` is a boolean of YAML 1.1"
    upgraded = " ".join(step.get("run", "") for name, step in STEPS if name == "newest")
    assert all(re.search(rf"--upgrade .*\b{name}\b", upgraded) for name in ("torch", "transformers", "numpy"))
    assert all(0 < job["timeout-minutes"] <= 90 for job in JOBS.values())
    # And no step puts what a stranger wrote, such as the title of a pull request, into a command
    assert WORKFLOW["permissions"] == {"contents": "read"}
    assert not [name for name, job in JOBS.items() if "permissions" in job]
    assert "secrets" not in WORKFLOW_FILE.read_text(encoding="utf-8")
    checkouts = [step for _, step in STEPS if step.get("uses", "").startswith("actions/checkout@")]
    assert len(checkouts) == len(JOBS) and all(step["with"] == {"persist-credentials": False} for step in checkouts)
    assert not [step for _, step in STEPS if "${{" in step.get("run", "")]
    used = {step["uses"] for _, step in STEPS if "uses" in step}
    assert used and all(re.fullmatch(r"actions/[\w-]+@(v\d+|[0-9a-f]{40})", one) for one in used), used


def test_actionlint_has_nothing_to_say() -> None:
    program = shutil.which("actionlint")
    if not program:
        pytest.skip("actionlint is not on this machine")
    done = subprocess.run([program, "-no-color", str(WORKFLOW_FILE)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_notes_of_a_version_are_its_section_alone_and_versions_fall() -> None:
    text = "## [Unreleased]\n\n- c\n\n## [0.2.0] - 2026-11-26\n\n### Added\n\n- b\n\n## [0.1.0] - 2026-01-02\n\n- a\n"
    assert release.notes("0.2.0", text) == "### Added\n\n- b" and release.notes("0.1.0", text) == "- a"
    for number in ("0.3.0", "0.2", "0x2.0", "Unreleased"):
        with pytest.raises(SystemExit, match=re.escape(f"no section `## [{number}] - YEAR-MONTH-DAY`")):
            release.notes(number, "## [Unreleased]\n\n- c\n\n## [0.2.0] - 2026-11-26\n\n- b\n")
    with pytest.raises(SystemExit, match=r"status 3\nno such thing"):
        release.run(sys.executable, "-c", "import sys; print('no such thing', file=sys.stderr); sys.exit(3)")
    # Keep a Changelog: Unreleased first, then versions from the newest, each with a date, under six headings
    first, *headings = re.findall(r"^## (.+)$", CHANGELOG, flags=re.M)
    assert first == "[Unreleased]"
    found = [re.fullmatch(r"\[(\d+\.\d+\.\d+)\] - (\d{4}-\d\d-\d\d)", heading) for heading in headings]
    assert all(found), headings
    versions = [Version(one[1]) for one in found if one]
    assert versions == sorted(versions, reverse=True) and versions[0] == Version(release.version())
    kinds = {"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"}
    assert set(re.findall(r"^### (.+)$", CHANGELOG, flags=re.M)) <= kinds
    assert len(release.notes(release.version(), CHANGELOG)) > 1000


def test_an_interpreter_is_this_one_or_one_that_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A shim with nothing behind it, as pyenv puts on the path, is passed over."""
    assert release.interpreter(f"{sys.version_info.major}.{sys.version_info.minor}") == sys.executable
    shim = tmp_path / "python9.9"
    shim.write_text("#!/bin/sh\nexit 127\n", encoding="utf-8")
    shim.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setenv("PYENV_ROOT", str(tmp_path / "pyenv"))
    assert release.interpreter("9.9") is None
    kept = tmp_path / "pyenv" / "versions" / "9.9.1" / "bin" / "python9.9"
    kept.parent.mkdir(parents=True)
    kept.write_text("#!/bin/sh\nexit 0\n", encoding="utf-8")
    kept.chmod(0o755)
    assert release.interpreter("9.9") == str(kept)


def locked(file: str, machine: dict[str, str]) -> dict[str, Version]:
    rows = ENTRY.findall(LOCKS[file])
    assert len(rows) == len(re.findall("^[^ #].*==", LOCKS[file], flags=re.MULTILINE)), "every package has hashes"
    here = [(name, Version(found)) for name, found, mark, _ in rows if not mark or Marker(mark).evaluate(machine)]
    assert len(here) == len(dict(here)), "a package once"
    return dict(here)


@pytest.mark.parametrize("machine", MACHINES, ids=lambda machine: "-".join(machine.values()))
@pytest.mark.parametrize("file", LOCKS)
def test_the_lock_has_each_dependency_at_a_version_of_its_range(file: str, machine: dict[str, str]) -> None:
    packages = locked(file, machine)
    wanted = [*PYPROJECT["project"]["dependencies"], *EXTRAS[EXTRA_OF[file]], *PYPROJECT["build-system"]["requires"]]
    for requirement in map(Requirement, wanted):
        name = canonicalize_name(requirement.name)
        if name != "torch":
            assert packages[name] in requirement.specifier, f"{name}: run `make lock`"


def test_the_lock_names_no_registry_and_leaves_torch_to_the_constraints() -> None:
    for text in LOCKS.values():
        assert "://" not in text and "--index" not in text
        assert not re.search(r"^(torch|triton|nvidia-.*|cuda-.*)==", text, flags=re.MULTILINE)
    assert re.search(r"^torch==", (ROOT / "constraints.txt").read_text(encoding="utf-8"), flags=re.MULTILINE)


def test_what_has_no_wheel_is_built_from_its_locked_source_by_locked_packages() -> None:
    """Isolated builds fetched setuptools, and setuptools-scm of seqeval, without a version or a hash."""
    (steps,) = re.findall(r"\$\(VENV\)/installed-dev: .*\n((?:\t.*\n)+)", re.sub(r"\\\n\s*", "", MAKEFILE))
    chosen, wheels, sources, *_ = steps.splitlines()
    assert "--only-binary :all:" in wheels and "--no-build-isolation" in sources
    (built, *_) = re.findall(r"!/\^\((.+?)\)==/", chosen)
    hashes = {name: found.count("sha256") for name, _, _, found in ENTRY.findall(LOCKS["requirements.lock"])}
    assert {hashes[name] for name in built.split("|")} == {1}  # the source alone
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
    locked_versions = {(name, version) for name, version, *_ in ENTRY.findall(LOCKS["deploy/requirements.lock"])}
    assert versions.items() >= locked_versions and "torch" in versions
    references = {row["bom-ref"] for row in bill["components"]}
    depends = {row["ref"]: row["dependsOn"] for row in bill["dependencies"]}
    assert {reference for row in depends.values() for reference in row} <= references
    own = next(row for reference, row in depends.items() if "/atento@" in reference)
    assert any("/fastapi@" in reference for reference in own) and any("/torch@" in reference for reference in own)
