"""Files that are replaced whole, or not at all."""

import os
from pathlib import Path

import pytest

from atento.storage.whole_file import replacement


def test_a_file_is_replaced_when_its_replacement_is_whole(tmp_path: Path) -> None:
    path, link = tmp_path / "a.txt", tmp_path / "link"
    link.symlink_to("a.txt")
    with replacement(path) as partial:
        partial.write_text("old")
        assert not path.exists()
    with pytest.raises(RuntimeError), replacement(link) as partial:
        partial.write_text("ne")
        raise RuntimeError
    assert path.read_text() == link.read_text() == "old" and {*tmp_path.iterdir()} == {path, link}
    with replacement(link) as partial:
        partial.write_text("new")
    assert link.is_symlink() and path.read_text() == "new" and {*tmp_path.iterdir()} == {path, link}


def test_what_is_no_file_is_written_itself(tmp_path: Path) -> None:
    with replacement(Path("/dev/null")) as partial:
        partial.write_text("gone")
    assert partial == Path("/dev/null") and partial.is_char_device()
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    with replacement(pipe) as partial:
        partial.write_text("read")
    assert os.read(reader, 10) == b"read" and pipe.is_fifo()
    os.close(reader)
