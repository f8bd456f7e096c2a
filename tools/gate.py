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
]
# Beside the tests, in the moments that they wait for something. A test of types reads its cache, long after.
TYPES = ["mypy"]
# Work stealing keeps a file's tests on one worker until the other has none left, so that shared fixtures are made once.
# Elsewhere than on Linux, a fork of a process that has imported such libraries may not run.
WORKERS = ["python", str(Path(__file__).with_name("gate_workers.py"))] if sys.platform == "linux" else ["pytest"]
PYTEST = [*WORKERS, "-n", "2", "--dist", "worksteal", "--durations=40"]
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
        for name, command in BEFORE:
            started = time.monotonic()
            status = begin(command).wait()
            lines.append(f"{name:<12}{time.monotonic() - started:>8.1f} s")
            if status:
                break
        else:
            tests = [*PYTEST, f"--basetemp={files}", *arguments, f"--junitxml={report}"]
            name, status, took = together({"types": TYPES, "tests": tests})
            lines += [f"{one:<12}{seconds:>8.1f} s" for one, seconds in took.items()]
        lines += of_tests(report) if report.exists() else []
    print("\nHow long each tier took (seconds of tests are summed over the workers):", *lines, sep="\n  ")
    print(f"  {'all':<12}{time.monotonic() - begun:>8.1f} s{f', {name} failed' if status else ''}")
    return status


def begin(command: list[str]) -> "subprocess.Popen[bytes]":
    """Start a program of the environment."""
    return subprocess.Popen([BIN / command[0], *command[1:]], env={**os.environ, **ENVIRONMENT})


def together(steps: dict[str, list[str]]) -> tuple[str, int, dict[str, float]]:
    """Run steps beside one another; one that fails ends the others. Return its name and status, and the seconds."""
    started, took = time.monotonic(), dict[str, float]()
    running = {name: begin(command) for name, command in steps.items()}
    while running:
        for name, process in [*running.items()]:
            if (status := process.poll()) is not None:
                took[name] = time.monotonic() - started
                del running[name]
                if status:
                    for other in running.values():
                        other.terminate()
                        other.wait()
                    return name, status, took
        time.sleep(0.2)
    return "", 0, took


def of_tests(report: Path) -> list[str]:
    """One line for each folder of tests: the seconds of its tests and their number."""
    seconds: dict[str, list[float]] = {}
    for case in ElementTree.parse(report).iter("testcase"):
        tier = case.get("classname", "").removeprefix("tests.").partition(".")[0]
        seconds.setdefault(tier, []).append(float(case.get("time", 0)))
    return [f"  {tier:<10}{sum(each):>8.1f} s in {len(each)} tests" for tier, each in sorted(seconds.items())]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
