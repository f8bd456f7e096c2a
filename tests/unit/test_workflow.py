"""The workflow of public CI: the Makefile's targets, the versions of a release, no rights beyond reading."""

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from tools.release import PYTHONS

ROOT = Path(__file__).parents[2]
FILE = ROOT / ".github" / "workflows" / "ci.yml"
WORKFLOW: dict[Any, Any] = yaml.safe_load(FILE.read_text(encoding="utf-8"))
JOBS = WORKFLOW["jobs"]
STEPS = [(name, step) for name, job in JOBS.items() for step in job["steps"]]


def test_it_runs_targets_of_the_makefile_and_may_read_the_repository_and_nothing_else() -> None:
    targets = set(re.findall(r"^(\w[\w-]*):", (ROOT / "Makefile").read_text(encoding="utf-8"), flags=re.M))
    lines = [(name, line) for name, step in STEPS for line in re.findall(r"\bmake (.+)", step.get("run", ""))]
    made = {(name, target) for name, line in lines for target in line.split() if "=" not in target}
    assert {target for _, target in made} <= targets
    assert {("lint", "lint"), ("tests", "test"), ("docs", "docs"), ("release", "dist"), ("newest", "test")} <= made
    assert tuple(JOBS["tests"]["strategy"]["matrix"]["python"]) == PYTHONS
    (installed,) = [step["with"]["python-version"] for _, step in STEPS if "\n" in str(step.get("with"))
                    .replace("\\n", "\n") and "python-version" in step["with"]]  # fmt: skip
    assert tuple(sorted(installed.split())) == PYTHONS
    assert len(WORKFLOW[True]["schedule"]) == 1, "`on` is a boolean of YAML 1.1"
    upgraded = " ".join(step.get("run", "") for name, step in STEPS if name == "newest")
    assert all(re.search(rf"--upgrade .*\b{name}\b", upgraded) for name in ("torch", "transformers", "numpy"))
    assert all(0 < job["timeout-minutes"] <= 90 for job in JOBS.values())
    # And no step puts what a stranger wrote, such as the title of a pull request, into a command
    assert WORKFLOW["permissions"] == {"contents": "read"}
    assert not [name for name, job in JOBS.items() if "permissions" in job]
    assert "secrets" not in FILE.read_text(encoding="utf-8")
    checkouts = [step for _, step in STEPS if step.get("uses", "").startswith("actions/checkout@")]
    assert len(checkouts) == len(JOBS) and all(step["with"] == {"persist-credentials": False} for step in checkouts)
    assert not [step for _, step in STEPS if "${{" in step.get("run", "")]
    used = {step["uses"] for _, step in STEPS if "uses" in step}
    assert used and all(re.fullmatch(r"actions/[\w-]+@(v\d+|[0-9a-f]{40})", one) for one in used), used


def test_actionlint_has_nothing_to_say() -> None:
    program = shutil.which("actionlint")
    if not program:
        pytest.skip("actionlint is not on this machine")
    done = subprocess.run([program, "-no-color", str(FILE)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
