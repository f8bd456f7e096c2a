"""Numbers of the service in the format of Prometheus; never a text of a user, nor a path that no route has."""

from collections.abc import Callable, Iterator, Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from atento_serve.jobs import Stats

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Metrics:
    """The metrics of one service.

    Args:
        stats: a function that returns the numbers of the engine by model.
    """

    def __init__(self, stats: Callable[[], Mapping[str, Stats]]) -> None:
        self._registry = CollectorRegistry()
        self.requests = Counter("atento_requests", "Requests answered.", ["route", "code"], registry=self._registry)

        def seconds(name: str, until: str) -> Histogram:
            text = f"Seconds from the head of a request to the {until}."
            return Histogram(name, text, ["route"], buckets=SECONDS, registry=self._registry)

        self.seconds = seconds("atento_request_seconds", "end of its answer")
        self.first = seconds("atento_ttft_seconds", "first piece of a stream")
        self.in_flight = Gauge("atento_requests_in_flight", "Requests being answered.", registry=self._registry)
        self.running = 0  # requests being answered
        self._registry.register(_EngineNumbers(stats))

    def begin(self) -> None:
        """Count a request that begins."""
        self.running += 1
        self.in_flight.set(self.running)

    def end(self, route: str, status: int, seconds: float) -> None:
        """Count a request that has ended."""
        self.running -= 1
        self.in_flight.set(self.running)
        self.count(route, status, seconds)

    def count(self, route: str, status: int, seconds: float) -> None:
        """Count an answer."""
        self.requests.labels(route, str(status)).inc()
        self.seconds.labels(route).observe(seconds)

    def page(self) -> bytes:
        """The page of `GET /metrics`."""
        return generate_latest(self._registry)


class _EngineNumbers:
    """The numbers of the engine, read when the page is."""

    def __init__(self, stats: Callable[[], Mapping[str, Stats]]) -> None:
        self._stats = stats

    def collect(self) -> Iterator[Metric]:
        queue = GaugeMetricFamily("atento_queue_size", "Requests that wait for a model.", labels=["model"])
        running = GaugeMetricFamily("atento_model_in_flight", "Requests that a model computes.", labels=["model"])
        restarts = CounterMetricFamily("atento_worker_restarts", "Workers that were replaced.", labels=["model"])
        tokens = CounterMetricFamily("atento_tokens", "Tokens read and written.", labels=["model", "kind"])
        batches = HistogramMetricFamily("atento_batch_size", "Rows computed together.", labels=["model"])
        for model, numbers in self._stats().items():
            queue.add_metric([model], numbers.queue)
            running.add_metric([model], numbers.in_flight)
            restarts.add_metric([model], numbers.restarts)
            for kind, count in numbers.tokens.items():
                tokens.add_metric([model, kind], count)
            counts, bounds = numbers.batches, (1, 2, 4, 8, 16, 32, 64, 128)
            buckets = [(str(float(most)), sum(n for size, n in counts.items() if size <= most)) for most in bounds]
            buckets.append(("+Inf", sum(counts.values())))
            batches.add_metric([model], buckets, sum(size * n for size, n in counts.items()))
        yield from (queue, running, restarts, tokens, batches)
