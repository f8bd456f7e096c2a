"""`tools/gpu_session.sh`: its syntax, the measurements and options that it names, its page; on a CPU it runs whole."""

import json
import re
import runpy
import shutil
import subprocess
import sys
from pathlib import Path

import click
import pytest
import typer

from atento_cli.commands import bench
from atento_cli.measurements import ON_DEVICES
from benchmarks.training import SIZES

ROOT = Path(__file__).parents[2]
SHARDED = ROOT / "tools" / "gpu_sharded.py"
SCRIPT = ROOT / "tools" / "gpu_session.sh"
TEXT = SCRIPT.read_text(encoding="utf-8")
BASH = shutil.which("bash") or ""
pytestmark = pytest.mark.skipif(not BASH, reason="bash is not installed")


def test_its_syntax_and_what_it_refuses() -> None:
    done = subprocess.run([BASH, "-n", str(SCRIPT)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    for argv, said in (
        (["--device", "gpu"], "--device is cuda or cpu: got 'gpu'"),
        (["--device"], "--device is cuda or cpu: got ''"),
        (["--seconds", "0"], "--seconds is a whole number of at least 1: got '0'"),
        (["--seconds", "soon"], "--seconds is a whole number of at least 1: got 'soon'"),
        (["--long"], "unknown option --long: see the head of tools/gpu_session.sh"),
    ):
        done = subprocess.run([BASH, str(SCRIPT), *argv], capture_output=True, text=True)
        assert (done.returncode, done.stderr.strip()) == (2, said)


def test_the_measurements_that_it_names_exist_and_take_its_options() -> None:
    named = re.findall(r"^bench (\w+) (\d+) (\d+)$", TEXT, flags=re.M)
    assert {name for name, _, _ in named} == set(ON_DEVICES)
    others = re.findall(r"^ *part (?!tests)\w+ (\d+) ", TEXT, flags=re.M)
    tests = set(re.findall(r"^ *part tests (\d+) ", TEXT, flags=re.M))
    assert len(tests) == 1 and sum(int(share) for _, share, _ in named) + sum(map(int, [*others, *tests])) == 100
    app = typer.Typer()
    bench.register(app)
    command: click.Command = typer.main.get_command(app)
    known = {option for parameter in command.params for option in parameter.opts}
    (line,) = re.findall(r"atento_cli\.start bench .*", TEXT)
    assert set(re.findall(r"--[a-z-]+", line)) | {"--quick"} <= known
    sharded = TEXT[TEXT.index("tools.gpu_sharded") :].split("\nbench")[0]
    source = SHARDED.read_text(encoding="utf-8")
    assert all(f'"{option}"' in source for option in re.findall(r"--[a-z-]+", sharded))
    assert {"tiny", "transformer-base"} <= SIZES.keys()


def test_the_page_names_what_failed_and_keeps_the_rows_of_a_cut(tmp_path, monkeypatch) -> None:
    parts = "tests\t9\tdone\ndecoding\t9\tended after its 9 seconds; the rows so far are kept\ngraphs\t1\tfailed\n"
    (tmp_path / "parts.tsv").write_text(parts, encoding="utf-8")
    (tmp_path / "tests.txt").write_text(".....\n5 passed, 2 deselected in 1.0s\n", encoding="utf-8")
    ratio = {"bench": "decoding", "who": "atento float32", "ratio_to": "atento plain", "ratio": 1.5}
    rows = [{"bench": "decoding", "who": "a|b", "skipped": "not\nhere"}, ratio]
    text = "".join(json.dumps(row) + "\n" for row in rows) + '{"bench": "dec'
    (tmp_path / "decoding.jsonl").write_text(text, encoding="utf-8")
    (tmp_path / "graphs.jsonl").write_text("", encoding="utf-8")
    program = str(ROOT / "tools" / "gpu_page.py")
    monkeypatch.setattr(sys, "argv", [program, str(tmp_path), "--device", "cpu"])
    runpy.run_path(program, run_name="__main__")
    page = (tmp_path / "README.md").read_text(encoding="utf-8")
    assert "| decoding | 9 | ended after its 9 seconds; the rows so far are kept |" in page
    assert "`pytest -m gpu`: 5 passed, 2 deselected in 1.0s" in page
    choice = page[page.index("## Which steps") : page.index("## decoding")]
    assert choice.strip().splitlines()[-1] == "| atento float32 | atento plain | 1.5 |"
    assert "| a/b | not here |" in page and page.rstrip().endswith("No row was written: the log says why.")


@pytest.mark.slow  # some fifty processes, each of which imports torch or transformers
@pytest.mark.timeout(1800)
def test_it_runs_on_a_cpu(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    command = [BASH, str(SCRIPT), "--device", "cpu", "--seconds", "1", str(tmp_path / "out")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    parts = [line.split("\t") for line in (tmp_path / "out" / "parts.tsv").read_text(encoding="utf-8").splitlines()]
    assert [name for name, _, _ in parts] == [*re.findall(r"^(?:bench| *part) (\w+)", TEXT, flags=re.M)[1:]]
    assert all(end == "done" for _, _, end in parts), parts
    page = (tmp_path / "out" / "README.md").read_text(encoding="utf-8")
    for name in (*ON_DEVICES, "sharded"):
        rows = [json.loads(line) for line in (tmp_path / "out" / f"{name}.jsonl").read_text().splitlines()]
        assert len(rows) > 1 and f"## {name}\n" in page
    whole, sharded, *_ = rows
    assert whole["losses"] == sharded["losses"]
