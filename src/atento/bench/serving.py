"""The service under load compared with FastAPI around other libraries: requests a second and latency by clients."""

import asyncio
import importlib.util
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.request import urlopen

import numpy as np
import torch

from atento.bench.encoding import SIZES, natural_sentences
from atento.bench.encoding_sides import write_encoder
from atento.bench.labelling import write_labeller
from atento.bench.processes import about
from atento.bench.serving_peers import NEW_TOKENS
from atento.config import presets
from atento.config.network import NetworkConfig, changed
from atento.config.tasks import task_with
from atento.errors import AtentoError
from atento.model import Model
from atento.networks import build_network
from atento.text import Tokenizer

CLIENTS = (1, 8, 64)
MINILM = presets.bert_base(d_model=384, d_ff=1536, n_heads=12, n_layers=6)
_PEER = "from atento.bench.serving_peers import main; main()"
_START_SECONDS = 120
_ENVIRONMENT = {"TOKENIZERS_PARALLELISM": "false"}


@dataclass(frozen=True)
class Server:
    """A contender: how it is started on a port, and the request for a text."""

    command: list[str]
    path: str
    body: dict[str, Any]
    field: str  # of the body, which the text is put into

    def request(self, text: str) -> bytes:
        """The bytes of a request for a text."""
        value = [text] if self.field == "inputs" else text
        content = json.dumps(self.body | {self.field: value}).encode()
        head = f"POST {self.path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        return f"{head}Content-Length: {len(content)}\r\n\r\n".encode() + content


def measure_serving(
    seconds: float,
    *,
    works: Sequence[str] = ("embed MiniLM", "embed BERT-base", "classify BERT-base", "generate GPT-2"),
    clients: Sequence[int] = CLIENTS,
    size: str | None = None,
) -> Iterator[dict[str, Any]]:
    """Yield a row for each work, server and number of clients, and the ratios of each work at the end of it.

    Each client sends its next request when it has the answer to the last one. Servers run one after the other, each
    alone, with as many threads as this process; the clients run in this process on the same cores.

    Args:
        seconds: about how long each server is measured with each number of clients.
        works: what is asked for, by a model of random weights.
        clients: numbers of clients.
        size: "tiny": small networks, to try the command.
    """
    yield about("serving", size or "full", ("transformers", "sentence_transformers", "fastapi"))
    for work in works:
        with tempfile.TemporaryDirectory() as name:
            texts = natural_sentences(400, SIZES["tiny" if size else "bert-base"])
            rates: dict[tuple[str, int], float] = {}
            for who, server in _servers(work, Path(name) / "model", tiny=size is not None).items():
                with _running(server) as port:
                    requests = [server.request(text) for text in texts]
                    asyncio.run(_load(port, requests, 2, 1.0))
                    for count in clients:
                        latencies, failed, took = asyncio.run(_load(port, requests, count, seconds))
                        rates[who, count] = len(latencies) / took
                        p50, p99 = np.percentile(latencies, (50, 99)) if latencies else (0.0, 0.0)
                        yield {
                            "bench": "serving",
                            "work": work,
                            "who": who,
                            "clients": count,
                            "requests_per_second": round(rates[who, count], 1),
                            "p50_ms": round(1000 * p50, 1),
                            "p99_ms": round(1000 * p99, 1),
                            "failed": failed,
                        }
            for (who, count), rate in rates.items():
                for peer in dict.fromkeys(name for name, _ in rates):
                    if who.startswith("atento") and not peer.startswith("atento"):
                        ratio = {"ratio_to": peer, "ratio": round(rate / rates[peer, count], 2)}
                        yield {"bench": "serving", "work": work, "who": who, "clients": count, **ratio}


def _servers(work: str, folder: Path, *, tiny: bool) -> dict[str, Server]:
    """Write the model of a work, and return the servers by name."""
    small, theirs = SIZES["tiny"], folder
    ours: tuple[str, dict[str, Any], str]
    if work.startswith("embed"):
        write_encoder(folder, small if tiny else MINILM if "MiniLM" in work else SIZES["bert-base"], [])
        peers, ours = {"embed": "sentence_transformers"}, ("/v1/embeddings", {"model": "m"}, "input")
    elif work.startswith("classify"):
        folder.mkdir()
        write_labeller(folder, small if tiny else SIZES["bert-base"], "classify")
        peers, ours = {"classify": "transformers"}, ("/models/m", {}, "inputs")
    else:
        _write_gpt2(folder, tiny=tiny)
        options = {"model": "m", "max_tokens": NEW_TOKENS, "temperature": 0}
        peers, ours = {"generate": "transformers"}, ("/v1/completions", options, "prompt")
        theirs = _beside(folder)
    servers = {}
    for kind, package in peers.items():
        if importlib.util.find_spec(package) is not None:
            command = [sys.executable, "-c", _PEER, kind, str(theirs), "PORT", _threads()]
            servers[f"FastAPI and {package.replace('_', '-')}"] = Server(command, "/", {}, "inputs")
    for precision in ("float32", "bfloat16", "int8"):
        command = [sys.executable, "-m", "atento.cli.start", "serve", f"m={folder}", "--port", "PORT"]
        command += ["--precision", precision, "--threads", _threads(), "--quiet"]
        servers[f"atento {precision}"] = Server(command, *ours)
    return servers


def _threads() -> str:
    return str(torch.get_num_threads())


def _beside(folder: Path) -> Path:
    return folder.with_name("peer")


def _write_gpt2(folder: Path, *, tiny: bool) -> None:
    """Write a GPT-2 small of random weights and a tokenizer of numbered words; beside it, those of the peer."""
    config: NetworkConfig = presets.gpt2(d_model=32, d_ff=64, n_heads=4, n_layers=2) if tiny else presets.gpt2()
    count = SIZES["tiny"].vocab_size if tiny else config.vocab_size
    tokenizer = Tokenizer.from_vocabulary("word", [f"w{number}" for number in range(count)])
    ids = {"pad": tokenizer.pad_id, "unk": tokenizer.unk_id, "bos": tokenizer.bos_id, "eos": tokenizer.eos_id}
    config = changed(config, vocab_size=tokenizer.vocab_size, ids=ids | {"start": tokenizer.bos_id})
    torch.manual_seed(1)
    network = build_network(config)
    Model(network, tokenizer, {"task": task_with("generate")}, None).save(folder)
    if importlib.util.find_spec("transformers") is None:
        return
    import tokenizers
    import transformers

    Model(network, None, {}, None).save(_beside(folder), layout="huggingface")
    pieces = tokenizer.tokens(list(range(tokenizer.vocab_size)))
    words = tokenizers.Tokenizer(
        tokenizers.models.WordLevel({piece: number for number, piece in enumerate(pieces)}, pieces[tokenizer.unk_id])
    )
    words.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    fast: Any = transformers.PreTrainedTokenizerFast
    fast(tokenizer_object=words, pad_token=pieces[tokenizer.pad_id]).save_pretrained(_beside(folder))


@contextmanager
def _running(server: Server) -> Iterator[int]:
    """Start a server on a free port, wait until it is ready, and end it."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [str(port) if part == "PORT" else part for part in server.command]
    process = subprocess.Popen(command, env=os.environ | _ENVIRONMENT, stdout=subprocess.DEVNULL)
    try:
        end = time.monotonic() + _START_SECONDS
        while not _is_ready(port):
            if process.poll() is not None or time.monotonic() > end:
                raise AtentoError(f"a server of the benchmark did not start: {' '.join(command)}")
            time.sleep(0.05)
        yield port
    finally:
        process.terminate()
        process.wait()


def _is_ready(port: int) -> bool:
    try:
        with urlopen(f"http://127.0.0.1:{port}/health/ready", timeout=5) as answer:
            return bool(answer.status == 200)
    except (URLError, OSError):
        return False


async def _load(port: int, requests: Sequence[bytes], clients: int, seconds: float) -> tuple[list[float], int, float]:
    """The seconds of each answer, the number of failures and the time that all took."""
    latencies: list[float] = []
    failed = 0
    begin = time.perf_counter()

    async def client(number: int) -> None:
        nonlocal failed
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        turn = number
        while time.perf_counter() - begin < seconds:
            start = time.perf_counter()
            writer.write(requests[turn % len(requests)])
            if await _status(reader) == 200:
                latencies.append(time.perf_counter() - start)
            else:
                failed += 1
            turn += clients
        writer.close()

    await asyncio.gather(*map(client, range(clients)))
    return latencies, failed, time.perf_counter() - begin


async def _status(reader: asyncio.StreamReader) -> int:
    """Read an answer; its status."""
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower()
    length = next(int(line.split(":")[1]) for line in head.split("\r\n") if line.startswith("content-length:"))
    await reader.readexactly(length)
    return int(head.split()[1])
