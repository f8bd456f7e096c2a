"""The wheel: built, installed where there is no clone, and used."""

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest
from tools.release import MODELS, PACKAGES, build, environment, strangers, tried

from atento import __version__ as atento_version
from http_service import served

ROOT = Path(__file__).parents[2]
# each command would compile again what the last has compiled
CLEAN = {name: value for name, value in os.environ.items() if name not in {"PYTHONPATH", "PYTHONDONTWRITEBYTECODE"}}


@pytest.fixture(scope="module")
def release(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, Path]:
    """The wheel, the source distribution and the wheel of the models, as `make dist` builds them."""
    return build(tmp_path_factory.mktemp("dist"))


@pytest.fixture(scope="module")
def python(release: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with the wheel and what it needs, which are the packages of this one, but for its Atento."""
    return environment(tmp_path_factory.mktemp("installed") / "env", sys.executable, release[0], borrowed=True)


def atento(python: Path, *arguments: str, folder: Path, text: str = "") -> "subprocess.CompletedProcess[str]":
    command = [str(python.with_name("atento")), *arguments]
    return subprocess.run(command, cwd=folder, input=text, capture_output=True, text=True, check=False, env=CLEAN)


def test_the_wheel_has_the_five_packages_and_nothing_else_and_its_models_are_small(release: Any) -> None:
    names = zipfile.ZipFile(release[0]).namelist()
    assert {name.split("/")[0] for name in names if ".dist-info" not in name} == PACKAGES
    for package in PACKAGES:
        assert {f"{package}/py.typed", f"{package}/README.md"} <= set(names)
    files = [one for one in zipfile.ZipFile(release[0]).infolist() if one.filename.startswith("atento_world/models/")]
    assert sum(one.filename.endswith(".safetensors") for one in files) == 7
    assert sum(one.file_size for one in files) < 5_000_000


def test_the_files_hold_what_git_tracks_and_nothing_else(release: Any, tmp_path: Path) -> None:
    """No environment, no cache, no run; a file that is planted in the wheel is found."""
    if not shutil.which("git") or not (ROOT / ".git").exists():
        pytest.skip("not a clone, or no git")
    assert strangers(*release) == []
    planted = Path(shutil.copy(release[0], tmp_path))
    with zipfile.ZipFile(planted, "a") as opened:
        opened.writestr("atento/.venv/key.py", "")
    assert strangers(planted, *release[1:]) == [f"{planted.name}: atento/.venv/key.py"]


def test_twine_finds_nothing_to_say(release: Any) -> None:
    command = [sys.executable, "-m", "twine", "check", "--strict", *map(str, release)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0 and done.stdout.count("PASSED") == 3, done.stdout + done.stderr


@pytest.mark.slow
def test_a_release_is_tried_as_make_dist_does(python: Path, release: Any, tmp_path: Path) -> None:
    assert atento(python, "doctor", folder=tmp_path).returncode == 0
    said = tried(python, release[0], tmp_path)
    assert said[0].endswith(f"atento {atento_version}") and len(said) == 3 and "micro-world-en-pt" in said[2]


def test_the_models_of_real_text_are_a_wheel_of_their_own(release: Any, tmp_path: Path) -> None:
    wheel, source, models = release
    assert wheel.stat().st_size < 15e6 and source.stat().st_size < 20e6 and models.stat().st_size < 45e6
    python = environment(tmp_path / "env", sys.executable, wheel, borrowed=True)
    assert "atento-en-pt" not in atento(python, "doctor", folder=tmp_path).stdout
    missing = atento(python, "translate", "atento-en-pt", folder=tmp_path, text="Hello.\n")
    assert missing.returncode == 2 and "comes with the package atento-models" in missing.stderr
    command = [sys.executable, "-m", "pip", "--python", python, "install", "--no-compile", "--no-deps", "-q", models]
    subprocess.run(command, check=True)
    assert atento(python, "translate", "atento-en-pt", folder=tmp_path, text="Hello.\n").returncode == 0
    checking = [str(python), "-m", MODELS]
    checked = subprocess.run(checking, cwd=tmp_path, capture_output=True, text=True, env=CLEAN, check=True)
    assert "atento-en-pt: 5 files" in checked.stdout and checked.stdout.count("as released") >= 8
    damaged = next(python.parents[1].glob(f"lib/*/site-packages/{MODELS}/models/atento-en-pt/config.json"))
    damaged.write_text(damaged.read_text("utf-8") + " ", "utf-8")
    checked = subprocess.run(checking, cwd=tmp_path, capture_output=True, text=True, env=CLEAN, check=False)
    assert checked.returncode == 1 and checked.stdout.count("as released") >= 7 and "config.json" in checked.stdout


def test_what_is_installed_works_without_the_clone(python: Path, tmp_path: Path) -> None:
    where = "import atento, atento_lab; print(atento.__file__, atento_lab.__file__)"
    done = subprocess.run([str(python), "-c", where], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout.count(str(python.parents[1])) == 2
    shipped = atento(python, "translate", "micro-world-en-pt", folder=tmp_path, text="the cat sleeps\nthe cat sleeps\n")
    assert (shipped.returncode, shipped.stdout) == (0, "O gato dorme\n" * 2), shipped.stderr
    checked = atento(python, "notes", "A3", folder=tmp_path)
    assert checked.returncode == 0, checked.stderr
    refused = atento(python, "bench", "decoding", folder=tmp_path)
    assert refused.returncode == 2 and "a clone of the project" in refused.stderr
    assert refused.stderr.count("\n") == 1 and "positions" in refused.stderr
    with served(["micro-world-en-pt"], python=python) as service:
        assert service.get("/version").status_code == 200
        answer = service.post("/translate", {"q": "the cat sleeps", "source": "en", "target": "pt"})
        assert answer.status_code == 200 and "O gato dorme" in answer.text
