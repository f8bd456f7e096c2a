"""Outputs are checked before any work and written whole, whatever the disk; numbers with their nouns in messages."""

import errno
import os
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from atento.base.errors import AtentoError, UsageError, counted
from atento.storage.atomic_files import output, write_output
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


def test_r3_a_full_disk_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for old in (None, "the old page"):
        path = tmp_path / "page.html"
        if old is not None:
            path.write_text(old, encoding="utf-8")

        def full(self: Path, content: bytes) -> Any:
            with self.open("wb") as file:
                file.write(content[:4])
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        monkeypatch.setattr(Path, "write_bytes", full)
        fails(AtentoError, rf"write '{path}': No space left on device", write_output, path, "a new page")
        assert [file.name for file in tmp_path.iterdir()] == ([] if old is None else ["page.html"])
        assert old is None or path.read_text(encoding="utf-8") == old


def test_two_threads_may_write_one_file(tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    with ThreadPoolExecutor(1) as pool, output(path) as partial:
        partial.write_text("of the first", encoding="utf-8")
        pool.submit(write_output, path, "of the second").result()
        assert path.read_text(encoding="utf-8") == "of the second"
    assert path.read_text(encoding="utf-8") == "of the first" and list(tmp_path.iterdir()) == [path]


def test_a_link_stays_a_link_and_a_device_is_written_to(tmp_path: Path) -> None:
    (tmp_path / "link.html").symlink_to(tmp_path / "page.html")
    write_output(tmp_path / "link.html", "página")
    assert (tmp_path / "link.html").is_symlink() and (tmp_path / "page.html").read_text(encoding="utf-8") == "página"
    write_output(Path(os.devnull), b"gone")
    assert Path(os.devnull).is_char_device()


def test_a_number_with_its_noun() -> None:
    expected = {0: "0 texts", 1: "1 text", 2: "2 texts", 12_000: "12,000 texts", -1: "-1 texts"}
    assert {number: counted(number, "text") for number in expected} == expected
    assert [counted(n, "entry", "entries") for n in (1, 3)] == ["1 entry", "3 entries"]
