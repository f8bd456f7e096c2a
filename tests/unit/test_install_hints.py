"""How to install what is missing: what works from a clone, everywhere said in the same way."""

import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from atento.base.errors import install_hint

ROOT = Path(__file__).parents[2]
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")), *sorted((ROOT / "deploy").rglob("*"))]
SOURCES = sorted((ROOT / "src").rglob("*.py"))


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
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert re.search(r"^serve: install\n\t.*--constraint constraints.txt --editable '\.\[serve\]'$", makefile, re.M)
    installs = re.findall(r"pip install .*'?\.(?:\[\w+\])?'?$", makefile, re.M)
    assert len(installs) == 3 and all("--editable" in line for line in installs)
    assert "make serve" in (ROOT / "README.md").read_text(encoding="utf-8")


@pytest.mark.skipif(shutil.which("make") is None, reason="needs make")
def test_make_serve_says_what_it_would_run() -> None:
    """A dry run, whatever is installed: its last command adds the extra; without the variables of the outer make."""
    alone = {name: value for name, value in os.environ.items() if name not in ("MAKEFLAGS", "MFLAGS", "MAKELEVEL")}
    done = subprocess.run(["make", "-n", "serve"], cwd=ROOT, env=alone, capture_output=True, text=True, check=True)
    last = "pip install --quiet --constraint constraints.txt --editable '.[serve]'"
    assert done.stdout.splitlines()[-1].endswith(last)


def test_the_readme_says_what_it_downloads_and_a_missing_package_is_named_in_one_sentence() -> None:
    lines = (ROOT / "README.md").read_text(encoding="utf-8").splitlines()
    first = next(number for number, line in enumerate(lines) if "make " in line)
    note = next(number for number, line in enumerate(lines) if "TORCH_INDEX=URL" in line)
    assert abs(first - note) < 6
    program = "import sys; sys.modules['torch'] = None; sys.argv = ['atento', 'doctor']; from atento_cli import main"
    done = subprocess.run([sys.executable, "-c", program + "; main.main()"], capture_output=True, text=True)
    assert done.returncode == 1 and done.stdout == ""
    assert done.stderr == "error: the package torch is not installed: pip install torch, or install Atento once more\n"
