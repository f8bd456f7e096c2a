"""Writes the page of a GPU session from the files of `gpu_session.sh`: `gpu_page.py OUT --device cuda --minutes 25`."""

import argparse
import importlib.metadata
import importlib.util
import json
import os
import platform
import subprocess
import sys
from datetime import date
from itertools import groupby
from pathlib import Path
from typing import Any

import torch

Row = dict[str, Any]
PACKAGES = ("transformers", "sentence-transformers", "ctranslate2", "flash-attn", "triton")
HEAD = """# A session on one GPU

`tools/gpu_session.sh`{short} on {day}; rows of speed are the better of the rounds, `peak_mib` on a GPU is the memory of
tensors. Ratios above 1 mean that Atento is faster.
"""
CHOICE = """## Which steps `kind="auto"` should take

Captured graphs beside plain steps at the same precision, in tokens per second. The rule is in
`src/atento/inference/choose.py`: graphs become the choice when they are faster in every row by at least a tenth.
"""


def machine(device: str) -> list[Row]:
    """What the figures depend on."""
    found = {"date": date.today().isoformat(), "device": device}
    if device == "cuda":
        properties = torch.cuda.get_device_properties(0)
        found |= {
            "GPU": f"{properties.name}, {properties.total_memory / 2**30:.0f} GiB",
            "compute capability": f"{properties.major}.{properties.minor}",
            "driver": said("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"),
            "CUDA of torch": str(torch.version.cuda),
        }
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines() if sys.platform == "linux" else []
    name = next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), platform.machine())
    found |= {"processor": f"{name}, {os.cpu_count()} cores"}
    found |= {
        "Python": platform.python_version(),
        "torch": torch.__version__,
        "Atento": said("git", "describe", "--always"),
    }
    for package in PACKAGES:
        present = importlib.util.find_spec(package.replace("-", "_")) is not None
        found[package] = importlib.metadata.version(package) if present else "not installed"
    return [{"what": what, "value": value} for what, value in found.items()]


def said(*command: str) -> str:
    """The first line that a program prints, or that it is missing."""
    try:
        lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    except (OSError, subprocess.CalledProcessError):
        return f"unknown ({command[0]} failed)"
    return lines[0] if lines else ""


def rows_of(file: Path) -> list[Row]:
    """The rows of a part; a line that was cut when its time ended is left out."""
    rows = []
    for line in file.read_text(encoding="utf-8").splitlines():
        try:
            rows.append(json.loads(line))
        except json.JSONDecodeError:
            continue
    return [row for row in rows if isinstance(row, dict)]


def table(rows: list[Row]) -> str:
    """Rows as tables of Markdown, one for each run of rows with the same keys."""
    parts = []
    for keys, same in groupby(rows, key=lambda row: tuple(key for key in row if key != "bench")):
        lines = [f"| {' | '.join(cells)} |" for cells in (keys, ["---"] * len(keys))]
        for row in same:
            cells = [json.dumps(row[key]) if isinstance(row[key], dict | list) else str(row[key]) for key in keys]
            lines.append(f"| {' | '.join(cell.replace('|', '/').replace(chr(10), ' ') for cell in cells)} |")
        parts.append("\n".join(lines))
    return "\n\n".join(parts) or "No row was written: the log says why."


def page(folder: Path, device: str, minutes: int) -> str:
    """The whole page."""
    lines = [line.split("\t") for line in (folder / "parts.tsv").read_text(encoding="utf-8").splitlines()]
    parts = [{"part": name, "seconds": seconds, "end": end} for name, seconds, end in lines]
    measured = {row["part"]: rows_of(folder / f"{row['part']}.jsonl") for row in parts if row["part"] != "tests"}
    chosen = [
        row
        for name in ("decoding", "generation")
        for row in measured.get(name, [])
        if str(row.get("ratio_to", "")).startswith("atento plain")
    ]
    tests = (folder / "tests.txt").read_text(encoding="utf-8").strip().splitlines()
    head = HEAD.format(short=" --short" if minutes < 25 else "", day=date.today().isoformat())
    if device == "cpu":
        head += "\n**On the CPU, with tiny networks: this tries the script; its figures mean nothing.**\n"
    sections = [head, "## The machine\n", table(machine(device)), "## The parts\n", table(parts)]
    sections += ["## The tests\n", f"`pytest -m gpu`: {tests[-1] if tests else 'no output: tests.log says why'}"]
    sections += [CHOICE, table(chosen)]
    for name, rows in measured.items():
        sections += [f"## {name}\n", table(rows)]
    return "\n\n".join(section.strip() for section in sections) + "\n"


def main() -> None:
    """Write README.md to the folder of a session."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda")
    parser.add_argument("--minutes", type=int, default=25)
    given = parser.parse_args()
    (given.folder / "README.md").write_text(page(given.folder, given.device, given.minutes), encoding="utf-8")


if __name__ == "__main__":
    main()
