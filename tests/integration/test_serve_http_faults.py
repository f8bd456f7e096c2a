"""A real service under overload, slow clients, dead and hanging workers, keys, reloads and signals (V3, V5, V7, V8)."""

import shutil
import signal
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from os import kill
from pathlib import Path
from typing import Any

import httpx
import pytest

from atento_cli.main import main
from http_service import SOURCES, Served, held, served, until, write_models

C = "/v1/completions"
KEYS = """
# name key limits
main   key-of-main
small  key-of-small   per-minute=3
narrow key-of-narrow  in-flight=1
"""
MAIN = {"authorization": "Bearer key-of-main"}
GOOD = {"model": "lm", "prompt": SOURCES[0], "max_tokens": 4, "temperature": 0}
LONG = {"model": "lm", "prompt": SOURCES[0], "max_tokens": 256, "temperature": 1, "n": 8, "seed": 1}
LIMITS = {"queue": 3, "in_flight": 2, "header_seconds": 1, "body_seconds": 1, "idle_seconds": 2, "connections": 48}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_models(tmp_path_factory.mktemp("models"))["lm"].parent


@pytest.fixture(scope="module")
def service(folder: Path) -> Iterator[Served]:
    with limited_service(folder) as running:
        yield running


@contextmanager
def limited_service(folder: Path, environment: dict[str, str] | None = None) -> Iterator[Served]:
    (folder / "keys").write_text(KEYS, encoding="utf-8")
    limits = [word for name, value in LIMITS.items() for word in ("--limit", f"{name}={value}")]
    paths = ["--api-keys", str(folder / "keys"), "--admin-socket", str(folder / "admin.sock")]
    with served([str(folder / "lm"), *paths, *limits, "--log-text"], environment=environment) as running:
        yield running


def ask(service: Served, body: dict[str, Any], key: str = "main", **options: Any) -> httpx.Response:
    return service.post(C, body, headers={"authorization": f"Bearer key-of-{key}"}, **options)


def in_flight(service: Served) -> int:
    return int(service.number("atento_model_in_flight{", headers=MAIN))


def check_good(service: Served) -> None:
    done = ask(service, GOOD)
    assert done.status_code == 200, done.text


def test_keys_are_needed_and_each_has_its_share(service: Served) -> None:
    for headers in ({}, {"authorization": "Bearer nothing"}, {"authorization": "Basic key-of-main"}):
        done = service.post(C, GOOD, headers=headers)
        assert done.status_code == 401 and done.json()["error"]["code"] == "wrong_api_key"
        assert done.headers["www-authenticate"] == "Bearer"
    assert service.get("/limits").status_code == service.get("/metrics").status_code == 401
    assert service.get("/health").status_code == 200 and service.get("/limits", headers=MAIN).status_code == 200
    form = {"q": "a", "source": "en", "target": "pt"}
    assert httpx.post(service.url + "/translate", data=form, timeout=10).status_code == 401
    assert httpx.post(service.url + "/translate", data=form | {"api_key": "key-of-main"}, timeout=10).status_code == 400
    assert [ask(service, GOOD, "small").status_code for _ in range(3)] == [200] * 3
    refused = ask(service, GOOD, "small")
    assert refused.status_code == 429 and 15 <= int(refused.headers["retry-after"]) <= 20
    assert service.post("/detect", {"q": "a", "api_key": "key-of-small"}).status_code == 429
    with ThreadPoolExecutor(1) as pool:
        with held(service):
            running = pool.submit(ask, service, LONG, "narrow")
            until(lambda: in_flight(service) == 1)
            assert ask(service, GOOD, "narrow").status_code == 429
        assert running.result().status_code == 200
    assert ask(service, GOOD, "narrow").status_code == 200
    assert "key-of" not in "\n".join(service.lines)
    assert [SOURCES[0]] in [event.get("texts") for event in service.events()]  # as --log-text allows


def seconds_until_closed(connection: socket.socket, dribble: bytes = b"", most: float = 10.0) -> float:
    """How long the service bears a client that sends a byte every fifth of a second and reads nothing but the end."""
    began = time.monotonic()
    connection.settimeout(0.2)
    while time.monotonic() - began < most:
        try:
            if dribble:
                connection.sendall(dribble)
            if not connection.recv(1 << 16):
                break
        except TimeoutError:
            continue
        except OSError:
            break
    return time.monotonic() - began


@contextmanager
def slow_clients(service: Served, cases: list[tuple[bytes, bytes, float]], most: float) -> Iterator[None]:
    """Connections that begin a request and dribble, each of which is closed within its limit."""
    connections = [service.connect() for _ in cases]
    for connection, (begun, _, _) in zip(connections, cases):
        connection.sendall(begun)
    with ThreadPoolExecutor(len(cases)) as pool:
        closed = [pool.submit(seconds_until_closed, c, dribble, most) for c, (_, dribble, _) in zip(connections, cases)]
        yield
        assert all(future.result() < limit + 1.5 for future, (_, _, limit) in zip(closed, cases))
    for connection in connections:
        connection.close()


def test_v5_slow_heads_bodies_and_idle_connections_are_closed_and_others_are_served(service: Served) -> None:
    head = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nX: "
    body = (
        b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer key-of-main\r\n"
        b"Content-Type: application/json\r\nContent-Length: 500\r\n\r\n"
    )
    with slow_clients(service, [(head, b"a", 1.0), (body, b" ", 1.0), (b"", b"", 2.0)] * 10, 10.0):
        began = time.monotonic()
        check_good(service)
        assert time.monotonic() - began < 1.0
    check_good(service)


@pytest.mark.slow
def test_v5_a_client_that_does_not_read_is_cut_off(service: Served) -> None:
    """Requests follow one another on a connection whose answers nobody reads, until the buffers are full."""
    request = b"GET /openapi.json HTTP/1.1\r\nHost: localhost\r\n\r\n"
    connection = service.connect()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    connection.settimeout(1.0)
    began = time.monotonic()
    with pytest.raises(OSError):
        while time.monotonic() - began < 20:
            try:
                connection.sendall(request * 20)
            except TimeoutError:
                continue
            time.sleep(0.05)
    assert time.monotonic() - began < 15
    connection.close()
    check_good(service)


def test_more_connections_than_the_limit_are_refused(service: Served) -> None:
    held = [service.connect() for _ in range(LIMITS["connections"])]
    extra = service.connect()
    extra.sendall(b"GET /version HTTP/1.1\r\nHost: localhost\r\n\r\n")
    answer = extra.recv(1 << 16)
    assert answer.startswith(b"HTTP/1.1 503 ") and b"retry-after: 1" in answer and b'"code": "busy"' in answer
    for connection in (*held, extra):
        connection.close()
    until(lambda: service.get("/version").status_code == 200)


def test_v3_overload_is_refused_at_once_and_what_is_accepted_is_answered(service: Served) -> None:
    began, before = time.monotonic(), len(service.events())
    with ThreadPoolExecutor(24) as pool:
        answers = list(pool.map(lambda _: ask(service, LONG), range(24)))
    assert time.monotonic() - began < 30
    statuses = [answer.status_code for answer in answers]
    assert set(statuses) == {200, 503} and statuses.count(200) >= LIMITS["queue"] + LIMITS["in_flight"]
    for answer in answers:
        if answer.status_code == 503:
            assert int(answer.headers["retry-after"]) >= 1 and answer.json()["error"]["code"] == "busy"
    texts = {tuple(choice["text"] for choice in a.json()["choices"]) for a in answers if a.status_code == 200}
    assert len(texts) == 1  # the same seed
    until(lambda: len(service.events()) >= before + 24)
    refused = [event["seconds"] for event in service.events()[before:] if event["status"] == 503]
    assert statistics.median(refused) <= 0.25  # 0.05 where the machine has nothing else to do
    until(lambda: ask(service, GOOD).status_code == 200)


def ready(service: Served) -> bool:
    return service.get("/health/ready").status_code == 200


def test_v8_a_worker_that_hangs_makes_the_service_unready_while_it_lives(service: Served) -> None:
    (worker,) = service.workers()
    assert ready(service)
    kill(worker, signal.SIGSTOP)
    try:
        assert until(lambda: not ready(service)) > 1.0
        assert service.get("/health/live").status_code == 200
    finally:
        kill(worker, signal.SIGCONT)
    until(lambda: ready(service))
    check_good(service)


@pytest.mark.slow
def test_a_request_that_is_not_answered_before_the_deadline_gets_504(folder: Path) -> None:
    with served([str(folder / "lm"), "--deadline", "1"]) as running:
        (worker,) = running.workers()
        kill(worker, signal.SIGSTOP)
        began = time.monotonic()
        done = running.post(C, GOOD)
        assert time.monotonic() - began < 3.0
        kill(worker, signal.SIGCONT)
        assert done.status_code == 504 and done.json()["error"]["code"] == "deadline"
        assert running.post(C, GOOD).status_code == 200


def test_v7_a_worker_that_is_killed_is_replaced_and_its_requests_get_503(service: Served) -> None:
    (worker,) = service.workers()
    with ThreadPoolExecutor(2) as pool, held(service):
        running = [pool.submit(ask, service, LONG | {"seed": seed}) for seed in (1, 2)]
        until(lambda: in_flight(service) == 2)
        kill(worker, signal.SIGKILL)
        for future in running:
            done = future.result()
            assert done.status_code == 503 and done.json()["error"]["code"] == "worker_ended"
            assert int(done.headers["retry-after"]) >= 1
    until(lambda: ready(service))  # 5 s where the machine is quiet: most is the import of torch
    assert service.workers() != [worker]
    assert [event["model"] for event in service.events("worker_ended") + service.events("worker_started")] == ["lm"] * 2
    check_good(service)
    assert 'atento_worker_restarts_total{model="lm"} 1.0' in service.get("/metrics", headers=MAIN).text


def reload(folder: Path, name: str) -> httpx.Response:
    with httpx.Client(transport=httpx.HTTPTransport(uds=str(folder / "admin.sock")), timeout=60) as client:
        return client.post("http://admin/models/reload", json={"model": name})


@pytest.mark.slow
def test_a_model_is_reloaded_on_the_admin_socket_only_and_a_bad_one_not(service: Served, folder: Path) -> None:
    assert (folder / "admin.sock").stat().st_mode & 0o077 == 0
    assert service.post("/models/reload", {"model": "lm"}, headers=MAIN).status_code in (404, 422)
    assert reload(folder, "nothing").status_code == 404
    weights, good = folder / "lm" / "model.safetensors", folder / "good"
    shutil.copy(weights, good)
    workers = service.workers()
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(ask, service, LONG)
        assert reload(folder, "lm").json() == {"model": "lm", "status": "reloaded"}
        assert running.result().status_code == 200
    until(lambda: len(service.workers()) == 1)
    assert service.workers() != workers
    workers = service.workers()
    weights.write_bytes(good.read_bytes()[:-100])
    refused = reload(folder, "lm")
    assert refused.status_code == 409 and "model.safetensors" in refused.json()["error"]["message"]
    weights.write_bytes(good.read_bytes())
    assert service.workers() == workers
    check_good(service)


def test_v7_after_sigterm_running_requests_are_answered_new_ones_refused_and_the_status_is_0(service: Served) -> None:
    """The last test of this service."""
    vectors = {"model": "lm", "input": [" ".join(SOURCES)[:400] for _ in range(400)]}
    with ThreadPoolExecutor(4) as pool, httpx.Client(timeout=30) as client:
        with held(service):
            running = [pool.submit(service.post, "/v1/embeddings", vectors, headers=MAIN)]  # of many parts
            until(lambda: in_flight(service) == 1)
            running += [pool.submit(ask, service, LONG | {"seed": seed}) for seed in range(3)]
            until(lambda: in_flight(service) == 4)
            service.process.send_signal(signal.SIGTERM)
            until(lambda: client.get(service.url + "/health/ready").status_code == 503)
            late = client.post(service.url + C, json=GOOD, headers=MAIN)
            assert late.status_code == 503 and late.json()["error"]["code"] == "stopping"
        assert [future.result().status_code for future in running] == [200] * 4
    assert service.process.wait(30) == 0
    assert service.events("stopped") and service.process.stdout is not None and service.process.stdout.read() == ""


def test_v7_requests_that_outlast_the_drain_are_refused_as_the_service_stops(folder: Path) -> None:
    """Not by uvicorn's 500, nor logged as closed by clients; a stream ends with it; SIGHUP ends it as SIGTERM does."""
    with served([str(folder / "lm"), "--limit", "drain_seconds=0.2"]) as service:
        lines = httpx.stream("POST", service.url + C, json=LONG | {"stream": True}, timeout=30)
        with lines as stream, ThreadPoolExecutor(1) as pool:
            received = stream.iter_lines()
            next(received)
            with held(service):
                plain = pool.submit(service.post, C, LONG)
                until(lambda: in_flight(service) == 2)
                ignored = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN  # the tests run under nohup
                service.process.send_signal(signal.SIGTERM if ignored else signal.SIGHUP)
                refused = plain.result()
            assert refused.status_code == 503 and refused.json()["error"]["code"] == "stopping"
            assert '"code": "stopping"' in [line for line in received if line][-1].replace('":"', '": "')
        assert service.process.wait(30) == 0
        (stopped,) = service.events("stopped")
        assert stopped["cut"] == 2 and [event["code"] for event in service.events()[-2:]] == ["stopping"] * 2


@pytest.mark.slow
def test_v7_a_corrupt_model_refuses_to_start(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder / "lm", tmp_path / "lm")
    weights = tmp_path / "lm" / "model.safetensors"
    content = bytearray(weights.read_bytes())
    content[-40] ^= 1
    weights.write_bytes(content)
    line = [sys.executable, "-m", "atento_cli.start", "serve", str(tmp_path / "lm"), "--port", "0"]
    done = subprocess.run(line, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode in (1, 2) and done.stdout == ""
    assert done.stderr.startswith("error: ") and "model.safetensors" in done.stderr and done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    "arguments, status, message",
    [
        (["--host", "0.0.0.0"], 2, "is open to other machines: give --api-key, --api-keys, or --insecure"),
        (["--limit", "ques=3"], 2, "there is no limit 'ques'; did you mean 'queue'?"),
        (["--limit", "queue=x"], 2, "the limit `queue` must be a whole number: got 'x'"),
        (["--queue", "0"], 2, "the limit `queue` must be finite and at least 1: got 0"),
        (["--truncate", "middle"], 2, "`truncate` must be error, left or right: got 'middle'"),
        (["--languages", "lm"], 2, "--languages must be NAME=SOURCE-TARGET"),
        (["--languages", "x=en-pt"], 2, "--languages names no model 'x': there are lm"),
        (["--api-keys", "nothing"], 2, "--api-keys nothing: there is no such file"),
        (["--cors", "https://example.org/"], 2, "--cors must be an origin as a browser sends it"),  # it never matched
        (["SAME"], 2, "each model needs a name of its own: 'lm' is given twice"),
        (["--port", "TAKEN"], 1, "cannot listen on 127.0.0.1 port"),
    ],
)
def test_wrong_usage_is_refused_before_a_model_is_loaded(
    folder: Path, arguments: list[str], status: int, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.MonkeyPatch.context() as patch:
        words = {"SAME": str(folder / "lm"), "TAKEN": str(taken.getsockname()[1])}
        changed = [words.get(word, word) for word in arguments]
        patch.setattr(sys, "argv", ["atento", "serve", str(folder / "lm"), *changed])
        with pytest.raises(SystemExit) as ended:
            main()
    assert ended.value.code == status
    assert message in capsys.readouterr().err


@contextmanager
def quick(folder: Path, limits: list[str]) -> Iterator[tuple[Served, httpx.Client]]:
    """A service that is not forked from a process with PyTorch, and a client."""
    served_alone = served([str(folder / "lm"), *limits], python=sys.executable)
    with served_alone as service, httpx.Client(base_url=service.url, timeout=30) as client:
        yield service, client


@pytest.mark.slow
def test_v3_at_four_times_its_capacity_as_many_requests_are_answered_as_without_overload(folder: Path) -> None:
    """Arrivals that do not wait for answers: what is accepted is in time, the rest is refused at once."""
    body = LONG | {"n": 4, "max_tokens": 128}
    with quick(folder, ["--limit", "in_flight=4", "--limit", "queue=8", "--deadline", "10"]) as (service, client):

        def timed(_: int) -> tuple[int, float]:
            began = time.monotonic()
            return client.post(C, json=body).status_code, time.monotonic() - began

        with ThreadPoolExecutor(8) as pool:
            list(pool.map(timed, range(16)))
            began = time.monotonic()
            assert {status for status, _ in pool.map(timed, range(80))} == {200}
            capacity = 80 / (time.monotonic() - began)
        seconds, rate = 10.0, 4 * capacity
        with ThreadPoolExecutor(128) as pool:
            began = time.monotonic()
            futures = []
            for number in range(int(seconds * rate)):
                time.sleep(max(0.0, began + number / rate - time.monotonic()))
                futures.append(pool.submit(timed, number))
            answers = [future.result() for future in futures]
            goodput = sum(status == 200 for status, _ in answers) / (time.monotonic() - began)
        assert {status for status, _ in answers} == {200, 503}
        accepted = sorted(took for status, took in answers if status == 200)
        assert accepted[int(0.99 * len(accepted))] <= 10.0
        assert statistics.median([event["seconds"] for event in service.events() if event["status"] == 503]) <= 0.05
        assert goodput >= 0.9 * capacity, (goodput, capacity)
        until(lambda: client.post(C, json=body).status_code == 200)


@pytest.mark.slow
def test_v5_a_hundred_slow_clients_delay_no_other(folder: Path) -> None:
    """Dribbling heads and bodies: the latencies of good requests rise by a fifth at most."""
    head = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nX: "
    body = head[:-3] + b"Content-Type: application/json\r\nContent-Length: 500\r\n\r\n"
    limits = ["--limit", "header_seconds=5", "--limit", "body_seconds=10", "--limit", "idle_seconds=15"]
    good = LONG | {"n": 8, "max_tokens": 128}
    with quick(folder, limits) as (service, client):

        def latencies() -> list[float]:
            found = []
            for _ in range(60):
                began = time.monotonic()
                assert client.post(C, json=good).status_code == 200
                found.append(time.monotonic() - began)
            return sorted(found)

        latencies()
        before = latencies()
        with slow_clients(service, [(head, b"a", 5.0), (body, b" ", 10.0)] * 50, 20.0):
            during = latencies()
        assert during[30] <= 1.2 * before[30] and during[57] <= 1.2 * before[57] + 0.01, (before, during)
