"""The servers that the benchmark of the service compares: how each is started, and what a request to it is."""

import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from atento_cli.convert.engines import convert_for
from benchmarks import serving_peers
from benchmarks.serving_gguf import gguf_command


@dataclass(frozen=True)
class Server:
    """A server: how it is started on a port, and the request for a text.

    Attributes:
        command: PORT stands for the port.
        path: of the requests.
        body: fields of every request.
        text_field: the field that has the text, alone or in a list.
        health: a path that answers 200 when the server is ready.
        environment: variables of its process.
    """

    command: list[str]
    path: str
    body: dict[str, Any]
    text_field: str
    health: str = "/health/ready"
    environment: dict[str, str] = field(default_factory=dict)

    def request(self, text: str) -> bytes:
        """The bytes of a request for a text."""
        value = [text] if self.text_field in ("input", "inputs") else text
        content = json.dumps(self.body | {self.text_field: value}).encode()
        head = f"POST {self.path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        return f"{head}Content-Length: {len(content)}\r\n\r\n".encode() + content


@dataclass(frozen=True)
class Setting:
    """What a server is made for: a model and what is asked of it, in an interpreter, with so many threads.

    `workers` are processes of Atento's, which share the threads.
    """

    folder: Path
    verb: str
    new_tokens: int
    beam: int
    threads: int
    python: str = sys.executable
    workers: int = 1

    def beside(self, name: str) -> Path:
        """A folder for the same model in the layout of an engine."""
        return self.folder.with_name(f"{self.folder.name}-{name}")


@dataclass(frozen=True)
class Peer:
    """A server of other libraries.

    Attributes:
        name: as the rows of the benchmark have it.
        packages: what its interpreter must have.
        install: how they are installed.
        make: the server in a setting; writes the model in another layout if it needs one.
        eight_bits: whether its weights have 8 bits.
    """

    name: str
    packages: tuple[str, ...]
    install: str
    make: Callable[[Setting], Server]
    eight_bits: bool = False


def ours(setting: Setting, precision: str) -> Server:
    """`atento serve` at a precision."""
    command = [setting.python, "-m", "atento_cli.start", "serve", f"m={setting.folder}", "--port", "PORT"]
    command += ["--precision", precision, "--threads", str(setting.threads), "--quiet"]
    command += ["--workers", str(min(setting.workers, setting.threads))]
    if setting.verb == "embed":
        return Server(command, "/v1/embeddings", {"model": "m"}, "input")
    if setting.verb == "generate":
        options = {"model": "m", "max_tokens": setting.new_tokens, "temperature": 0}
        return Server(command, "/v1/completions", options, "prompt")
    parameters = {"max_new_tokens": setting.new_tokens, "num_beams": setting.beam, "do_sample": False}
    options = {"parameters": parameters} if setting.verb == "translate" else {}
    return Server(command, "/models/m", options, "inputs")


def _around(setting: Setting, kind: str, folder: Path, precision: str = "float32") -> Server:
    """A server of `serving_peers`."""
    command = [setting.python, "-P", str(Path(serving_peers.__file__)), kind, str(folder), "--port", "PORT"]
    command += ["--threads", str(setting.threads), "--precision", precision]
    command += ["--beam", str(setting.beam), "--new-tokens", str(setting.new_tokens)]
    return Server(command, "/", {}, "inputs", environment=_environment(setting))


def _environment(setting: Setting) -> dict[str, str]:
    return {
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": str(setting.threads),
        "TOKENIZERS_PARALLELISM": "false",
        "INFINITY_ANONYMOUS_USAGE_STATS": "0",
    }


def _fast_api(library: str, kind: str) -> Peer:
    packages = (library, "fastapi", "uvicorn")
    name = library.replace("_", "-")
    return Peer(f"FastAPI and {name}", packages, name, lambda setting: _around(setting, kind, setting.folder))


def _ctranslate2(verb: str, precision: str) -> Peer:
    def make(setting: Setting) -> Server:
        folder = setting.beside(f"ctranslate2-{precision}")
        if not folder.exists():
            convert_for(setting.folder, folder, "ctranslate2", precision=precision, check=False)
        return _around(setting, f"ctranslate2-{verb}", folder, precision)

    packages = ("ctranslate2", "tokenizers", "fastapi", "uvicorn")
    return Peer(f"FastAPI and CTranslate2 {precision}", packages, "ctranslate2", make, precision == "int8")


def _transformers_serve(*, continuous: bool) -> Peer:
    def make(setting: Setting) -> Server:
        command = [setting.python, "-m", "transformers.cli.transformers", "serve", str(setting.folder)]
        command += ["--port", "PORT", "--host", "127.0.0.1", "--device", "cpu", "--log-level", "error"]
        command += ["--continuous-batching"] if continuous else []
        config = json.loads((setting.folder / "config.json").read_text(encoding="utf-8"))
        options = {
            "max_new_tokens": setting.new_tokens,
            "do_sample": False,
            "eos_token_id": config["eos_token_id"],
            "pad_token_id": config["eos_token_id"],
        }
        body = {"model": str(setting.folder), "generation_config": json.dumps(options)}
        return Server(command, "/v1/completions", body, "prompt", "/health", _environment(setting))

    name = "transformers serve" + (", continuous batching" if continuous else "")
    packages = ("transformers", "accelerate", "openai", "fastapi", "uvicorn")
    return Peer(name, packages, "transformers[serving]", make)


def _infinity(path: str) -> Peer:
    def make(setting: Setting) -> Server:
        command = [setting.python, "-c", "from infinity_emb.cli import cli; cli()", "v2", "--port", "PORT"]
        command += ["--model-id", str(setting.folder), "--host", "127.0.0.1", "--device", "cpu", "--engine", "torch"]
        command += ["--dtype", "float32", "--served-model-name", "m", "--log-level", "error"]
        return Server(command, path, {"model": "m"}, "input", "/health", _environment(setting))

    return Peer("Infinity", ("infinity_emb",), "infinity-emb[server,torch]", make)


def _llama() -> Peer:
    def make(setting: Setting) -> Server:
        folder = setting.beside("gguf")
        if not folder.exists():
            subprocess.run(gguf_command(setting.python, setting.folder, folder), check=True)
        return _around(setting, "llama", folder, "q8_0")

    packages = ("llama_cpp", "gguf", "safetensors", "tokenizers", "fastapi", "uvicorn")
    return Peer("FastAPI and llama.cpp Q8_0", packages, "llama-cpp-python gguf", make, eight_bits=True)


PEERS: dict[str, tuple[Peer, ...]] = {
    "embed": (_fast_api("sentence_transformers", "sentence-transformers"), _infinity("/embeddings")),
    "classify": (_fast_api("transformers", "classify"), _infinity("/classify")),
    "translate": (
        _fast_api("transformers", "translate"),
        _ctranslate2("translate", "float32"),
        _ctranslate2("translate", "int8"),
    ),
    "generate": (
        _fast_api("transformers", "generate"),
        _transformers_serve(continuous=False),
        _transformers_serve(continuous=True),
        _ctranslate2("generate", "float32"),
        _ctranslate2("generate", "int8"),
        _llama(),
    ),
}


def interpreter_with(packages: Sequence[str], pythons: Sequence[str]) -> str | None:
    """The first interpreter that has all packages; None: none has."""
    program = "import sys; from importlib.util import find_spec; sys.exit(not all(map(find_spec, sys.argv[1:])))"
    for python in pythons:
        if subprocess.run([python, "-P", "-c", program, *packages], check=False).returncode == 0:
            return python
    return None
