"""Outputs are checked before any work (found.md: `embed --out nodir/v.npy` did all the work, then failed)."""

import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from atento.base.errors import UsageError
from atento_cli.output_paths import output_file, output_folder
from failing import fails


def test_a_file_that_can_be_written_and_one_that_will_be_replaced(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "old.npy").write_bytes(b"old")
    for name in ("v.npy", "old.npy", str(tmp_path / "v.npy"), "V.NPY"):
        assert output_file(name, (".npy",)) == Path(name)
    assert output_file("any", ()) == Path("any") and (tmp_path / "old.npy").read_bytes() == b"old"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["old.npy"]  # nothing was made
    with pytest.raises(UsageError, match=r"--out must end in \.html, \.svg or \.png: got 'x\.pdf'"):
        output_file("x.pdf", (".html", ".svg", ".png"))


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("none/v.npy", "--out none/v.npy cannot be written: there is no folder none"),
        ("v.txt", "--out must end in .npy: got 'v.txt'"),
        ("v", "--out must end in .npy: got 'v'"),
        ("", "--out must name a file: got an empty name"),
        ("dir.npy", "--out dir.npy cannot be written: it is a folder, and a file is needed"),
        ("file/v.npy", "--out file/v.npy cannot be written: it is no folder: file"),
        ("x" * 300 + ".npy", "cannot be written: File name too long"),
        ("nul\0.npy", "cannot be written: "),
    ],
)
def test_files_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, said: str) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "dir.npy").mkdir()
    (tmp_path / "file").touch()
    with pytest.raises(UsageError) as caught:
        output_file(name, (".npy",))
    assert said in str(caught.value) and caught.value.exit_status == 2


def test_folders_are_made_where_missing_and_kept_where_they_must_be_new(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    (tmp_path / "empty").mkdir()
    for name in ("new", "new/deep/er", "empty", "full", str(tmp_path / "a" / "b")):
        assert output_folder(name) == Path(name)
    for name in ("new", "empty", "new/deep"):
        assert output_folder(name, new=True) == Path(name)
    with pytest.raises(UsageError, match="--out full must be a new or empty folder: nothing is overwritten"):
        output_folder("full", new=True)
    for name in ("full/file", "full/file/below"):
        fails(UsageError, f"--out {name} cannot be written: .* is a file, and a folder is needed", output_folder, name)
    fails(UsageError, "--out must name a folder: got an empty name", output_folder, "")


AS_ANOTHER = """
import os, sys
from atento_cli.output_paths import output_file, output_folder
os.chdir(sys.argv[1])
if os.geteuid() == 0:
    os.setgroups([]), os.setgid(65534), os.setuid(65534)
for check, name in ((output_file, "locked/v"), (output_folder, "locked/v"), (output_file, "read-only")):
    try:
        print(check(name))
    except Exception as error:
        print(type(error).__name__, error)
"""


def test_without_permission() -> None:
    """Root may write anywhere, so root becomes nobody here."""
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        place.chmod(0o755)
        (place / "locked").mkdir()
        (place / "read-only").touch()
        (place / "locked").chmod(0o555)
        (place / "read-only").chmod(0o444)
        done = subprocess.run([sys.executable, "-c", AS_ANOTHER, name], capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr
        paths = ("locked/v", "locked/v", "read-only")
        for line, path, what in zip(done.stdout.splitlines(), paths, ("locked", "locked", "read-only"), strict=True):
            said = f"UsageError --out {path} cannot be written: no permission to write to "
            assert line.startswith(said) and Path(line.removeprefix(said)).name == what, line
