"""Times a command over a file in one process with two threads, and in two local workers: `compare_cluster.py MODEL`.

For quiet cores. Prints seconds and processor seconds of each round, the parts of a worker's time, and the ratios last.
"""

import argparse
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from atento_world import write


def timed(command: list[str], out: Path) -> tuple[float, float]:
    """Seconds, and processor seconds of a command with its children, which it has waited for."""
    before, begun = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    with out.open("wb") as file:
        subprocess.run(command, stdout=file, stderr=subprocess.DEVNULL, check=True)
    seconds, after = time.perf_counter() - begun, resource.getrusage(resource.RUSAGE_CHILDREN)
    return seconds, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
    """Run the rounds."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", help="a translation model, such as runs/demo")
    parser.add_argument("--lines", type=int, default=8192)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--cores", type=int, default=2)
    given = parser.parse_args()
    cores = sorted(os.sched_getaffinity(0))[: given.cores]
    os.sched_setaffinity(0, cores)
    atento = [sys.executable, "-m", "atento_cli.start"]
    rounds: dict[str, list[tuple[float, float]]] = {"one process": [], "cluster": [], "start of a worker": []}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        source = folder / "in.txt"
        source.write_text("".join(f"{pair.source}\n" for pair in write("train", given.lines, 9)), encoding="utf-8")
        command = [*atento, "translate", given.model, str(source), "--device", "cpu"]
        (folder / "empty.txt").touch()
        for number in range(given.rounds):
            parts = folder / f"parts-{number}"
            several = ["--cluster", "local", "--workers", str(len(cores)), "--threads", "1", "--out", str(parts)]
            empty = [*command[:5], str(folder / "empty.txt"), "--device", "cpu", "--threads", "1"]
            for who, words in (
                ("one process", [*command, "--threads", str(len(cores))]),
                ("cluster", [*command, *several]),
                ("start of a worker", empty),
            ):
                rounds[who].append(timed(words, folder / f"{who}.txt"))
            timed([*atento, "collect", str(parts)], folder / "collected.txt")
            if (folder / "collected.txt").read_bytes() != (folder / "one process.txt").read_bytes():
                print("note: some outputs differ, as sums of other threads round differently")
    for who, measured in rounds.items():
        print(who, "  ".join(f"{seconds:.2f} s ({processor:.2f} of processors)" for seconds, processor in measured))
    best = {who: min(measured) for who, measured in rounds.items()}
    work = [best["one process"][0] - best["start of a worker"][0], best["cluster"][0] - best["start of a worker"][0]]
    print(f"elapsed, one process / cluster: {best['one process'][0] / best['cluster'][0]:.2f}")
    print(f"without the start of a worker:  {work[0] / work[1]:.2f}")
    print(f"processor time:                 {best['one process'][1] / best['cluster'][1]:.2f}")


if __name__ == "__main__":
    main()
