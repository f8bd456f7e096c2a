"""Builds a release and tries it: `make dist` writes a wheel and a source distribution to dist/, and the wheel of
`atento-models`, and publishes nothing.

The steps: the changelog has a section for the version; the files are built (`build`), hold what git tracks and nothing
else, and are checked (`twine check --strict`); the wheel is installed into a fresh environment of each Python version
that this machine has, and tried there. Last it prints the release notes, which are that section of the changelog.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PYTHONS = ("3.11", "3.12", "3.13")
PACKAGES = {"atento", "atento_cli", "atento_serve", "atento_world", "atento_lab"}
MODELS = "atento_models"  # a distribution of its own, for its size
SHOWN, SENTENCE = "micro-world-en-pt", "The white cat sleeps."


def run(*command: str | Path, text: str = "", folder: Path = ROOT) -> str:
    """Return what a command prints; where it fails, end with its name and its last words.

    It does not inherit PYTHONPATH, by which an environment would find packages that are not installed in it.
    """
    clean = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(command, cwd=folder, input=text, capture_output=True, text=True, check=False, env=clean)
    if done.returncode:
        raise SystemExit(
            f"{' '.join(map(str, command))}: status {done.returncode}\n{(done.stderr or done.stdout)[-2000:]}"
        )
    return done.stdout


def version() -> str:
    """Return the version of the source."""
    text = (ROOT / "src" / "atento" / "base" / "version.py").read_text(encoding="utf-8")
    return re.findall(r'__version__ = "(.+)"', text)[0]


def notes(number: str, changelog: str) -> str:
    """Return the section of a version in the changelog; end with a sentence where it has none, or no date."""
    found = re.search(
        rf"^## \[{re.escape(number)}\] - \d{{4}}-\d\d-\d\d\n(.+?)(?=^## |\Z)", changelog, flags=re.M | re.S
    )
    if not found:
        raise SystemExit(f"CHANGELOG.md has no section `## [{number}] - YEAR-MONTH-DAY`")
    return found[1].strip()


def build(out: Path) -> tuple[Path, Path, Path]:
    """Return wheel, source distribution and wheel of the models, built into a folder with the locked build backend."""
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", out, ROOT)
    run(sys.executable, "-m", "build", "--no-isolation", "--wheel", "--outdir", out, ROOT / "src" / MODELS)
    found = (next(out.glob(pattern)) for pattern in (f"atento-{version()}-*.whl", "*.tar.gz", f"{MODELS}-*.whl"))
    return (*found,)


def strangers(wheel: Path, source: Path, models: Path) -> list[str]:
    """Return the files of the three that git does not track and the build did not write."""
    tracked = {*run("git", "ls-files").splitlines(), "PKG-INFO"}
    with tarfile.open(source) as opened:
        names = [one.name.partition("/")[2] for one in opened if not one.isdir()]
    wrong = [
        f"{each.name}: {name}"
        for each, packages in ((wheel, PACKAGES), (models, {MODELS}))
        for name in zipfile.ZipFile(each).namelist()
        if ".dist-info/" not in name and (f"src/{name}" not in tracked or name.split("/")[0] not in packages)
    ]
    return [*wrong, *(f"{source.name}: {name}" for name in names if name not in tracked)]


def environment(home: Path, python: str, wheel: Path, *, borrowed: bool = False, index: str = "") -> Path:
    """Return the Python of a new environment with the wheel.

    Args:
        home: the folder of the environment.
        python: the program that makes it.
        wheel: what is installed.
        borrowed: its requirements are the packages of the environment that runs this; else they are installed too.
        index: a package index for PyTorch.
    """
    run(python, "-m", "venv", *(["--without-pip"] if borrowed else []), home)
    program = home / "bin" / "python"
    if borrowed:
        site = next(home.glob("lib/python*/site-packages"))
        needed = [path for path in sys.path if path.endswith("site-packages")] or [sysconfig.get_paths()["purelib"]]
        (site / "needed.pth").write_text(
            "\n".join(needed) + "\n", encoding="utf-8"
        )  # whose own .pth files are not read
        run(sys.executable, "-m", "pip", "--python", program, "install", "--no-compile", "--no-deps", "-q", wheel)
        return program
    pip = [program, "-m", "pip", "install", "--quiet", "--constraint", ROOT / "constraints.txt"]
    run(*pip, *(["--index-url", index] if index else []), "torch")
    run(*pip, wheel)
    return program


def interpreter(number: str) -> str | None:
    """Return a program that runs Python of a version: this one, one of the path, or one that pyenv keeps."""
    if number == f"{sys.version_info.major}.{sys.version_info.minor}":
        return sys.executable
    kept = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")).glob(f"versions/{number}.*/bin/python{number}")
    for program in (shutil.which(f"python{number}"), *map(str, sorted(kept))):
        if program and subprocess.run([program, "-c", ""], capture_output=True, check=False).returncode == 0:
            return program
    return None  # a shim of pyenv may be on the path with nothing behind it


def tried(python: Path, wheel: Path, folder: Path) -> list[str]:
    """Return what was tried in an environment, a line each, with what it printed first."""
    atento, said = python.with_name("atento"), []
    for words in (["--version"], ["doctor"]):
        said.append(f"atento {' '.join(words)}: {run(atento, *words, folder=folder).splitlines()[0]}")
    if said[0] != f"atento --version: atento {version()}":
        raise SystemExit(f"{said[0]}; the source is {version()}")
    if not any(name.startswith("atento_world/models/") for name in zipfile.ZipFile(wheel).namelist()):
        return [*said, f"atento translate {SHOWN}: not tried, this wheel has no models"]
    translated = run(atento, "translate", SHOWN, "-", text=f"{SENTENCE}\n", folder=folder).strip()
    if not translated:
        raise SystemExit(f"atento translate {SHOWN}: no output for {SENTENCE!r}")
    return [*said, f"atento translate {SHOWN}: {SENTENCE} → {translated}"]


def main(arguments: list[str]) -> None:
    """Build, check, try, print the notes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=ROOT / "dist", help="folder of the files")
    parser.add_argument("--index", default="", help="package index that PyTorch is installed from")
    parser.add_argument(
        "--borrow", action="store_true", help="try with the packages of this environment, this Python alone"
    )
    options = parser.parse_args(arguments)
    text = notes(version(), (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"))
    shutil.rmtree(options.out, ignore_errors=True)
    wheel, _, _ = files = build(options.out)
    if wrong := strangers(*files):
        raise SystemExit("not tracked by git, and would be shipped:\n  " + "\n  ".join(wrong))
    run(sys.executable, "-m", "twine", "check", "--strict", *files)
    for file in files:
        print(f"{file.name}: {file.stat().st_size / 1e6:.1f} MB, checked")
    for number in PYTHONS:
        program = interpreter(number)
        own = program == sys.executable
        if not program or (options.borrow and not own):
            print(f"Python {number}: skipped, {'--borrow tries its own Python' if program else 'not on this machine'}")
            continue
        with tempfile.TemporaryDirectory() as folder:
            python = environment(Path(folder) / "env", program, wheel, borrowed=options.borrow, index=options.index)
            print(f"Python {number}:", *tried(python, wheel, Path(folder)), sep="\n  ")
    print(f"\nRelease notes of {version()} (nothing was published):\n\n{text}")


if __name__ == "__main__":
    main(sys.argv[1:])
