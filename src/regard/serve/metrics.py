"""Metrics of the server as Prometheus text: requests, seconds, tokens, and what waits and runs in each worker."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from regard.serve.models import ServedModel

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)


class Metrics:
    """Counts what the server does; one per app, since nothing is counted in a module."""

    def __init__(self, served: Mapping[str, ServedModel]) -> None:
        self.served, self.registry, self.tasks = served, CollectorRegistry(), 0
        self.requests = Counter(
            "regard_requests", "Requests by route and status.", ["route", "status"], registry=self.registry
        )
        self.seconds = Histogram(
            "regard_request_seconds", "Seconds until a reply was complete.", ["route"], buckets=_SECONDS,
            registry=self.registry,
        )  # fmt: skip
        self.tokens = Counter(
            "regard_tokens", "Tokens read and generated.", ["model", "kind"], registry=self.registry
        )  # fmt: skip
        self.registry.register(self)

    def count_request(self, route: str, status: int, seconds: float) -> None:
        """Count one reply."""
        self.requests.labels(route, str(status)).inc()
        self.seconds.labels(route).observe(seconds)

    def count_tokens(self, model: str, read: int, generated: int = 0) -> None:
        """Count the tokens of one reply."""
        self.tokens.labels(model, "read").inc(read)
        self.tokens.labels(model, "generated").inc(generated)

    def collect(self) -> Iterator[Metric]:
        """What waits and runs now, in the workers and in the event loop."""
        waiting = GaugeMetricFamily("regard_waiting", "Requests that wait for their model.", labels=["model"])
        running = GaugeMetricFamily("regard_running", "Requests that their model works on.", labels=["model"])
        steps = CounterMetricFamily("regard_steps", "Decoding steps in torch.", labels=["model"])
        jobs = CounterMetricFamily("regard_jobs", "Jobs of workers, by engine.", labels=["model", "engine"])
        for name, one in list(self.served.items()):
            waiting.add_metric([name], sum(pool.waiting for pool in one.pools.values()))
            running.add_metric([name], sum(pool.running for pool in one.pools.values()))
            steps.add_metric([name], one.workers.steps)
            for engine, pool in one.pools.items():
                jobs.add_metric([name, engine], pool.jobs)
        tasks = GaugeMetricFamily("regard_tasks", "Tasks of the event loop.", value=self.tasks)
        yield from (waiting, running, steps, jobs, tasks)

    def text(self, tasks: int) -> bytes:
        """All metrics in Prometheus' text format; `tasks` is the number of tasks of the event loop."""
        self.tasks = tasks
        return bytes(generate_latest(self.registry))
