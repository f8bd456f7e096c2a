"""The repository as a newcomer has it: what the README's commands leave behind does not fail the next one (W1)."""

import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_lint_does_not_depend_on_what_the_demo_leaves_behind(tmp_path: Path) -> None:
    """`make demo` makes `runs/`; such a folder in the root once changed how `from runs import` was sorted."""
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    shutil.copytree(ROOT / "tests", tmp_path / "tests", ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "src").symlink_to(ROOT / "src")
    (tmp_path / "runs" / "demo").mkdir(parents=True)
    command = [sys.executable, "-m", "ruff", "check", "--no-cache", "tests"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
