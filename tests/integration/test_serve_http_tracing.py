"""Spans of OpenTelemetry for requests, by the exporter in memory; in the same service, ranking by one number."""

import asyncio
import math
import socket
import threading
import time
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest

import atento
from atento.config.tables.head_kinds import HeadConfig
from atento_serve.app import application
from atento_serve.engine.engine import Engine
from atento_serve.http.clients import Clients
from atento_serve.http.logs import Log
from atento_serve.http.metrics import Metrics
from atento_serve.http.service import Service
from atento_serve.settings import Limits, ModelSettings
from http_service import SOURCES, served, write_models
from serving import small_model, small_tokenizer

pytest.importorskip("opentelemetry.sdk", reason="the extra tracing is not installed")

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from atento_serve.http.tracing import Tracing

SECRET = "blueberry"
PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.fixture(scope="module")
def ranker(tmp_path_factory: pytest.TempPathFactory) -> Path:
    model = small_model(small_tokenizer(), "encoder", heads=(HeadConfig("regression"),))
    model.config |= {"task": "regression", "pairs": True}  # type: ignore[operator]
    return model.save(tmp_path_factory.mktemp("ranker") / "ranker")


def test_each_request_is_a_span_and_a_model_of_one_number_ranks(ranker: Path) -> None:
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    query, texts = f"{SECRET} {SOURCES[0]}", [f"{text} {SECRET}" for text in SOURCES[1:4]]
    answers: list[httpx.Response] = []

    async def run() -> None:
        limits, models = Limits(), {"ranker": ModelSettings("ranker", str(ranker), device="cpu", threads=1)}
        engine = Engine(models, limits)
        await engine.start()
        try:
            metrics = Metrics(lambda: {name: engine.stats(name) for name in models})
            service = Service(engine, models, limits, Clients([], limits), metrics, Log(quiet=True))
            transport = httpx.ASGITransport(application(service, tracing=Tracing(provider)))
            async with httpx.AsyncClient(transport=transport, base_url="http://service", timeout=60) as client:
                body = {"query": query, "documents": texts}
                answers.append(await client.post("/rerank", json=body, headers={"traceparent": PARENT}))
                answers.append(await client.post("/rerank", json={"query": query, "texts": texts, "raw_scores": True}))
                answers.append(await client.post("/models/ranker", json={"parameters": {SECRET: 1}}))
                answers.append(await client.get(f"/{SECRET}"))
        finally:
            await engine.close()

    asyncio.run(run())
    model: atento.Model = atento.load(ranker, device="cpu")
    numbers = model.similarity([query] * 3, texts)
    ranked = sorted(range(3), key=lambda number: -numbers[number])
    results = answers[0].json()["results"]
    assert [row["index"] for row in results] == ranked
    expected = [1 / (1 + math.exp(-numbers[number])) for number in ranked]
    assert [row["relevance_score"] for row in results] == pytest.approx(expected, abs=1e-5)
    raw = [row["score"] for row in answers[1].json()]
    assert raw == pytest.approx([numbers[number] for number in ranked], abs=1e-4)
    spans = exporter.get_finished_spans()
    assert [span.name for span in spans] == ["POST /rerank", "POST /rerank", "POST /models/{id:path}", "GET unknown"]
    first = spans[0]
    assert first.kind is SpanKind.SERVER and first.parent is not None
    assert f"{first.context.trace_id:032x}" == PARENT.split("-")[1]
    assert f"{first.parent.span_id:016x}" == PARENT.split("-")[2] and spans[1].parent is None
    values: dict[str, Any] = dict(first.attributes or {})
    assert values["http.request.method"] == "POST" and values["http.route"] == "/rerank"
    assert values["http.response.status_code"] == 200 and values["gen_ai.request.model"] == "ranker"
    assert values["gen_ai.usage.input_tokens"] > 3 and values["gen_ai.usage.output_tokens"] == 0
    seconds = ((first.end_time or 0) - (first.start_time or 0)) / 1e9
    assert values["atento.queue_seconds"] >= 0 and values["atento.compute_seconds"] > 0
    assert values["atento.queue_seconds"] + values["atento.compute_seconds"] <= seconds + 1e-3
    assert values["atento.request.id"] == answers[0].headers["x-request-id"]
    refused: dict[str, Any] = dict(spans[2].attributes or {})
    assert refused["http.response.status_code"] == 422 and refused["error.type"] == "wrong_field"
    assert spans[2].status.status_code is not StatusCode.ERROR  # the client's fault
    assert SECRET not in "".join(span.to_json() for span in spans)


@pytest.mark.slow
def test_the_service_sends_spans_where_the_standard_variables_say(tmp_path: Path) -> None:
    received: list[bytes] = []

    class Collector(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            received.append(self.rfile.read(int(self.headers["content-length"])))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    collector = HTTPServer(("127.0.0.1", 0), Collector)
    threading.Thread(target=collector.serve_forever, daemon=True).start()
    endpoint = f"http://127.0.0.1:{collector.server_port}"
    folder = write_models(tmp_path)["lm"]
    environment = {"OTEL_EXPORTER_OTLP_ENDPOINT": endpoint, "OTEL_SERVICE_NAME": "x"}
    with served([str(folder)], environment=environment) as service:
        done = service.post("/v1/completions", {"model": "lm", "prompt": "a", "max_tokens": 3})
        number = done.headers["x-request-id"]
        assert service.end() == 0
    collector.shutdown()
    requests = [ExportTraceServiceRequest.FromString(body) for body in received]
    parts = [part for row in requests for part in row.resource_spans]
    spans = [span for part in parts for scope in part.scope_spans for span in scope.spans]
    assert [span.name for span in spans] == ["POST /v1/completions"]
    assert number in {pair.value.string_value for pair in spans[0].attributes}
    assert "x" in {pair.value.string_value for part in requests[0].resource_spans for pair in part.resource.attributes}
    assert any(event.get("trace_id") == spans[0].trace_id.hex() for event in service.events())


@pytest.mark.slow
@pytest.mark.parametrize("answers", [False, True], ids=["nobody listens", "it accepts and never answers"])
def test_a_dead_collector_does_not_delay_the_end(ranker: Path, answers: bool) -> None:
    """By itself the exporter tries again for ten seconds."""
    with socket.socket() as collector:
        collector.bind(("127.0.0.1", 0))
        if answers:
            collector.listen()
        endpoint = f"http://127.0.0.1:{collector.getsockname()[1]}"
        with served([str(ranker)], environment={"OTEL_EXPORTER_OTLP_ENDPOINT": endpoint}) as service:
            assert service.post("/rerank", {"query": "a", "texts": ["b"]}).status_code == 200
            began = time.monotonic()
            assert service.end() == 0
            assert time.monotonic() - began < 4.0
    [stopped] = service.events("stopped")
    assert stopped["spans_lost"] and 1.9 < stopped["seconds"] < 3.5
    assert all(line.startswith(("{", "ready: ", "try: ")) for line in service.lines), service.lines
    if not answers:
        assert any("batch" in event["message"] for event in service.events("tracing"))
