"""What the tests of whole runs share: a fork server for command lines, small data, and tiny recipes."""

import contextlib
import ctypes
import functools
import inspect
import json
import os
import shlex
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Any

import pytest

import atento
import forkserver
from atento_world import write
from forkserver import Module, modules_start_by

SET_CHILD_SUBREAPER = 36  # of `prctl`
CHROMIUM = Path("/usr/bin/chromium")
SWITCHES = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]
MEMORY = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
ENVIRONMENT = {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false", "COLUMNS": "200", "TERM": "xterm"}

RECIPE = """
task: translation
data:
  train: {file: train.tsv, source: 0, target: 1}
  valid: {file: valid.tsv, source: 0, target: 1}
tokenizer: {kind: bpe, vocab_size: 360}
network: {d_model: 16, d_ff: 32, n_heads: 2, n_layers: 1, norm: pre, dropout: 0.1}
training: {steps: 24, batch_tokens: 120, warmup: 6, learning_rate: 5e-3, precision: float32, validate_every: 8,
           checkpoint_every: 4, log_every: 4, keep: 3, baseline: false}
decoding: {beam: 1, max_new_tokens: 6}
metrics: [chrf]
"""


TUNE = """
task: translation
data: {train: {file: test.tsv, source: 0, target: 1}, valid: {file: valid.tsv, source: 0, target: 1}}
init: {model: model}
network: {dropout: 0.2}
training: {steps: 6, batch_tokens: 60, warmup: 2, precision: float32, validate_every: 3, checkpoint_every: 2,
           baseline: false}
decoding: {beam: 1, max_new_tokens: 4}
metrics: [chrf]
"""


@dataclass(frozen=True)
class Done:
    """How a command ended: its exit status (negative: the signal that ended it) and what it wrote."""

    status: int
    stdout: str
    stderr: str


@dataclass(frozen=True)
class Running:
    """A command at work; kill it by `pid`."""

    pid: int
    server: "ForkServer"
    stdout: Path
    stderr: Path

    def status(self, seconds: float = 0.0) -> int | None:
        """Its exit status, None while it runs; may be asked for once it has ended one single time."""
        found: int | None = self.server.ask({"wait": self.pid, "seconds": seconds})["status"]
        return found

    def end(self, seconds: float = 60.0) -> Done:
        status = self.status(seconds)
        if status is None:
            os.kill(self.pid, 9)
            self.status(10.0)
            raise AssertionError(f"still running after {seconds} s: {self.stderr.read_text(encoding='utf-8')}")
        return self.told(status)

    def told(self, status: int) -> Done:
        texts = [
            path.read_bytes().decode("utf-8", "replace") if path.is_file() else ""
            for path in (self.stdout, self.stderr)
        ]
        return Done(status, *texts)


class ForkServer:
    """`atento ARGUMENTS` in a process of its own that need not import torch: some 20 ms instead of seconds."""

    def __init__(self, scratch: Path) -> None:
        self.scratch, self.count, self.lock = scratch, 0, Lock()
        self.files, theirs = socket.socketpair()
        requests, answers = os.pipe(), os.pipe()
        environment = {**os.environ, **ENVIRONMENT}
        self.process: subprocess.Popen[bytes] | None = None
        if forkserver.ANCESTOR is not None:
            given = [requests[0], answers[1], theirs.fileno()]
            socket.send_fds(forkserver.ANCESTOR, [json.dumps(environment).encode()], given)
        else:
            words = [sys.executable, forkserver.__file__, str(theirs.fileno())]
            files = {"stdin": requests[0], "stdout": answers[1], "pass_fds": [theirs.fileno()]}
            self.process = subprocess.Popen(words, env=environment, **files)
        for number in (requests[0], answers[1], theirs.detach()):
            os.close(number)
        self.requests, self.answers = os.fdopen(requests[1], "w"), os.fdopen(answers[0])
        assert json.loads(self.answers.readline()) == {"ready": True}

    def ask(self, request: Mapping[str, Any]) -> dict[str, Any]:
        with self.lock:
            self.requests.write(json.dumps(request) + "\n")
            self.requests.flush()
            answer: dict[str, Any] = json.loads(self.answers.readline())
        return answer

    def start(
        self,
        *argv: object,
        cwd: Path,
        stdin: str | bytes | Path = b"",
        stdout: Path | None = None,
        stderr: Path | None = None,
        env: Mapping[str, str] | None = None,
        record: Path | None = None,
        fault: str | None = None,
        test: str | None = None,
        program: str | None = None,
        lasting: bool = False,
        **details: Any,
    ) -> Running:
        """Start a command, or a function of a test. `record` gets every training batch.

        `fault`: a name of `forkserver.FAULTS`. `test`: module:function, with `details` as its arguments. `program`:
        what runs instead, as `python -c` would. `lasting`: it is a service, which may run for long.
        """
        self.count += 1
        place = self.scratch / str(self.count)
        place.mkdir()
        source = stdin if isinstance(stdin, Path) else place / "stdin"
        if not isinstance(stdin, Path):
            source.write_bytes(stdin.encode("utf-8") if isinstance(stdin, str) else stdin)
        out, err = stdout or place / "stdout", stderr or place / "stderr"
        for path in (out, err):
            path.touch()
        request = {"argv": [*map(str, argv)], "cwd": str(cwd), "stdin": str(source), "stdout": str(out)}
        request |= {"stderr": str(err), "env": dict(env or {}), "record": record and str(record), "fault": fault}
        request |= {"test": test, "program": program, "lasting": lasting, "details": details}
        return Running(self.ask(request)["pid"], self, out, err)

    def become(self, module: Module) -> int:
        """Start a module of ours as a child of this process."""
        files = [number if file == -1 else file for number, file in enumerate(module.files)]
        request = {"words": module.words, "folder": module.folder or str(Path.cwd()), "session": module.session}
        given = dict(os.environ) if module.environment is None else module.environment
        request |= {"environment": given, "lasting": True}
        libc = ctypes.CDLL(None)
        libc.prctl(SET_CHILD_SUBREAPER, 1)
        try:
            socket.send_fds(self.files, [b"."], files)
            return int(self.ask(request)["pid"])
        finally:
            libc.prctl(SET_CHILD_SUBREAPER, 0)

    def run(self, *argv: object, cwd: Path, **options: Any) -> Done:
        return self.start(*argv, cwd=cwd, **options).end()

    def good(self, *argv: object, cwd: Path, **options: Any) -> Done:
        done = self.run(*argv, cwd=cwd, **options)
        assert done.status == 0, done.stderr
        return done

    def close(self) -> None:
        self.requests.close()
        assert self.answers.read() == ""
        self.files.close()
        if self.process is not None:
            self.process.wait(timeout=30)


def in_small_process(test: Callable[..., None]) -> Callable[..., None]:
    """Run a test that forks often in a child of the fork server, which is smaller than the process of all tests.

    Its arguments are folders and numbers.
    """
    signature = inspect.signature(test)

    @functools.wraps(test)
    def through(server: ForkServer, scratch: Path, **arguments: Any) -> None:
        given = {name: str(value) if isinstance(value, Path) else value for name, value in arguments.items()}
        done = server.start(cwd=scratch, test=f"{test.__module__}:{test.__name__}", **given).end(500.0)
        assert done.status == 0, done.stderr

    first = [*inspect.signature(through, follow_wrapped=False).parameters.values()][:2]
    through.__signature__ = signature.replace(parameters=[*first, *signature.parameters.values()])  # type: ignore[attr-defined]
    return through


@pytest.fixture(scope="session")
def scratch() -> Iterator[Path]:
    """A folder for the session, in memory where the machine has one: these tests sync a great many small files."""
    path = Path(tempfile.mkdtemp(prefix="atento-tests-", dir=MEMORY))
    yield path
    shutil.rmtree(path, ignore_errors=True)


@functools.cache
def fork_server() -> ForkServer:
    """The fork server of this process, which starts when a test first asks for it."""
    return ForkServer(Path(tempfile.mkdtemp(prefix="atento-commands-", dir=MEMORY)))


@pytest.fixture(scope="session")
def server() -> ForkServer:
    return fork_server()


@pytest.fixture(scope="module")
def modules_are_forked() -> Iterator[None]:
    """For the tests of a file: modules of ours that start as processes, such as workers, are forked (`forkserver`).

    Only Linux lets this process adopt them; elsewhere they start as users start them.
    """
    if sys.platform != "linux":
        yield
        return
    with modules_start_by(lambda module: fork_server().become(module)):
        yield


@pytest.fixture(scope="session", autouse=True)
def no_fork_server_stays() -> Iterator[None]:
    """Behind all other fixtures, which may have started services."""
    yield
    if fork_server.cache_info().currsize:
        fork_server().close()
        shutil.rmtree(fork_server().scratch, ignore_errors=True)


def write_tsv(path: Path, split: str, count: int, seed: int = 1) -> None:
    """Sentence pairs of the micro-world as a file."""
    pairs = write(split, count, seed)
    path.write_text("".join(f"{pair.source}\t{pair.target}\n" for pair in pairs), encoding="utf-8", newline="\n")


def lines_of(path: Path, side: int) -> list[str]:
    return [line.split("\t")[side] for line in path.read_text(encoding="utf-8").splitlines()]


@pytest.fixture(scope="session")
def data(scratch: Path) -> Path:
    """A folder with train.tsv, valid.tsv, test.tsv, and tiny.yaml that names the first two."""
    folder = scratch / "data"
    folder.mkdir()
    for name, split, count in (("train", "train", 60), ("valid", "valid", 6), ("test", "combinations", 6)):
        write_tsv(folder / f"{name}.tsv", split, count)
    (folder / "tiny.yaml").write_text(RECIPE, encoding="utf-8", newline="\n")
    return folder


@pytest.fixture
def place(scratch: Path, data: Path) -> Iterator[Path]:
    """A folder of the test's own with a copy of the data."""
    path = Path(tempfile.mkdtemp(dir=scratch))
    shutil.copytree(data, path, dirs_exist_ok=True)
    yield path
    shutil.rmtree(path, ignore_errors=True)


@pytest.fixture(scope="session")
def trained(server: ForkServer, data: Path, scratch: Path) -> Path:
    """A tiny run that has ended, for commands that use a model."""
    server.good("train", "tiny.yaml", "--out", scratch / "trained", "--threads", "1", cwd=data)
    return scratch / "trained"


@pytest.fixture
def here(place: Path, trained: Path) -> Path:
    """A copy of the data, with that run in it as `run`."""
    (place / "run").symlink_to(trained)
    return place


@pytest.fixture
def tuning(here: Path) -> Path:
    """A recipe beside the model that it starts from: one layer that reads and one that writes."""
    (here / "tune.yaml").write_text(TUNE, encoding="utf-8", newline="\n")
    atento.load(here / "run").save(here / "model")
    return here


def refused(done: Done, *said: str, status: int = 2) -> None:
    """One clear sentence on standard error, nothing on standard output, the right status, no traceback."""
    assert done.status == status, done
    assert done.stdout == "" and "Traceback" not in done.stderr and "bug in Atento" not in done.stderr
    assert done.stderr.splitlines()[-1].startswith("error: ") and done.stderr.count("error: ") == 1
    for text in said:
        assert text in done.stderr, done.stderr


def each_refused(server: ForkServer, cwd: Path, refusals: Mapping[str, str], **options: Any) -> None:
    """Each of these command lines is refused with what stands behind it."""
    for line, said in refusals.items():
        refused(server.run(*shlex.split(line), cwd=cwd, **options), said)


class Chromium:
    """A browser in which contexts of equal options are one, whose blank page stays: a page then costs a third.

    Each page is new, with a session storage of its own; what they share is the cache and the process that draws. Those
    in `kept` stay open for other tests.
    """

    def __init__(self, opened: Any) -> None:
        self.opened, self.contexts, self.kept = opened, dict[str, Any](), dict[str, Any]()

    def new_page(self, **options: Any) -> Any:
        context = self.contexts.get(repr(sorted(options.items())))
        if context is None:
            context = self.contexts[repr(sorted(options.items()))] = self.opened.new_context(**options)
            context.new_page()
        return context.new_page()

    def tidy(self) -> None:
        """Close all pages but the blank ones and those that are kept."""
        for context in self.contexts.values():
            for page in context.pages[1:]:
                if page not in self.kept.values():
                    page.close()


class Watched:
    """A page in the browser, with all it asked of the network and all it complained of."""

    def __init__(self, browser: Any, address: str, width: int = 1200, height: int = 760, **options: Any) -> None:
        self.page = browser.new_page(viewport={"width": width, "height": height}, **options)
        self.requests, self.complaints = list[str](), list[str]()
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.on("console", lambda said: self.complaints.append(said.text))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.goto(address)


OPEN = contextlib.ExitStack()  # Chromium and what drives it


@functools.cache
def running_chromium() -> Chromium:
    playwright = pytest.importorskip(
        "playwright.sync_api", reason="needs Chromium and playwright: playwright is missing"
    )
    if not CHROMIUM.exists():
        pytest.skip(f"needs Chromium at {CHROMIUM}")
    started = OPEN.enter_context(playwright.sync_playwright())
    opened = started.chromium.launch(executable_path=str(CHROMIUM), args=SWITCHES)
    OPEN.callback(opened.close)
    return Chromium(opened)


IN_BROWSER = set[Path]()  # files whose tests open pages


@pytest.hookimpl(tryfirst=True)  # before pytest selects by marks
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests of this folder. Files whose tests open pages come together: one Chromium for all of them."""
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent):
            item.add_marker("integration")
    IN_BROWSER.update(item.path for item in items if "browser" in getattr(item, "fixturenames", ()))
    items.sort(key=lambda item: item.path not in IN_BROWSER)


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """Close Chromium behind the tests of such files: its driver keeps a loop of asyncio."""
    if item.path in IN_BROWSER and (nextitem is None or nextitem.path not in IN_BROWSER):
        running_chromium.cache_clear()
        OPEN.close()


@pytest.fixture(scope="module")
def chromium() -> Chromium:
    return running_chromium()


@pytest.fixture
def browser(chromium: Chromium, request: pytest.FixtureRequest) -> Iterator[Chromium]:
    """Chromium, for pages as a reader sees them; they are closed behind the test, all of them if it failed."""
    failed = request.session.testsfailed
    yield chromium
    if request.session.testsfailed > failed:
        chromium.kept.clear()
    chromium.tidy()


@pytest.fixture
def in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """For tests that train in their own folder with threads of their own."""
    import torch

    monkeypatch.chdir(tmp_path)
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A small BERT, RoBERTa and GPT-2 as they are published."""
    from released_folders import write_released

    folder = tmp_path_factory.mktemp("released")
    return {name: write_released(name, folder / name) for name in ("bert", "roberta", "gpt2")}


@pytest.fixture(scope="session")
def studio(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Studio over small models of every kind of attention; the folders of the models in `folders`."""
    pytest.importorskip("fastapi", reason="the extra serve is not installed")
    from studio_page import shared_studio

    with shared_studio(tmp_path_factory.mktemp("studio")) as running:
        yield running


@pytest.fixture(scope="module")
def small() -> Iterator[Any]:
    """Studio as it opens with nothing given."""
    from http_service import served

    with served([], command="studio") as running:
        yield running


@pytest.fixture(scope="session")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A service with small models, for tests that leave it as it was; the folders of the models in `folders`."""
    pytest.importorskip("fastapi", reason="the extra serve is not installed")
    from http_service import shared_service

    with shared_service(tmp_path_factory.mktemp("served")) as running:
        yield running


@pytest.fixture(scope="session")
def lm(service: Any) -> Any:
    """Its language model, in this process."""
    return atento.load(service.folders["lm"], device="cpu")


@pytest.fixture(scope="session")
def client(service: Any) -> Any:
    import openai

    return openai.OpenAI(base_url=f"{service.url}/v1", api_key="any", max_retries=0, timeout=60)
