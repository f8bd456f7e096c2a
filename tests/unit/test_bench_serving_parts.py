"""The parts of `atento bench serving`: clients, batches of the peers' servers, answers, ratios, model files."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from socketserver import StreamRequestHandler, ThreadingTCPServer

import pytest

from atento.base.errors import AtentoError
from atento.model import load as load_model
from benchmarks.serving_comparison import answer_of, ratios, share
from benchmarks.serving_gguf import _name
from benchmarks.serving_load import Load, load, replies
from benchmarks.serving_models import TRANSLATOR, texts_for, tiny, write_served
from benchmarks.serving_peers import Computing
from benchmarks.serving_sides import interpreter_with
from failing import fails

# status, content, close of the number of a request; None: never
Reply = Callable[[int], tuple[int, bytes, bool] | None]


@contextmanager
def http_server(reply: Reply) -> Iterator[int]:
    """A server of this process that answers request after request; its port."""
    numbers = count(1)

    class Handler(StreamRequestHandler):
        def handle(self) -> None:
            while self.rfile.readline():
                self.rfile.readline()  # the empty line
                answer = reply(next(numbers))
                if answer is None:
                    continue
                status, content, close = answer
                head = f"HTTP/1.1 {status} OK\r\nContent-Length: {len(content)}\r\n"
                head += f"Connection: {'close' if close else 'keep-alive'}\r\n\r\n"
                self.wfile.write(head.encode() + content)
                if close:
                    return

    with ThreadingTCPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, args=(0.01,)).start()
        try:
            yield server.server_address[1]
        finally:
            server.shutdown()


REQUEST = b"POST / HTTP/1.1\r\n\r\n"


def test_clients_count_answers_failures_and_what_is_given_up() -> None:
    with http_server(lambda count: (200 if count % 2 else 500, b"{}", False)) as port:
        seen = load(port, [REQUEST], 2, 0.1)
    assert abs(len(seen.answered) - seen.failed) <= 2 and seen.failed > 2 and not seen.unanswered
    assert seen.seconds >= 0.1 and seen.rate == len(seen.answered) / seen.seconds
    with http_server(lambda count: (200, b"{}", False) if count < 4 else None) as port:
        seen = load(port, [REQUEST], 2, 0.05)
    assert len(seen.answered) == 3 and len(seen.unanswered) == 2
    assert min(seen.unanswered) > 0.1 and seen.milliseconds(99) > 100


WAITING = """
import sys, time
from benchmarks.serving_load import running
from benchmarks.serving_sides import Server
command = [sys.executable, "-m", "http.server", "PORT", "--bind", "127.0.0.1"]
with running(Server(command, "/", {}, "inputs", "/")) as started:
    print(started.process, flush=True)
    time.sleep(60)
"""


@pytest.mark.parametrize("number", [pytest.param(signal.SIGINT, marks=pytest.mark.slow), signal.SIGTERM])
@pytest.mark.slow  # starts servers
def test_a_signal_ends_the_servers_too(number: int, tmp_path: Path) -> None:
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])}
    command = [sys.executable, "-c", WAITING]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=tmp_path, env=environment)
    server = int(process.stdout.readline())
    process.send_signal(number)
    assert process.wait(30) == 128 + number
    with pytest.raises(ProcessLookupError):
        os.kill(server, 0)


def test_a_connection_that_the_server_closes_is_opened_again() -> None:
    with http_server(lambda count: (200, str(count).encode(), count % 2 == 0)) as port:
        assert replies(port, [REQUEST] * 5) == [1, 2, 3, 4, 5]
    with http_server(lambda count: (503, b"too busy", False)) as port:
        fails(AtentoError, "answered 503: too busy", replies, port, [REQUEST])


def test_requests_that_wait_are_one_batch() -> None:
    begin, batches = threading.Event(), []

    def answer(texts: list[str]) -> list[str]:
        batches.append(list(texts))
        begin.wait(10)
        if "bad" in texts:
            raise ValueError("no such text")
        return [text.upper() for text in texts]

    computing = Computing(answer, most=3)
    first = computing.submit(["a"])
    while not batches:
        pass
    waiting = [computing.submit(texts) for texts in (["b", "c"], ["d"], ["e"], ["bad"])]
    begin.set()
    assert [future.result(10) for future in (first, *waiting[:3])] == [["A"], ["B", "C"], ["D"], ["E"]]
    fails(ValueError, "no such text", waiting[3].result, 10)
    assert batches == [["a"], ["b", "c", "d", "e"], ["bad"]]
    assert computing.submit(["f"]).result(10) == ["F"]


def test_answers_shares_and_names_of_each_server() -> None:
    for reply, expected in (
        ([[0.5, 1.0]], [0.5, 1.0]),
        ({"object": "list", "data": [{"object": "embedding", "embedding": [0.5, 1.0], "index": 0}]}, [0.5, 1.0]),
        ([{"label": "LABEL_1", "score": 0.9}, {"label": "LABEL_0", "score": 0.1}], ["LABEL_1"]),
        ({"object": "classify", "data": [[{"score": 0.9, "label": "LABEL_1"}]], "model": "m"}, ["LABEL_1"]),
        ([{"translation_text": "w1 w2"}], ["w1", "w2"]),
        (["w1 w2"], ["w1", "w2"]),
        ({"id": "x", "choices": [{"index": 0, "text": " w1 w2"}], "usage": {}}, ["w1", "w2"]),
    ):
        assert answer_of(reply) == expected
    assert share(["a", "b", "c"], ["a", "x", "c", "d"]) == 0.5
    assert share([1.0, 0.0], [3.0, 0.0]) == 1.0 and share([1.0, 0.0], [0.0, 2.0]) == 0.0
    assert _name("transformer.wte.weight") == "token_embd.weight"
    assert _name("transformer.h.11.attn.c_attn.bias") == "blk.11.attn_qkv.bias"
    assert _name("transformer.h.0.mlp.c_proj.weight") == "blk.0.ffn_down.weight"
    assert _name("transformer.ln_f.bias") == "output_norm.bias"
    assert _name("transformer.h.0.attn.bias") is None and _name("lm_head.weight") is None


def test_ratios_are_of_the_fastest_and_of_float32_with_the_goal_of_that_peer() -> None:
    def seen(count: int, latency: float) -> Load:
        return Load([latency] * count, seconds=2.0)

    loads = {
        "FastAPI and transformers": {1: seen(10, 0.4), 64: seen(10, 0.4)},
        "FastAPI and CTranslate2 int8": {64: seen(20, 0.2)},
        "atento float32": {1: seen(30, 0.1), 64: seen(20, 0.2)},
        "atento int8": {1: seen(20, 0.1), 64: seen(40, 0.1)},
    }
    transformers, ct2 = "FastAPI and transformers", "FastAPI and CTranslate2 int8"
    assert [
        (row["who"], row["clients"], row["ratio_to"], row["ratio"], row["p99_ratio"], row.get("goal"))
        for row in ratios(loads)
    ] == [
        ("atento float32 (fastest)", 1, transformers, 3.0, 0.25, None),
        ("atento int8 (fastest)", 64, transformers, 4.0, 0.25, 3.0),
        ("atento float32", 64, transformers, 2.0, 0.5, None),
        ("atento int8 (fastest)", 64, ct2, 2.0, 0.5, 1.3),
    ]


def test_the_model_that_writes_gives_words_alone_and_the_interpreter_has_all_packages(tmp_path: Path) -> None:
    network = tiny(TRANSLATOR)
    write_served(tmp_path / "model", network, "translate")
    model, texts = load_model(tmp_path / "model"), texts_for(network, 12)[:4]
    assert model.tokenizer.tokens(model.tokenizer.encode(texts[0])) == [f"▁{word}" for word in texts[0].split()]
    for options in ({"greedy": True}, {"beam": 3}):
        outputs = model.translate(texts, max_new_tokens=9, **options)
        assert all(len(text.split()) == 9 and all(w[0] == "w" for w in text.split()) for text in outputs)
        assert len(set(outputs)) > 1, "the output depends on the source"
    assert interpreter_with(("json", "numpy"), [sys.executable]) == sys.executable
    assert interpreter_with(("json", "no_such_package"), [sys.executable]) is None
