"""What the service needs for models of usual sizes: memory, and tokens a second of processor time, under load."""

import os
import re
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from urllib.request import urlopen

import torch

from atento.base.errors import AtentoError, CapabilityError, UsageError, nearest
from benchmarks.processes import about, memory_mib
from benchmarks.serving import WORKLOADS, Workload
from benchmarks.serving_load import Started, load, running
from benchmarks.serving_models import texts_for, tiny, write_served
from benchmarks.serving_sides import Server, Setting, ours

SIZED = {  # workloads of `atento bench serving`, and the precisions of our server
    "embed-minilm": ("float32", "int8"),
    "embed-bert": ("float32", "int8"),
    "classify-bert": ("float32", "int8"),
    "translate-greedy": ("float32",),
    "translate-beam-4": ("float32",),
    "generate-gpt2": ("float32", "int8"),
}
_CLIENTS = 16
_WARM_UP_SECONDS = 2.0
_DEADLINE = 600  # seconds of a request, because the machine may be busy
_PAUSE = 0.02  # seconds between two looks at the memory
_LATE_SECONDS = 2.5  # the counts of the service are at most so late: it asks its workers every second
_PROCESSES = Path("/proc")


def measure_sizing(
    seconds: float, *, workloads: Sequence[str] | None = None, size: str | None = None, clients: int = _CLIENTS
) -> Iterator[dict[str, object]]:
    """Yield, for each model, precision and number of threads (1, and that of this process), what the service needs.

    Models have random weights. Each client sends its next request when it has the answer to the last one. The clients
    run in this process on the same cores; the processor time of the service hardly depends on what else runs.

    Args:
        seconds: of load for each row.
        workloads: names in `SIZED`; None: all.
        size: "tiny": small networks, to try the command.
        clients: how many there are.

    Raises:
        UsageError: no such workload. CapabilityError: this system has no /proc. AtentoError: the service does not
            start, or a request fails.
    """
    names = list(SIZED) if workloads is None else workloads
    for name in names:
        if name not in SIZED:
            raise UsageError(f"unknown workload {name!r}{nearest(name, list(SIZED))}")
    if not (_PROCESSES / "self" / "stat").exists():
        raise CapabilityError("sizing reads the memory and the processor time of processes from /proc, as Linux has it")
    yield about("sizing", size or "full", ("fastapi", "uvicorn"))
    for name in names:
        work = WORKLOADS[name]
        work = replace(work, network=tiny(work.network) if size == "tiny" else work.network)
        with tempfile.TemporaryDirectory() as folder:
            write_served(Path(folder) / "model", work.network, work.verb)
            for precision in SIZED[name]:
                for threads in dict.fromkeys((1, torch.get_num_threads())):
                    setting = Setting(Path(folder) / "model", work.verb, work.new_tokens, work.beam, threads)
                    row = {"bench": "sizing", "workload": name, "precision": precision, "threads": threads}
                    server = ours(setting, precision)
                    patient = replace(server, command=[*server.command, "--deadline", str(_DEADLINE)])
                    yield row | _needed(patient, work, clients, seconds)


def _needed(server: Server, work: Workload, clients: int, seconds: float) -> dict[str, float]:
    """Start the service and load it; its numbers."""
    requests = [server.request(text) for text in texts_for(work.network, work.words)]
    with running(server) as started:
        processes = {"worker": _worker_of(started.process), "http": started.process}
        loaded = _memory(processes)
        load(started.port, requests, clients, min(_WARM_UP_SECONDS, seconds))
        tokens, used = _tokens(started, work), _processor_seconds(processes)
        with _peak(processes) as peak:
            seen = load(started.port, requests, clients, seconds)
        used = {name: after - used[name] for name, after in _processor_seconds(processes).items()}
        tokens = _tokens(started, work) - tokens
        after = _memory(processes)
    if seen.failed or seen.unanswered:
        raise AtentoError(f"of the requests {seen.failed} failed and {len(seen.unanswered)} had no answer")
    row = {
        "clients": clients,
        "requests_per_second": round(seen.rate, 1),
        "tokens_per_second": round(tokens / seen.seconds),
        "tokens_per_processor_second": round(tokens / used["worker"]),
        "http_ms_per_request": round(1000 * used["http"] / len(seen.answered), 2),
    }
    for name in processes:
        row |= {f"{name}_mib_loaded": loaded[name], f"{name}_mib_peak": peak[name], f"{name}_mib_after": after[name]}
    return row


def _worker_of(process: int) -> int:
    """The worker of the service of one model: the only child of its process."""
    children = []
    for file in _PROCESSES.glob("[0-9]*/stat"):
        try:
            parent = int(_stat(int(file.parent.name))[1])
        except OSError:  # it has ended
            continue
        if parent == process:
            children.append(int(file.parent.name))
    if len(children) != 1:
        raise AtentoError(f"the service of one model must have one worker: got {len(children)}")
    return children[0]


def _stat(process: int) -> list[str]:
    """The fields of a process in /proc, from its state on; before them stands its name, which may have spaces."""
    return (_PROCESSES / str(process) / "stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()


def _processor_seconds(processes: Mapping[str, int]) -> dict[str, float]:
    """The processor time that all threads of each process have had."""
    ticks = os.sysconf("SC_CLK_TCK")
    return {name: sum(map(int, _stat(process)[11:13])) / ticks for name, process in processes.items()}


def _memory(processes: Mapping[str, int]) -> dict[str, int]:
    """The resident MiB of each process."""
    return {name: round(memory_mib("VmRSS", process) or 0) for name, process in processes.items()}


@contextmanager
def _peak(processes: Mapping[str, int]) -> Iterator[dict[str, int]]:
    """The largest resident MiB of each process, seen every 20 ms."""
    most, ended = _memory(processes), threading.Event()

    def look() -> None:
        while not ended.wait(_PAUSE):
            for name, mib in _memory(processes).items():
                most[name] = max(most[name], mib)

    watch = threading.Thread(target=look, daemon=True)
    watch.start()
    try:
        yield most
    finally:
        ended.set()
        watch.join()


def _tokens(started: Started, work: Workload) -> int:
    """The tokens that the service has written so far, or read for a model that writes nothing."""
    kind = "new" if work.new_tokens else "prompt"
    time.sleep(_LATE_SECONDS)
    with urlopen(f"http://127.0.0.1:{started.port}/metrics", timeout=10) as answer:
        page = answer.read().decode()
    lines = re.findall(rf'^atento_tokens_total{{[^}}]*kind="{kind}"[^}}]*}} (\S+)$', page, re.MULTILINE)
    return sum(int(float(number)) for number in lines)
