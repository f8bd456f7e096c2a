"""Files that grow a thousandfold, lines without an end, files beyond memory: refused while little is spent (R3)."""

import gzip
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from atento.base.errors import DataError
from atento.base.limits import RATIO, WINDOW, free_memory, limited
from atento.config.recipe import SourceConfig
from atento.data.files.source_lines import scan
from atento.data.records.reader import TEXT, read_records
from atento_cli.scale.inputs import Input
from atento_cli.scale.line_blocks import Reading

MIB = 1 << 20
LINE = b"o gato pulou " * 100 + b"\n"
READ = """
import json, resource, sys
from pathlib import Path
from atento.config.recipe import SourceConfig
from atento.data.records.reader import TEXT, read_records
from atento.base.errors import DataError
name, column, cap = sys.argv[1:]
resource.setrlimit(resource.RLIMIT_AS, (int(cap), int(cap)))
try:
    read_records(SourceConfig(file=name, text=json.loads(column)), TEXT, Path())
except DataError as error:
    print(error)
status = Path("/proc/self/status").read_text()  # ru_maxrss would hold the peak of the parent, too
print(int(status.split("VmHWM:")[1].split()[0]) // 1024)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="a limit on memory is set as Linux has it")
def test_r3_free_memory_is_the_least_of_what_the_system_and_the_limits_leave() -> None:
    child = """
import os, resource
from pathlib import Path
from atento.base.limits import free_memory
before = free_memory()
held = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
resource.setrlimit(resource.RLIMIT_AS, (held + 2**26, held + 2**26))
assert 0 < free_memory() <= 2**26 < before, (free_memory(), before)
"""
    done = subprocess.run([sys.executable, "-c", child], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def member(block: bytes) -> bytes:
    """One gzip member; several in a row are one gzip file."""
    return gzip.compress(block, mtime=0)


def read_capped(folder: Path, name: str, column: int | str | None, cap: int = 1 << 31) -> tuple[str, int, float]:
    """What a process of its own says of the file, its largest memory in MiB, and the seconds."""
    begun = time.monotonic()
    own = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    command = [sys.executable, "-c", READ, name, json.dumps(column), str(cap)]
    done = subprocess.run(command, cwd=folder, env=own, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    said, peak = done.stdout.rsplit("\n", 2)[:2]
    return said, int(peak), time.monotonic() - begun


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="a limit on memory is set as Linux has it")
@pytest.mark.parametrize(
    ("name", "column", "first", "unit"),
    [
        ("lines.txt.gz", None, b"", LINE),
        ("one.tsv.gz", 0, b"", b"o gato "),  # never a newline
        ("list.json.gz", "text", b"[", b'{"text": "aaaaaaa"},'),
        ("late.txt.gz", None, None, LINE),
    ],
)
def test_r3_gzip_data_that_grow_a_thousandfold(tmp_path, name, column, first, unit) -> None:
    """`first` is None: 6 MiB that cannot be packed much."""
    first = os.urandom(3 * MIB).hex().encode() + b"\n" if first is None else first
    (tmp_path / name).write_bytes(member(first) + member(unit * (32 * MIB // len(unit))) * 96)  # 3 GiB
    said, peak, seconds = read_capped(tmp_path, name, column)
    expected = "the line is longer than 16 MiB" if name == "one.tsv.gz" else f"grow more than {RATIO} times"
    assert said.startswith(name) and expected in said
    assert peak < 600 and seconds < 30


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="free memory is read as Linux tells it")
def test_r3_a_file_that_memory_cannot_hold(tmp_path: Path) -> None:
    pieces = [os.urandom(160).hex().encode() * 30 + b"\n" for _ in range(3400)]  # 30 times smaller when packed
    block = b"".join(pieces)
    (tmp_path / "big.txt.gz").write_bytes(member(block) * (2048 * MIB // len(block)))
    said, peak, _ = read_capped(tmp_path, "big.txt.gz", None, cap=700 * MIB)
    assert said.startswith("big.txt.gz: does not fit into memory: ") and "MiB of memory are free" in said
    assert peak < 700


SWOLLEN = {"equal rows": lambda: ["a"] * 2_500_000, "one long text": lambda: ["a" * (24 << 20), "b"]}


@pytest.mark.parametrize("column", SWOLLEN)
@pytest.mark.parametrize("reader", ["--cluster", "dataset", "dataset of a folder"])
def test_r3_a_parquet_file_that_grows_is_refused_by_its_footer(reader: str, column: str, tmp_path: Path) -> None:
    arrow = pytest.importorskip("pyarrow", reason="pyarrow is not installed (extra remote)")
    parquet = pytest.importorskip("pyarrow.parquet")
    pytest.importorskip("datasets", reason="datasets is not installed (extra data)")
    file = tmp_path / "set" / "a.parquet"
    file.parent.mkdir()
    parquet.write_table(arrow.table({"text": SWOLLEN[column]()}), file, row_group_size=1 << 22, compression="zstd")
    assert file.stat().st_size < 64 << 10
    with pytest.raises(DataError, match=r"a\.parquet: column 'text' grows more than 200 times .* out of \d+ KiB"):
        if reader == "--cluster":
            Input(str(file)).plan(Reading())
        else:
            read_records(SourceConfig(dataset=str(file if reader == "dataset" else file.parent)), TEXT, tmp_path)


def test_text_that_packs_well_is_read_and_a_line_too_long_told_before_its_rest_is(tmp_path: Path) -> None:
    lines = [f"{number:07d} o gato pulou alto sobre o muro da casa da vizinha " * 8 for number in range(90_000)]
    raw = ("\n".join(lines) + "\n").encode()
    assert len(raw) > WINDOW
    (tmp_path / "a.txt.gz").write_bytes(gzip.compress(raw, 1))
    assert len(raw) / (tmp_path / "a.txt.gz").stat().st_size < RATIO
    assert read_records(SourceConfig(file="a.txt.gz"), TEXT, tmp_path)["text"] == lines
    free = free_memory()
    assert free is None or 0 < free <= os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    (tmp_path / "long.txt").write_bytes(b"ok\n" + b"x" * (40 * MIB) + b"\nfim\n")
    with (tmp_path / "long.txt").open("rb") as stream:
        found = scan(stream, "long.txt")
        assert next(found) == "ok" and isinstance(next(found), DataError) and stream.tell() < 20 * MIB
        assert list(found) == ["fim"]
    whole = member(b"o gato\n" * 100_000)
    (tmp_path / "cut.gz").write_bytes(whole[:-20])
    (tmp_path / "cut.txt.gz").write_bytes(whole[:-20])
    with pytest.raises(DataError, match=r"cut\.txt\.gz: the gzip data is cut short"):
        read_records(SourceConfig(file="cut.txt.gz"), TEXT, tmp_path)
    with (tmp_path / "cut.txt.gz").open("rb") as raw, limited(raw, "cut", packed_as=".gz") as stream:
        assert stream.read(14) == b"o gato\no gato\n" and stream.tell() == 14
