"""Runs the gate (format, lint, types, tests, some as on older processors), and says how long each tier of it took."""

import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from contextlib import nullcontext
from pathlib import Path
from xml.etree import ElementTree

BIN = Path(sys.executable).parent
CHECKED = ("src", "benchmarks", "examples", "models", "tests", "tools")
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
# What computes runs again as on processors with less, in processes of their own: PyTorch, oneDNN and MKL read these
# variables when they are loaded. AVX2 without AVX-512 is what most processors of the last ten years have.
OLDER: dict[str, dict[str, str]] = {
    "avx2": {"ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2", "MKL_ENABLE_INSTRUCTIONS": "AVX2"},
    "default": {"ATEN_CPU_CAPABILITY": "default", "ONEDNN_MAX_CPU_ISA": "SSE41", "MKL_ENABLE_INSTRUCTIONS": "SSE4_2"},
}
if platform.machine().lower() not in ("x86_64", "amd64"):
    OLDER = {}
# One setting on each core: some 80 seconds of processor time each, where two minutes are the limit.
# `tests/unit/test_gate.py` says what must be here.
NUMERICAL = (
    *("unit/test_precision.py", "unit/test_attention_kernels.py", "unit/test_attention_blocked.py"),
    *("unit/test_narrow_attention.py", "unit/test_networks_fast.py", "unit/test_networks_reading.py"),
    *("unit/test_networks_state.py", "unit/test_packed_weights.py", "unit/test_int8_fixed_scales.py"),
    *("unit/test_batch_proof.py", "unit/test_prefix_steps.py", "unit/test_decoding_exact.py"),
    *("unit/test_gradient_sum.py", "unit/test_optimizers.py", "unit/test_onnx_steps.py"),
    *("parity/test_attention.py", "parity/test_networks.py"),
    *("parity/test_decoding.py", "parity/test_regression_parity.py"),
)


def place() -> Path | None:
    """Where the files of the tests go: a folder in memory if it has 4 GiB free; None: the system's folder."""
    return MEMORY if os.access(MEMORY, os.W_OK) and shutil.disk_usage(MEMORY).free > 4 << 30 else None


def main(arguments: list[str]) -> int:
    """Stop at the first step that fails, and return its status.

    `arguments` are pytest's: a choice by marks, and perhaps others; with these nothing runs as on older processors.
    """
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
        if not status and not arguments[2:]:
            name, status, took = together({one: again(one, Path(folder), arguments) for one in OLDER}, Path(folder))
            lines += [f"{one:<12}{took[one]:>8.1f} s {of_older(one, Path(folder))}" for one in OLDER if one in took]
            if status:
                print((Path(folder) / f"{name}.log").read_text(encoding="utf-8", errors="replace"))
    print("\nHow long each tier took (seconds of tests are summed over the workers):", *lines, sep="\n  ")
    print(f"  {'all':<12}{time.monotonic() - begun:>8.1f} s{f', {name} failed' if status else ''}")
    return status


def begin(command: list[str], log: Path | None = None) -> "subprocess.Popen[bytes]":
    """Start a program of the environment; one with a log as on the processor that the log is named for."""
    variables = {**os.environ, **ENVIRONMENT, **(OLDER[log.stem] if log else {})}
    with log.open("wb") if log else nullcontext() as file:
        return subprocess.Popen([BIN / command[0], *command[1:]], env=variables, stdout=file, stderr=file)


def again(name: str, folder: Path, arguments: list[str]) -> list[str]:
    """The command of the numerical tests as on an older processor, whose report goes into a folder."""
    files = [f"tests/{file}" for file in NUMERICAL]
    return ["pytest", f"--basetemp={folder / name}", *arguments, *files, f"--junitxml={folder / name}.xml"]


def together(steps: dict[str, list[str]], logs: Path | None = None) -> tuple[str, int, dict[str, float]]:
    """Run steps beside one another; one that fails ends the others. Return its name and status, and the seconds.

    With a folder of logs each runs as on the processor that it is named for.
    """
    started, took = time.monotonic(), dict[str, float]()
    running = {name: begin(command, logs and logs / f"{name}.log") for name, command in steps.items()}
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


def of_older(name: str, folder: Path) -> str:
    """How many tests ran again, and under which variables."""
    cases = [*ElementTree.parse(folder / f"{name}.xml").iter("testcase")] if (folder / f"{name}.xml").exists() else []
    ran = sum(case.find("skipped") is None for case in cases)
    variables = " ".join(f"{key}={value}" for key, value in OLDER[name].items())
    return f"in {ran} tests again, {len(cases) - ran} skipped, with {variables}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
