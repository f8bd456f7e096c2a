"""Lines out of bytes: encodings, separators, limits, files that are no files (reliability D2)."""

import gzip
import io
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atento.base.errors import DataError
from atento.data.files import source_lines
from atento.data.files.source_lines import LINE_LIMIT, iter_lines, read_lines, recoded, scan, scan_many
from failing import fails


def lines(raw: bytes, bad: list[str] | None = None) -> list[str]:
    return list(iter_lines(io.BytesIO(raw), "in.txt", bad=bad))


def test_lines_bad_ones_and_the_limit() -> None:
    for raw, expected in (
        *((b"", []), (b"\xef\xbb\xbf", []), (b"\n", [""]), (b"a", ["a"]), (b"a\n", ["a"])),
        *((b"a\n\n", ["a", ""]), (b"\na", ["", "a"])),
        (b"a\r\nb\rc\r\r\n", ["a", "b\rc\r"]),
        (b"a\r", ["a"]),
        (b"\xef\xbb\xbfa\n\xef\xbb\xbfb", ["a", "\ufeffb"]),
        (b"\xef\xbb\xbf\n", [""]),
        ("ação\u2028x\n".encode(), ["ação\u2028x"]),
    ):
        assert lines(raw) == expected
    bad: list[str] = []
    assert lines(b"a\nb\xe7\n\nc\n", bad) == ["a", "", "", "c"]
    assert len(bad) == 1 and bad[0].startswith("in.txt:2: not UTF-8")
    whole = b"x" * LINE_LIMIT
    bad: list[str] = []
    found = lines(whole + b"\r\n" + whole + b"y\n" + whole * 2 + b"\nz\n" + whole * 2, bad)
    assert [len(line) for line in found] == [LINE_LIMIT, 0, 0, 1, 0]
    assert bad == [f"in.txt:{number}: the line is longer than 16 MiB" for number in (2, 3, 5)]


PIECES = st.sampled_from([b"a", b"\n", b"\r\n", b"\0", b"\xc3\xa9", b"\xff", b"bcd " * 5, b"\xef\xbb\xbf"])


@given(st.lists(PIECES).map(b"".join), st.integers(1, 12))
def test_many_lines_at_a_time_are_the_lines_one_by_one(raw: bytes, part: int) -> None:
    """Errors and their places too, with parts and a limit of few bytes."""

    def read(lists: bool) -> list[str]:
        stream = io.BytesIO(raw)
        try:
            every = scan_many(stream, "in.txt") if lists else ([line] for line in scan(stream, "in.txt"))
            return [str(line) for part in every for line in (part if isinstance(part, list) else [part])]
        except DataError as error:
            return [f"whole file: {error}"]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(source_lines, "_PART", part)
        patch.setattr(source_lines, "LINE_LIMIT", 30)
        assert read(True) == read(False)


@given(st.binary(max_size=200))
def test_line_count_equals_the_byte_reference(raw: bytes) -> None:
    """Whatever the bytes, either a documented error, or as many lines as newlines say; never a crash."""
    pieces = raw.removeprefix(b"\xef\xbb\xbf").split(b"\n")
    count = len(pieces) - (pieces[-1] == b"")
    try:
        found = list(scan(io.BytesIO(raw), "in.txt"))
    except DataError as error:
        other = raw[:2] == b"\x1f\x8b" or raw[:4] in (b"\x28\xb5\x2f\xfd", b"PAR1")  # gzip; Zstandard, Parquet
        first = pieces[0].rstrip(b"\r")  # lines that end with carriage returns alone
        other = other or first.count(b"\r") > (len(pieces) > 1)
        assert other or raw[:2] in (b"\xff\xfe", b"\xfe\xff") or raw[:4] == b"\0\0\xfe\xff", error
        return
    assert len(found) == count
    for piece, line in zip(pieces, found):
        try:
            good = b"\0" not in piece and piece.removesuffix(b"\r").decode("utf-8") == line
        except UnicodeDecodeError:
            good = False
        assert good is not isinstance(line, DataError)


def test_wrong_encodings_and_workbooks_are_named() -> None:
    """Interfaces E0202: byte offset, likely encoding, how to convert."""
    for raw, said in (
        ("olá\n".encode("utf-16"), "in.txt:1: not UTF-8: the file begins with the byte order mark of UTF-16LE"),
        ("olá\n".encode("utf-32"), "the byte order mark of UTF-32LE"),
        (b"\xfe\xff" + "olá\n".encode("utf-16-be"), "the byte order mark of UTF-16BE"),
        ("hello you\n".encode("utf-16-le"), "in.txt:1: a NUL character at byte 1 of the file; it looks like UTF-16LE"),
        ("olá, você\n".encode("utf-16-be"), "looks like UTF-16BE"),
        ("olá, você\n".encode("utf-16-le"), "as `iconv -f UTF-16LE -t UTF-8` does; `encoding: utf-16le`"),
        ("sim\nnão\n".encode("latin-1"), "in.txt:2: not UTF-8: byte 0xe3 at byte 5 of the file; it looks like WIND"),
        ("“não”\n".encode("cp1252"), "byte 0x93 at byte 0 of the file; it looks like WINDOWS-1252"),
        ("ação não ".encode() + b"\xff\n", "byte 0xff at byte 12 of the file; the rest of the line is UTF-8"),
        (b"\xef\xbb\xbfa\n\xc3", "in.txt:2: not UTF-8: byte 0xc3 at byte 5 of the file"),
        (b"\xed\xa0\x80\n", "byte 0xed at byte 0"),
        (b"ab\0cdefgh\n", "in.txt:1: a NUL character at byte 2 of the file"),
        (b"PK\x03\x04\x14\0\x06\0\x08\0!\0", "in.txt: is a zip archive; name a workbook .xlsx"),
        (gzip.compress(b"a\n", mtime=0), "in.txt: is gzip-compressed; name it .gz, or unpack it first"),
    ):
        fails(DataError, re.escape(said), lines, raw)
    with pytest.raises(DataError, match=r"^a[.]xlsx: is a workbook, and lines of text are read here"):
        list(iter_lines(io.BytesIO(b"PK\x03\x04\x14\0\x06\0\x08\0!\0"), "a.xlsx"))
    # The mark stands in the first part that is decoded, the error in the second
    for encoding in ("utf-16-le", "utf-16-be"):
        broken = ("\ufeff" + "a cat\r\n" * 9_000).encode(encoding) + "\ud800a".encode(encoding, "surrogatepass")
        fails(DataError, r"^in\.txt:9001: is not utf-16", recoded(io.BytesIO(broken), "in.txt", "utf-16").read)


def test_a_line_of_64_mib_takes_no_more_than_three_limits_of_memory(tmp_path: Path) -> None:
    (tmp_path / "big.txt").write_bytes(b"x" * (64 * 2**20) + b"\nend\n")
    code = (
        "import resource, sys; from atento.data.files.source_lines import read_lines; peak = lambda: "
        "resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == 'darwin' else 1024)\n"
        "before = peak(); bad = []; found = read_lines(sys.argv[1], bad=bad); print(found, len(bad), peak() - before)"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "big.txt")]
    found, used = subprocess.run(command, capture_output=True, text=True, check=True).stdout.rsplit(" ", 1)
    assert found == "['', 'end'] 1"
    assert int(used) <= 3 * LINE_LIMIT


def test_lines_are_handed_on_as_they_arrive_also_of_a_growing_file(tmp_path: Path) -> None:
    read, write = os.pipe()
    with os.fdopen(read, "rb") as stream:
        found = iter_lines(stream, "pipe")
        os.write(write, b"first\nhalf")
        assert next(found) == "first"  # would block if it waited for more than a line
        os.write(write, b" second\n")
        assert next(found) == "half second"
        os.close(write)
        assert list(found) == []
    path = tmp_path / "log.txt"
    path.write_bytes(b"one\n")
    with path.open("rb") as stream, path.open("ab") as other:
        found = iter_lines(stream, "log.txt")
        assert next(found) == "one"
        other.write(b"two\n")
        other.flush()
        assert list(found) == ["two"]


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda path: None, "in.txt: no such file"),
        (lambda path: path.with_name("in.txt.gz").touch(), "did you mean 'in.txt.gz'?"),
        (lambda path: path.mkdir(), "in.txt: is a directory, and a file is needed"),
        (lambda path: os.mkfifo(path), "in.txt: is a pipe or a device, and a regular file is needed"),
    ],
)
def test_what_is_no_file(tmp_path: Path, make: object, said: str) -> None:
    make(tmp_path / "in.txt")  # type: ignore[operator]
    fails(DataError, re.escape(said), read_lines, tmp_path / "in.txt")


def test_odd_paths_are_refused_in_words(tmp_path: Path) -> None:
    fails(DataError, "cannot be read", read_lines, "a\0b")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    fails(DataError, "cannot be read", read_lines, tmp_path / "loop")
    (tmp_path / "file").write_text("x", encoding="utf-8")
    fails(DataError, "cannot be read: Not a directory", read_lines, tmp_path / "file" / "below")
    code = "import json; from atento.data.files.source_lines import read_lines; print(json.dumps(read_lines('-')))"
    done = subprocess.run([sys.executable, "-c", code], input=b"a\n\nol\xc3\xa1", capture_output=True, check=True)
    assert done.stdout == b'["a", "", "ol\\u00e1"]\n'
    done = subprocess.run([sys.executable, "-c", code], input=b"a\n\xe7\n", capture_output=True, check=False)
    assert b"standard input:2: not UTF-8: byte 0xe7 at byte 2" in done.stderr


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_without_permission(tmp_path: Path) -> None:
    path = tmp_path / "in.txt"
    path.write_text("x", encoding="utf-8")
    path.chmod(0)
    fails(DataError, "cannot be read: Permission denied", read_lines, path)


WHOLE = gzip.compress(b"".join(b"line %d\n" % number for number in range(2000)), mtime=0)


@pytest.mark.parametrize(
    ("raw", "said"),
    [
        (b"plain\n", "is named .gz but is not gzip-compressed"),
        (b"", "is named .gz but is not gzip-compressed"),
        (WHOLE[:-20], "the gzip data is cut short"),
        (WHOLE[:5], "the gzip data is cut short"),
        (WHOLE[:-8] + b"\0\0\0\0" + WHOLE[-4:], "the gzip data is damaged: CRC check failed"),
        (WHOLE[:40] + b"\xff" * 200 + WHOLE[240:], "the gzip data is damaged"),
        (WHOLE + b"junk", "the gzip data is damaged: Not a gzipped file"),
    ],
)
def test_gzip_is_checked_to_its_end(tmp_path: Path, raw: bytes, said: str) -> None:
    (tmp_path / "a.txt.gz").write_bytes(raw)
    fails(DataError, rf"a\.txt\.gz.*{re.escape(said)}", read_lines, tmp_path / "a.txt.gz")
    (tmp_path / "a.txt.gz").write_bytes(WHOLE)
    assert len(read_lines(tmp_path / "a.txt.gz")) == 2000
