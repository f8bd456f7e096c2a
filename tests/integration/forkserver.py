"""A process that has imported torch once and forks a command line a request, some with a fault planted in it.

Requests and answers are one JSON object a line: {"argv": ..., "cwd": ...} -> {"pid": ...}; {"wait": pid, "seconds": s}
-> {"status": ...}, negative for a signal, None while it runs. With {"test": "module:name"} the child runs that
function of a test (`conftest.in_small_process`). The server itself uses no thread, so forking it is safe.

Where a command starts an interpreter for a module of ours, such as a worker of the service, that is a fork too; also
where a test does, in files that use `conftest.modules_are_forked`: {"words": ...} -> {"pid": ...}.
"""

import asyncio
import contextlib
import ctypes
import faulthandler
import gc
import hashlib
import importlib.util
import itertools
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import replica_faults
from replica_faults import instead_of

FAILED_TO_START = 99
LARGE, COLLAPSE = 2 << 20, 25  # bytes of a large page, and what `madvise` is asked for
# What commands import that translate, draw or explain themselves: 7, 250 and 20 ms. What reads the environment when it
# is imported, such as `huggingface_hub`, may not be here.
LATE = ("atento.evaluation", "atento.model", "atento.runs.train", "atento.text.documents", "rich._emoji_codes")
LATE += ("matplotlib.figure", "matplotlib.backends.backend_agg")
# Modules that have a process of their own, but for that of chat templates, whose memory has a limit.
FORKED = ("atento_serve.engine.", "atento_serve.studio.", "atento_cli.search.", "atento_cli.convert.")
FORKED += ("atento_cli.block_worker",)
SERVICE = ("atento_serve.server", "atento_serve.engine.worker", "atento_serve.studio.screen_table")


ANCESTOR: socket.socket | None = None  # to a process that forks fork servers


def main() -> None:
    imports()
    begin(int(sys.argv[1]))


def imports() -> None:
    import numpy.ma  # which the first interval of a score imports
    import pydantic.dataclasses
    import sacrebleu
    import safetensors.torch
    import torch._dynamo  # which making the first optimiser imports
    import torch.profiler._cupti_monitor  # as do its first steps
    import typer.rich_utils  # for help

    import atento_cli.demo
    import atento_cli.main
    from atento.config.reading.loading import load_recipe

    for name in LATE:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    with contextlib.suppress(ImportError):  # which every run of labelled data imports at its end
        import sklearn.feature_extraction.text
        import sklearn.linear_model
        import sklearn.multiclass
        import sklearn.preprocessing

        assert sklearn
    typer.main.get_command(atento_cli.main.application())  # imports the module of every command
    pydantic.TypeAdapter(int)  # the first one looks through all packages for plugins of pydantic
    for name in ("micro-world-en-pt", "micro-world-mixture"):  # the types of the keys, which are kept
        load_recipe(name, environment={})
    assert torch.get_num_threads() == 1 and numpy.ma and pydantic.dataclasses and sacrebleu and safetensors


def begin(number: int, many: bool = False) -> None:
    """Say that it is ready, and answer; `many`: so often that what it holds is put in order first."""
    warnings.filterwarnings("ignore", ".*multi-threaded.*fork", DeprecationWarning)  # Python 3.12: of services
    gc.collect()
    gc.freeze()  # a collection in a child would copy every page of what is imported
    if many:
        in_large_pages()
    with socket.socket(fileno=number) as files, modules_start_by(forked):
        answer({"ready": True})
        serve(files)


def begin_ancestor() -> int:
    """Fork a process that forks fork servers, as long as processes have `ANCESTOR`; return the number of that file.

    A message holds an environment, and comes with the standard input and output of the server and its socket.
    """
    global ANCESTOR
    ANCESTOR, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    if os.fork():
        theirs.close()
        return ANCESTOR.fileno()
    ANCESTOR.close()
    gc.collect()
    gc.freeze()  # or the collection of each server would write to every page
    in_large_pages()
    while True:
        content, files, _, _ = socket.recv_fds(theirs, 1 << 20, 3)
        if not content:
            os._exit(0)
        if os.fork() == 0:
            theirs.close()
            os.dup2(files[0], 0)
            os.dup2(files[1], 1)
            os.environ.clear()
            os.environ.update(json.loads(content))
            open_streams()
            os._exit(outcome(partial(begin, files[2], many=True)))
        for number in files:
            os.close(number)


def in_large_pages() -> None:
    """Put what is in memory into pages of 2 MiB: a fork copies their table, and its end takes it apart.

    Both together take 5 ms in place of 16; what a kernel cannot do stays as it is.
    """
    advise = ctypes.CDLL(None).madvise
    advise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    for line in Path("/proc/self/maps").read_text(encoding="utf-8").splitlines():
        addresses, rights, _, _, _, *name = line.split()
        if rights == "rw-p" and name in ([], ["[heap]"]):
            first, last = (int(address, 16) for address in addresses.split("-"))
            first, last = -(-first // LARGE) * LARGE, last // LARGE * LARGE
            advise(first, max(0, last - first), COLLAPSE)


def serve(files: socket.socket) -> None:
    """Answer requests; the standard files of a module come through the socket."""
    for line in sys.stdin:
        request = json.loads(line)
        if "wait" in request:
            answer({"status": ended(request["wait"], request["seconds"])})
            continue
        if request["lasting"] and SERVICE[0] not in sys.modules:
            for name in SERVICE:
                importlib.import_module(name)
            gc.collect()
            gc.freeze()
        if "words" in request:
            _, opened, _, _ = socket.recv_fds(files, 1, 3)
            names = ("words", "folder", "environment")
            module = Module(*(request[name] for name in names), (opened[0], opened[1], opened[2]), request["session"])
            answer({"pid": orphaned(module)})
            for number in opened:
                os.close(number)
            continue
        pid = os.fork()
        if pid == 0:
            os._exit(run(request))
        answer({"pid": pid})


def answer(content: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(content) + "\n")
    sys.stdout.flush()


def ended(pid: int, seconds: float) -> int | None:
    """How a child ended, or None if it still runs after that long."""
    if not hasattr(os, "pidfd_open"):  # not on Linux
        until = time.monotonic() + seconds
        while not (found := os.waitpid(pid, os.WNOHANG))[0]:
            if time.monotonic() > until:
                return None
            time.sleep(0.01)
        return os.waitstatus_to_exitcode(found[1])
    watched = os.pidfd_open(pid)
    try:
        if not select.select([watched], [], [], seconds)[0]:
            return None
    finally:
        os.close(watched)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def run(request: dict[str, Any]) -> int:
    """In the child: become the command, and say how a process that ran it would have ended."""
    try:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        os.chdir(request["cwd"])
        os.environ.update(request["env"])
        flags = (os.O_RDONLY, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        for number, (name, flag) in enumerate(zip(("stdin", "stdout", "stderr"), flags)):
            os.dup2(os.open(request[name], flag | os.O_NOCTTY, 0o666), number)
        open_streams()
        if not request["lasting"]:
            faulthandler.dump_traceback_later(50, file=sys.stderr)  # what hangs says where
        sys.argv = ["atento", *request["argv"]]
        if request["record"]:
            record(request["record"])
        if request["fault"]:
            FAULTS[request["fault"]](**request["details"])
        if request["test"]:
            module, _, name = request["test"].partition(":")
            sys.path.append(str(Path(__file__).parents[1] / "parity"))  # as `pythonpath` of pytest has it
            arguments = {
                key: Path(value) if isinstance(value, str) else value for key, value in request["details"].items()
            }
            function = getattr(importlib.import_module(module), name)
            return outcome(lambda: getattr(function, "__wrapped__", function)(**arguments))
        if request["program"]:
            return outcome(lambda: exec(request["program"], {"__name__": "__main__"}))
        from atento_cli.main import main as command

        return outcome(command)
    except BaseException:
        traceback.print_exc()
    return FAILED_TO_START


def open_streams() -> None:
    """The standard streams of a process whose files 0, 1 and 2 have been replaced."""
    sys.stdin = os.fdopen(0, encoding="utf-8", closefd=False)
    sys.stdout = os.fdopen(1, "w", encoding="utf-8", closefd=False)
    sys.stderr = os.fdopen(2, "w", encoding="utf-8", errors="backslashreplace", buffering=1, closefd=False)


def outcome(work: Callable[[], object]) -> int:
    """The status with which an interpreter that does this would end."""
    status = 1
    try:
        work()
        status = 0
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except OSError:
        status = 120  # as the interpreter itself would end
    return status


@dataclass(frozen=True)
class Module:
    """`python -m WORDS` that is to start: with what folder, environment and standard files (None, -1: inherited)."""

    words: list[str]
    folder: str | None
    environment: dict[str, str] | None
    files: tuple[int, int, int]
    session: bool

    @classmethod
    def of(cls, arguments: Any, *rest: Any) -> "Module | None":
        """From the arguments of `_posixsubprocess.fork_exec`; None: another program, or a module that is not forked."""
        words = [os.fsdecode(word) for word in arguments]
        if words[:2] != [sys.executable, "-m"] or not words[2].startswith(FORKED) or "NO_FORKED_MODULES" in os.environ:
            return None
        folder, environment, files, session = rest[3], rest[4], (rest[5], rest[8], rest[10]), rest[14]
        pairs = None if environment is None else dict(os.fsdecode(pair).split("=", 1) for pair in environment)
        return cls(words[2:], None if folder is None else os.fsdecode(folder), pairs, files, bool(session))


@contextlib.contextmanager
def modules_start_by(start: Callable[[Module], int]) -> Iterator[None]:
    """Meanwhile `python -m` with a module of `FORKED` starts by that function, which returns the number of a child."""
    real = subprocess._fork_exec  # type: ignore[attr-defined]

    def fork_exec(arguments: Any, *rest: Any) -> int:
        module = Module.of(arguments, *rest)
        return int(real(arguments, *rest)) if module is None else start(module)

    subprocess._fork_exec = fork_exec  # type: ignore[attr-defined]
    try:
        yield
    finally:
        subprocess._fork_exec = real  # type: ignore[attr-defined]


def forked(module: Module) -> int:
    """A fork of this process, which has imported most of it."""
    pid = os.fork()
    if pid == 0:
        gc.freeze()  # or what is collected here closes files whose numbers others have by then
        os._exit(outcome(lambda: become(module)))
    return pid


def orphaned(module: Module) -> int:
    """A fork whose parent has ended, so that the process that asks, which adopts orphans meanwhile, is its parent."""
    reads, writes = os.pipe()
    between = os.fork()
    if between == 0:
        os.write(writes, str(forked(module)).encode())
        os._exit(0)
    os.close(writes)
    os.waitpid(between, 0)
    with os.fdopen(reads) as answers:
        return int(answers.read())


def become(module: Module) -> None:
    signal.set_wakeup_fd(-1)
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    asyncio._set_running_loop(None)  # of the process that asked
    if module.session:
        os.setsid()
    for number, file in enumerate(module.files):
        if file != -1:
            os.dup2(file, number)
    os.closerange(3, 1 << 16)
    if module.folder is not None:
        os.chdir(module.folder)
    if module.environment is not None:
        os.environ.clear()
        os.environ.update(module.environment)
    open_streams()
    with open("/proc/self/comm", "w") as name:  # noqa: PTH123  for `pgrep`
        name.write(module.words[0].rpartition(".")[2])
    spec = importlib.util.find_spec(module.words[0])
    assert spec is not None and spec.loader is not None
    sys.argv, main = [str(spec.origin), *module.words[1:]], ModuleType("__main__")
    sys.modules["__main__"] = main
    exec(spec.loader.get_code(module.words[0]), vars(main))  # type: ignore[attr-defined]


def record(path: str) -> None:
    """Write down every batch that training takes, as it is taken: the update's number and what was in it."""
    from atento.training.allocator import CAPACITY

    os.environ[CAPACITY] = "1024"  # else batches are also made to choose it

    @instead_of("atento.data.batches.planning:PlannedBatches.parts")
    def parts(real: Any, batches: Any, update: int, micro_batches: int = 1, *ours: Any) -> Iterator[Any]:
        rows = [part.tolist() for part in batches.rows(update)]
        found = list(real(batches, update, micro_batches, *ours))
        digest = hashlib.sha256()
        for part in found:
            batch = part.batch
            for tensor in (batch.inputs["source_ids"], batch.inputs["target_ids"], batch.labels["vocabulary"]):
                digest.update(f"{tuple(tensor.shape)}".encode() + tensor.numpy().tobytes())
        line = json.dumps({"update": update, "rows": rows, "ids": digest.hexdigest()})
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.write(fd, line.encode() + b"\n")
        os.close(fd)
        yield from found


# Faults: the bugs that resuming is known for, and signals at a chosen place
def dropout_by_the_clock() -> None:
    instead_of("atento.training.step:Randomness")(lambda real, seed, *rest: real(time.time_ns(), *rest))


def data_from_the_start() -> None:
    """A stream that a resumed run reads from its beginning."""
    taken = itertools.count()
    place = instead_of("atento.data.batches.planning:PlannedBatches.parts")
    place(lambda real, batches, update, micro_batches=1, *ours: real(batches, next(taken), micro_batches, *ours))


def moments_forgotten() -> None:

    @instead_of("atento.training.optimizer:Optimizer.load")
    def load(real: Any, optimizer: Any, tensors: Mapping[str, Any]) -> None:
        real(optimizer, {name: value * 0 if name.endswith("exp_avg") else value for name, value in tensors.items()})


def weights_not_restored() -> None:
    """In reduced precision: the working copy still holds the first weights when the run goes on."""
    calls = itertools.count()
    place = instead_of("atento.training.step:Updater.copy_weights")
    place(lambda real, updater: real(updater) if next(calls) else None)


def interval_forgotten() -> None:
    instead_of("atento.training.loop:TrainerState.from_dict")(lambda real, data: real({**data, "interval": {}}))


def journal_not_cut() -> None:
    instead_of("atento.training.metrics_log:MetricsLog.cut")(lambda real, journal, after_step: 0)


def rate_from_the_start() -> None:
    taken = itertools.count(1)
    place = instead_of("atento.training.loop:learning_rate")
    place(lambda real, config, step, steps, **options: real(config, next(taken), steps, **options))


def told_at_once() -> None:
    """Progress is told after every batch, not every half minute."""
    import atento_cli.command_progress

    atento_cli.command_progress.EVERY = 0.0


def rate_explodes() -> None:
    """A learning rate of 1e30 from the second step on, which no recipe may ask for."""
    place = instead_of("atento.training.loop:learning_rate")
    place(lambda real, *call, **options: 1e30 if call[1] > 1 else real(*call, **options))


def slow_disk() -> None:
    """A disk that takes its time, where the tests' own folder is in memory: a kill has something to hit."""

    @instead_of("os:fsync")
    def fsync(real: Any, fd: int) -> None:
        time.sleep(0.003)
        real(fd)


def signal_at_line(module: str, function: str, count: int, number: int) -> None:
    """Deliver a signal when that function is about to run its line number `count`, counted as they are executed."""
    seen = itertools.count(1)

    def inside(frame: Any, event: str, _: object) -> Any:
        if event == "line" and next(seen) == count:
            os.kill(os.getpid(), number)
        return inside

    @instead_of(f"{module}:{function}")
    def traced(real: Any, *args: Any, **kwargs: Any) -> Any:
        sys.settrace(lambda frame, event, _: inside if frame.f_code is real.__code__ else None)
        try:
            return real(*args, **kwargs)
        finally:
            sys.settrace(None)


def signal_in_call(module: str, function: str, number: int, times: int = 1, call: int = 1) -> None:
    """Deliver a signal `times` times inside the `call`-th call of a function of ours."""
    seen = itertools.count(1)

    @instead_of(f"{module}:{function}")
    def deadly(real: Any, *args: Any, **kwargs: Any) -> Any:
        if next(seen) == call:
            for _ in range(times):
                os.kill(os.getpid(), number)
                time.sleep(0.01)
        return real(*args, **kwargs)


_ALL: list[Callable[..., None]] = [dropout_by_the_clock, data_from_the_start, moments_forgotten, weights_not_restored]
_ALL += [interval_forgotten, journal_not_cut, rate_from_the_start, rate_explodes, slow_disk, told_at_once]
FAULTS = replica_faults.FAULTS | {one.__name__: one for one in [*_ALL, signal_at_line, signal_in_call]}

if __name__ == "__main__":
    main()
