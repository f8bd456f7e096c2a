"""The gate's own parts: the mark `covering`, the times that `make test` ends with, and what `make check` chooses."""

import importlib.util
import itertools
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from _pytest.assertion.rewrite import AssertionRewritingHook
from hypothesis import settings
from tools import check, gate

ROOT = Path(__file__).parents[2]
ALONE = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
GRID = """
import pytest

@pytest.mark.covering{arguments}
@pytest.mark.parametrize("a", [[0], [1], [2]])
@pytest.mark.parametrize("b", ["x", "y"])
@pytest.mark.parametrize(("c", "d"), [(1.5, 2.5), (3.5, 4.5)])
def test_grid(a, b, c, d, pytestconfig):
    with open(pytestconfig.rootpath / "ran", "a") as file:
        file.write(f"{{a[0]}} {{b}} {{c}} {{d}}\\n")

@pytest.mark.covering(of=lambda e: {{"kind": e[:1]}})
@pytest.mark.parametrize("e", ["k1", "k2", "m1"])
def test_kinds(e, pytestconfig):
    with open(pytestconfig.rootpath / "kinds", "a") as file:
        file.write(e)

def test_of_no_grid():
    pass
"""

FORK = """
import os, sys, pytest
from pathlib import Path

@pytest.mark.parametrize("n", range(8))
def test_it(n):
    assert "mailbox" in sys.modules and sys.argv == ["-c"] and not hasattr(sys.modules["__main__"], "__file__")
    files = [os.readlink(file) for file in Path("/proc/self/fd").iterdir() if file.exists()]
    Path(str(os.getpid())).write_text(str(len({file for file in files if file.startswith("pipe:")})))
"""


@pytest.mark.parametrize(("arguments", "at_a_time", "most"), [("", 1, 3), ("(2)", 2, 8)])
def test_the_gate_runs_all_values_of_a_covering_grid_and_slow_the_rest(
    tmp_path: Path, arguments: str, at_a_time: int, most: int
) -> None:
    shutil.copy(ROOT / "tests" / "conftest.py", tmp_path)
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers =\n  slow: \n  covering: \n", encoding="utf-8")
    (tmp_path / "test_it.py").write_text(GRID.format(arguments=arguments), encoding="utf-8")
    ran = {}
    for tier in ("not slow", "slow"):
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", tier, str(tmp_path)]
        done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, timeout=120, env=ALONE)
        assert done.returncode == 0, done.stdout
        ran[tier] = (tmp_path / "ran").read_text(encoding="utf-8").splitlines()
        (tmp_path / "ran").unlink()
    assert (tmp_path / "kinds").read_text(encoding="utf-8") == "k1m1k2"  # one of each kind, then the rest
    both = [tuple(line.split()) for line in ran["not slow"] + ran["slow"]]
    grid = itertools.product("012", "xy", [("1.5", "2.5"), ("3.5", "4.5")])
    assert sorted(both) == sorted((a, b, *rest) for a, b, rest in grid)
    kept = [tuple(line.split()) for line in ran["not slow"]]
    assert len(kept) <= most
    for places in itertools.combinations(range(4), at_a_time):
        assert {tuple(case[n] for n in places) for case in kept} == {tuple(case[n] for n in places) for case in both}


def test_workers_of_the_gate_are_forks_with_what_was_imported(tmp_path: Path) -> None:
    """Each with what an interpreter of its own would have besides: an empty main module, no files of the others."""
    (tmp_path / "test_it.py").write_text(FORK, encoding="utf-8")
    program = (
        "import sys; sys.path.insert(0, sys.argv.pop(1)); import gate_workers, mailbox, pytest\n"
        "gate_workers.workers_are_forked(); sys.exit(pytest.main(sys.argv[1:]))"
    )
    options = ["-q", "-p", "no:cacheprovider", "-p", "xdist", "-n", "2", "--dist", "worksteal", "test_it.py"]
    command = [sys.executable, "-c", program, str(ROOT / "tools"), *options]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, timeout=120, env=ALONE)
    assert done.returncode == 0 and "8 passed" in done.stdout, done.stdout + done.stderr
    written = [path for path in tmp_path.iterdir() if path.name.isdecimal()]
    assert len(written) == 2 and {path.read_text() for path in written} == {"3"}, done.stdout


def test_steps_run_together_fail_together_and_their_seconds_are_summed(tmp_path, monkeypatch) -> None:
    report = tmp_path / "tests.xml"
    report.write_text(
        '<testsuites><testsuite><testcase classname="tests.unit.test_a" name="one" time="1.25"/>'
        '<testcase classname="tests.parity.test_b" name="two" time="0.5"/>'
        '<testcase classname="tests.unit.test_c.TestIt" name="three" time="2.0"/></testsuite></testsuites>',
        encoding="utf-8",
    )
    lines = gate.of_tests(report)
    expected = ["parity 0.5 s in 1 tests", "unit 3.2 s in 2 tests"]
    assert [line.split() for line in lines] == [line.split() for line in expected]
    monkeypatch.setattr(gate, "BIN", Path("/"))
    python = str(Path(sys.executable).relative_to("/"))
    wait = [python, "-c", "import time; time.sleep(60)"]
    name, status, took = gate.together({"a": [python, "-c", "pass"], "b": [python, "-c", "pass"]})
    assert (name, status, set(took)) == ("", 0, {"a", "b"})
    name, status, took = gate.together({"types": [python, "-c", "raise SystemExit(3)"], "tests": wait})
    assert (name, status, set(took)) == ("types", 3, {"types"}) and took["types"] < 50


# Tests that ask for a feature of the processor and do not run again without it, each with its reason.
NOT_AGAIN = {
    "integration/test_convert_engines.py": "ONNX Runtime reads none of the variables",
    "unit/test_convert_ctranslate2.py": "nor does CTranslate2",
    "unit/test_minutes.py": "it says itself what the processor has",
}
FEATURE = re.compile(r"\b(cpu_features|best_precision|has_\w+_products|has_tiles)\b")
COMPUTING = ("attention", "networks", "inference", "decoding", "training")  # rooms of the library


def test_what_runs_again_as_on_older_processors_has_what_depends_on_them() -> None:
    tests = ROOT / "tests"
    texts = {file: (tests / file).read_text(encoding="utf-8") for file in gate.NUMERICAL}
    for file in tests.glob("*/test_*.py"):
        if FEATURE.search(file.read_text(encoding="utf-8")) and file.name != "test_gate.py":
            name = str(file.relative_to(tests))
            assert (name in texts) != (name in NOT_AGAIN), f"{name}: to gate.NUMERICAL, or to NOT_AGAIN with a reason"
    for room in COMPUTING:
        assert any(f"atento.{room}" in text for text in texts.values()), room
    for part in ("bfloat16", "int8", "optimizer", "backward()", "transformers.", "company"):
        assert any(part in text for text in texts.values()), part


def test_a_part_runs_again_as_on_an_older_processor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a process that has the variables when torch is imported; the line at the end says how many ran, and how."""
    test = """
import os, pytest, torch
def test_it():
    assert torch.backends.cpu.get_cpu_capability() == os.environ["ATEN_CPU_CAPABILITY"].upper()
    assert os.environ["OMP_NUM_THREADS"] == "1"
@pytest.mark.skip
def test_that_is_not_for_it(): ...
def test_{0}(): assert os.environ["ATEN_CPU_CAPABILITY"] == "{0}"
"""
    for name in gate.OLDER:
        (tmp_path / f"test_{name}.py").write_text(test.format(name), encoding="utf-8")
    own = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTHONPATH": str(ROOT / "tests")}
    monkeypatch.setattr(gate, "ENVIRONMENT", gate.ENVIRONMENT | own)
    steps = {name: ["pytest", "-q", "-p", "no:cacheprovider", str(tmp_path / f"test_{name}.py")] for name in gate.OLDER}
    steps = {name: [*words, f"--junitxml={tmp_path / name}.xml"] for name, words in steps.items()}
    failed, status, took = gate.together(steps, tmp_path)
    assert (failed, status) == ("", 0) and set(took) == set(gate.OLDER)
    for name, variables in gate.OLDER.items():
        told = gate.of_older(name, tmp_path)
        assert told.startswith("in 2 tests again, 1 skipped, with ")
        assert dict(one.split("=") for one in told.split(" with ")[1].split()) == variables
        assert "2 passed, 1 skipped" in (tmp_path / f"{name}.log").read_text(encoding="utf-8")
    command = gate.again("any", tmp_path, ["-m", "not slow"])
    assert command[0] == "pytest" and f"tests/{gate.NUMERICAL[0]}" in command and "not slow" in command


SOURCES = {
    "src/atento/base/errors.py": "class AtentoError(Exception): ...",
    "src/atento/text/__init__.py": "from atento.text.tokenizer import Tokenizer",
    "src/atento/text/tokenizer.py": "from atento.base.errors import AtentoError",
    "src/atento/text/words.py": "",
    "src/atento/model.py": "def load():\n    from atento.text import (  # late\n        Tokenizer,\n    )\n",
    "src/atento_serve/app.py": "import atento.model\n",
    "tests/unit/test_tokenizer.py": "from atento.text import Tokenizer, words\n",
    "tests/unit/test_words.py": "from atento.text.words import word_spans\n",
    "tests/unit/test_model.py": "from atento.model import load\n",
    "tests/unit/test_app.py": "from atento_serve.app import app\n",
    "tests/unit/test_page.py": 'PAGE = ROOT / "docs" / "data.md"\n',
    "tests/unit/test_house_rules.py": "",
    "tests/integration/test_run.py": "",
}


@pytest.mark.parametrize(
    ("paths", "near"),
    [
        (["src/atento/text/tokenizer.py"], {"test_tokenizer.py": 1, "test_words.py": 2, "test_model.py": 4}),
        (["src/atento/text/words.py"], {"test_words.py": 1, "test_tokenizer.py": 1}),
        (["src/atento/model.py"], {"test_model.py": 1, "test_app.py": 4}),
        (["tests/unit/test_app.py", "tests/integration/test_run.py"], {"test_app.py": 0, "test_run.py": 0}),
        (["docs/data.md"], {"test_page.py": 1}),
        ([], {}),
    ],
)
def test_check_takes_the_tests_nearest_to_what_changed(tmp_path: Path, paths: list[str], near: dict[str, int]) -> None:
    """By who imports whom, through what a package hands on, and late imports too; the house rules always."""
    for name, text in SOURCES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text, encoding="utf-8")
    found = check.nearest(tmp_path, paths)
    assert {Path(path).name: level for path, level in found.items()} == {"test_house_rules.py": 0, **near}


def test_check_runs_what_fits_into_its_time_and_names_the_rest(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(
        "import time\ndef test_a():\n    time.sleep(0.2)\ndef test_b(): ...\ndef test_c(): ...\n", encoding="utf-8"
    )
    program = (
        "import sys; sys.path.insert(0, sys.argv[1]); import check, pathlib, pytest\n"
        "check.ROOT = pathlib.Path(sys.argv[2]); capped = check.Capped(0.1)\n"
        "status = pytest.main(['-q', '-p', 'no:cacheprovider', f'--rootdir={sys.argv[2]}', sys.argv[2]], [capped])\n"
        "print(int(status), *check.said(capped.left, ['tests/unit/test_far.py']))"
    )
    command = [sys.executable, "-c", program, str(ROOT / "tools"), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, timeout=120, env=ALONE)
    assert "1 passed" in done.stdout, done.stdout + done.stderr
    assert done.stdout.splitlines()[-1] == "0 left out, the furthest away: test_it.py (2 tests), test_far.py"


def test_pytest_parses_no_package_that_brings_a_plugin(pytestconfig: pytest.Config) -> None:
    """Two threads that parse at once fail before Python 3.11.8: a service in one, an imported package in the other."""
    assert settings().deadline is None  # of examples
    assert pytestconfig.getoption("disable_plugin_autoload")
    assert not isinstance(importlib.util.find_spec("anyio").loader, AssertionRewritingHook)  # type: ignore[union-attr]
