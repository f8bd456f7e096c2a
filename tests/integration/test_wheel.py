"""The wheel: built, installed where there is no clone, and used."""

import os
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

from http_service import served, write_models

ROOT = Path(__file__).parents[2]
NOT_OURS = {
    "PYTHONPATH",
    "PYTHONDONTWRITEBYTECODE",
}  # each command would compile again what the one before has compiled
PACKAGES = {"atento", "atento_serve", "atento_world", "atento_lab"}


def pip(*arguments: str) -> None:
    command = [sys.executable, "-m", "pip", *arguments, "--no-deps", "--quiet"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    command = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        str(ROOT),
        "--no-deps",
        "--no-build-isolation",
        "-q",
        "-w",
        str(folder),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (built,) = folder.glob("atento-*.whl")
    return built


@pytest.fixture(scope="module")
def python(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with the wheel and what it needs, which are the packages of this one, but for its Atento."""
    home = tmp_path_factory.mktemp("installed") / "env"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(home)], check=True)
    site = next(home.glob("lib/python*/site-packages"))
    needed = [path for path in sys.path if path.endswith("site-packages")] or [sysconfig.get_paths()["purelib"]]
    (site / "needed.pth").write_text("\n".join(needed) + "\n", encoding="utf-8")  # whose own .pth files are not read
    install = [
        sys.executable,
        "-m",
        "pip",
        "--python",
        str(home / "bin" / "python"),
        "install",
        "--no-compile",  # of 700 files the tests import a third
        "--no-deps",
        "-q",
        str(wheel),
    ]
    done = subprocess.run(install, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return home / "bin" / "python"


def atento(python: Path, *arguments: str, folder: Path, text: str = "") -> "subprocess.CompletedProcess[str]":
    command = [str(python.with_name("atento")), *arguments]
    clean = {name: value for name, value in os.environ.items() if name not in NOT_OURS}
    return subprocess.run(command, cwd=folder, input=text, capture_output=True, text=True, check=False, env=clean)


def test_the_wheel_has_the_four_packages_and_nothing_else(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    assert {name.split("/")[0] for name in names if ".dist-info" not in name} == PACKAGES
    for package in PACKAGES:
        assert {f"{package}/py.typed", f"{package}/README.md"} <= set(names)


def test_what_is_installed_works_without_the_clone(python: Path, tmp_path: Path) -> None:
    where = "import atento, atento_lab; print(atento.__file__, atento_lab.__file__)"
    done = subprocess.run([str(python), "-c", where], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout.count(str(python.parents[1])) == 2
    folders = write_models(tmp_path)
    translated = atento(python, "translate", str(folders["en-pt"]), "-", folder=tmp_path, text="a b\nc\n")
    assert translated.returncode == 0 and len(translated.stdout.splitlines()) == 2, translated.stderr
    assert atento(python, "doctor", folder=tmp_path).returncode == 0
    checked = atento(python, "notes", "A3", folder=tmp_path)
    assert checked.returncode == 0, checked.stderr
    refused = atento(python, "bench", "decoding", folder=tmp_path)
    assert refused.returncode == 2 and "a clone of the project" in refused.stderr
    assert refused.stderr.count("\n") == 1 and "positions" in refused.stderr
    with served([str(folders["en-pt"])], python=python) as service:
        assert service.get("/version").status_code == 200
        assert service.post("/translate", {"q": "a b", "source": "en", "target": "pt"}).status_code == 200
