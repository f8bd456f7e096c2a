"""Runs the gate (format, lint, types, tests) and ends with how long each tier of it took."""

import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from xml.etree import ElementTree

BIN = Path(sys.executable).parent
CHECKED = ("src", "benchmarks", "examples", "tests", "tools")
BEFORE = [
    ("format", ["ruff", "format", "--check", "--quiet", *CHECKED]),
    ("lint", ["ruff", "check", "--quiet", *CHECKED]),
    ("types", ["mypy", "--num-workers", "2"]),
]
# Work stealing keeps a file's tests on one worker until the other has none left, so that shared fixtures are made once.
PYTEST = ["pytest", "-n", "2", "--dist", "worksteal", "--durations=40"]
# One thread a worker. Bytecode is written even where the environment forbids it: the tests start many interpreters.
ENVIRONMENT = {"OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": ""}
MEMORY = Path("/dev/shm")  # the tests sync many small files


def place() -> Path | None:
    """Where the files of the tests go: a folder in memory if it has 4 GiB free; None: the system's folder."""
    return MEMORY if os.access(MEMORY, os.W_OK) and shutil.disk_usage(MEMORY).free > 4 << 30 else None


def main(arguments: list[str]) -> int:
    """Stop at the first step that fails, and return its status. `arguments` are pytest's."""
    begun, lines = time.monotonic(), []
    with tempfile.TemporaryDirectory(dir=place()) as folder:
        report, files = Path(folder) / "tests.xml", Path(folder) / "files"
        steps = [*BEFORE, ("tests", [*PYTEST, f"--basetemp={files}", *arguments, f"--junitxml={report}"])]
        for name, (program, *rest) in steps:
            started = time.monotonic()
            status = subprocess.run([BIN / program, *rest], env={**os.environ, **ENVIRONMENT}).returncode
            lines.append(f"{name:<12}{time.monotonic() - started:>8.1f} s")
            if status:
                break
        lines += of_tests(report) if report.exists() else []
    print("\nHow long each tier took (seconds of tests are summed over the workers):", *lines, sep="\n  ")
    print(f"  {'all':<12}{time.monotonic() - begun:>8.1f} s{f', {name} failed' if status else ''}")
    return status


def of_tests(report: Path) -> list[str]:
    """One line for each folder of tests: the seconds of its tests and their number."""
    seconds: dict[str, list[float]] = {}
    for case in ElementTree.parse(report).iter("testcase"):
        tier = case.get("classname", "").removeprefix("tests.").partition(".")[0]
        seconds.setdefault(tier, []).append(float(case.get("time", 0)))
    return [f"  {tier:<10}{sum(each):>8.1f} s in {len(each)} tests" for tier, each in sorted(seconds.items())]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
