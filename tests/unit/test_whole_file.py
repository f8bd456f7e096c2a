"""Files that a user named are written whole: a disk that is full in the middle leaves the old one."""

import errno
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from atento.base.errors import AtentoError
from atento.storage.atomic_files import output, write_output
from failing import fails


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
