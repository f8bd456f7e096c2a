"""Traces by OpenTelemetry: a span for each request, with lengths and times and never a text of a user.

Needs the extra `tracing`, and is imported only if tracing is asked for.
"""

import logging
import os
import sys
import threading
from collections.abc import Callable, Mapping
from typing import Any

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.propagate import extract
from opentelemetry.sdk.resources import SERVICE_NAME, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, ConsoleSpanExporter, SpanExporter
from opentelemetry.trace import Span, SpanKind, Status, StatusCode
from starlette.types import Scope

from atento.base.errors import UsageError
from atento.base.version import __version__

_METHODS = ("GET", "HEAD", "POST", "PUT", "DELETE", "CONNECT", "OPTIONS", "TRACE", "PATCH")
_ATTRIBUTES = {  # a value of the log -> its name in the conventions of OpenTelemetry, or ours
    "model": "gen_ai.request.model",
    "prompt_tokens": "gen_ai.usage.input_tokens",
    "new_tokens": "gen_ai.usage.output_tokens",
    "verb": "atento.verb",
    "items": "atento.items",
    "queue_seconds": "atento.queue_seconds",
    "compute_seconds": "atento.compute_seconds",
    "code": "error.type",
}
_PROTOCOL = "http/protobuf"
_LAST_SECONDS = 2.0  # for the last spans at the end of the service; a collector that is gone would take 10


class Tracing:
    """Begins and ends the spans of requests.

    Args:
        provider: makes and exports the spans.
    """

    def __init__(self, provider: TracerProvider) -> None:
        self._provider = provider
        self._tracer = provider.get_tracer("atento", __version__)

    @classmethod
    def from_environment(cls, event: Callable[..., None]) -> "Tracing":
        """Tracing to where the variables `OTEL_*` say: to `http://localhost:4318` by OTLP where they say nothing.

        Args:
            event: writes an event of the log; the warnings of OpenTelemetry are such events.

        Raises:
            UsageError: an exporter or a protocol that there is not.
        """
        logger = logging.getLogger("opentelemetry")  # its warnings, such as that of a collector that does not answer
        logger.propagate, logger.handlers = False, [_Warnings(event)]
        unnamed = str(Resource.create().attributes[SERVICE_NAME]).startswith("unknown_service")
        resource = Resource.create({SERVICE_NAME: "atento"} if unnamed else {})
        provider = TracerProvider(resource=resource, shutdown_on_exit=False)  # `close` does it, and waits less long
        for name in os.environ.get("OTEL_TRACES_EXPORTER", "otlp").split(","):
            if name.strip() != "none":
                provider.add_span_processor(BatchSpanProcessor(_exporter(name.strip())))
        return cls(provider)

    def begin(self, scope: Scope) -> Span:
        """The span of a request; it continues the trace that the client names in `traceparent`."""
        carrier = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        method = scope["method"] if scope["method"] in _METHODS else "_OTHER"
        attributes = {"http.request.method": method, "atento.request.id": scope["atento"]["id"]}
        return self._tracer.start_span(method, extract(carrier), kind=SpanKind.SERVER, attributes=attributes)

    def end(self, span: Span, route: str, status: int, notes: Mapping[str, Any]) -> None:
        """End the span of a request.

        Args:
            route: its pattern, such as `/models/{id}`, never the path of a client.
            status: of the answer.
            notes: the values of its line of log.
        """
        span.update_name(f"{getattr(span, 'name', '')} {route}")
        span.set_attribute("http.route", route)
        span.set_attribute("http.response.status_code", status)
        for name, attribute in _ATTRIBUTES.items():
            if name in notes:
                span.set_attribute(attribute, notes[name])
        if status >= 500:
            span.set_status(Status(StatusCode.ERROR))
        span.end()

    def close(self) -> bool:
        """Export what is left; return whether it was exported, or refused, within two seconds."""
        last = threading.Thread(target=self._provider.shutdown, name="last-spans", daemon=True)
        last.start()
        last.join(_LAST_SECONDS)
        return not last.is_alive()


class _Warnings(logging.Handler):
    def __init__(self, event: Callable[..., None]) -> None:
        super().__init__(logging.WARNING)
        self._event = event

    def emit(self, record: logging.LogRecord) -> None:
        """Write one warning."""
        self._event("tracing", level=record.levelname.lower(), message=record.getMessage())


def _exporter(name: str) -> SpanExporter:
    if name == "console":
        return ConsoleSpanExporter(out=sys.stderr)
    if name != "otlp":
        raise UsageError(f"`OTEL_TRACES_EXPORTER` must be otlp, console or none: got {name!r}")
    usual = os.environ.get("OTEL_EXPORTER_OTLP_PROTOCOL", _PROTOCOL)
    protocol = os.environ.get("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", usual)
    if protocol != _PROTOCOL:
        raise UsageError(f"`OTEL_EXPORTER_OTLP_PROTOCOL` must be {_PROTOCOL}: got {protocol!r}")
    return OTLPSpanExporter()
