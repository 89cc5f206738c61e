"""What Prometheus scrapes: this worker's requests, and the status of its engine and partitions."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache

import structlog
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from shared.http.health import PROBES
from shared.runtime.status import Machine, ReplicaStatus, SourceStatus, Status, Trouble

log = structlog.get_logger(__name__)

LATENCY_BUCKETS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
CORRELATION_ID = "correlation_id"  # in the scope of a request with one command
_BY_THE_CLOCK = PROBES | {"/metrics"}
_NO_ROUTE = "none"  # never the path itself: made-up paths would fill the memory


class RequestMetrics:
    """Counts requests by route, and of those with many commands each line. Register it once."""

    def __init__(self, registry: CollectorRegistry) -> None:
        labels = ("method", "route")
        requests = Counter("onefold_http_requests", "Requests answered", (*labels, "status"), registry=registry)
        seconds = Histogram(
            "onefold_http_request_seconds",
            "Time from a request's headers to the end of its answer",
            labels,
            buckets=LATENCY_BUCKETS_S,
            registry=registry,
        )
        lines = Counter(
            "onefold_http_lines", "Commands answered that came on lines", ("route", "status"), registry=registry
        )

        def begun(method: str, route: str) -> Histogram:
            self.requests(method, route, 500)  # at 0: an alert sees a series rise, not begin
            return seconds.labels(method, route)

        # no more entries than there are routes; `labels` itself builds strings and takes a lock each time
        self.requests = cache(requests.labels)
        self.seconds = cache(begun)
        self.lines = cache(lines.labels)
        self.in_progress = Gauge("onefold_http_requests_in_progress", "Requests being answered", registry=registry)


class Measured:
    """ASGI middleware around the router and everything that answers in its place."""

    def __init__(self, app: ASGIApp, metrics: RequestMetrics, *, logs: bool = False) -> None:
        """logs: whether it also logs each request, but those that come by the clock."""
        self.app = app
        self.metrics = metrics
        self.logs = logs

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        began, status = time.perf_counter(), 500

        async def noted(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            with self.metrics.in_progress.track_inprogress():
                await self.app(scope, receive, noted)
        finally:
            took_s = time.perf_counter() - began
            method, route = _method(scope), getattr(scope.get("route"), "path", _NO_ROUTE)
            self.metrics.requests(method, route, status).inc()
            self.metrics.seconds(method, route).observe(took_s)
            if self.logs and route not in _BY_THE_CLOCK:
                _log(scope, method, status, took_s)


def _log(scope: Scope, method: str, status: int, took_s: float) -> None:
    """Without the query and the body, which may tell more than which row it was."""
    told = {"method": method, "path": scope["path"], "status": status, "took_ms": round(took_s * 1000, 1)}
    log.info("request", **told, **{name: scope[name] for name in (CORRELATION_ID,) if name in scope})


def _method(scope: Scope) -> str:
    """Anything can be sent as a method, so only known ones become a label."""
    method: str = scope["method"]
    return method if method in ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS") else "other"


class StatusCollector(Collector):
    """Reads a worker's status at each scrape."""

    def __init__(self, status: Callable[[], Status]) -> None:
        self._status = status

    def describe(self) -> Iterable[Metric]:
        return ()

    def collect(self) -> Iterator[Metric]:
        status = self._status()
        yield _counter("onefold_records_handled", "Source records handled and committed", status.handled)
        yield _counter("onefold_commits", "Transactions committed", status.commits)
        yield _counter("onefold_aborts", "Transactions aborted and begun again", status.aborts)
        yield _gauge("onefold_ready", "1 when every partition assigned here is served", status.ready)
        yield _gauge("onefold_waiting_reads", "Reads that wait for a row to change", status.waiting)
        ahead = "Seconds that this machine's clock is ahead of the brokers'"
        yield _gauge("onefold_clock_ahead_seconds", ahead, status.clock_ahead_s)
        yield _of_parked(status.parked)
        yield _of_troubles(status.troubles)
        yield from _of_sources(status.sources)
        yield from _of_replicas(status.replicas)
        if status.machine is not None:
            yield from _of_machine(status.machine)


def _of_parked(parked: Mapping[int, int]) -> Metric:
    keys = GaugeMetricFamily("onefold_parked_keys", "Keys that wait as dead letters", labels=("partition",))
    for partition, number in parked.items():
        keys.add_metric((str(partition),), number)
    return keys


def _of_troubles(troubles: Iterable[Trouble]) -> Metric:
    """Without labels' values where it is not one partition that stands."""
    help = "For how long records have not been handled that others hold back; see /cluster for the reason"
    seconds = GaugeMetricFamily("onefold_blocked_seconds", help, labels=("topic", "partition"))
    for each in troubles:
        seconds.add_metric((each.topic or "", "" if each.partition is None else str(each.partition)), each.for_s)
    return seconds


def _of_sources(sources: Iterable[SourceStatus]) -> Iterator[Metric]:
    labels = ("topic", "partition")
    records = GaugeMetricFamily("onefold_source_lag_records", "Source records not handled yet", labels=labels)
    seconds = GaugeMetricFamily(
        "onefold_source_lag_seconds", "Age of the newest record handled while others wait", labels=labels
    )
    handled = CounterMetricFamily("onefold_source_records", "Source records handled", labels=labels)
    busy = CounterMetricFamily("onefold_source_busy_seconds", "Time that went into handling them", labels=labels)
    for source in sources:
        where = (source.topic, str(source.partition))
        records.add_metric(where, source.lag_records)
        handled.add_metric(where, source.handled)
        busy.add_metric(where, source.busy_s)
        if source.lag_seconds is not None:
            seconds.add_metric(where, source.lag_seconds)
    yield from (records, seconds, handled, busy)


def _of_replicas(replicas: Iterable[ReplicaStatus]) -> Iterator[Metric]:
    labels = ("table", "partition", "role")
    records = GaugeMetricFamily("onefold_table_lag_records", "Changelog records not applied yet", labels=labels)
    seconds = GaugeMetricFamily(
        "onefold_table_lag_seconds", "Age of the newest row applied while others wait", labels=labels
    )
    to_restore = GaugeMetricFamily("onefold_table_restore_records", "Records until it is restored", labels=labels)
    restored = GaugeMetricFamily("onefold_table_restored", "1 once it is restored", labels=labels)
    size = GaugeMetricFamily("onefold_table_bytes", "Bytes of the files of its store", labels=labels)
    for replica in replicas:
        where = (replica.table, str(replica.partition), replica.role)
        records.add_metric(where, replica.lag_records)
        to_restore.add_metric(where, replica.to_restore)
        restored.add_metric(where, float(replica.restored))
        if replica.lag_seconds is not None:
            seconds.add_metric(where, replica.lag_seconds)
        if replica.size_bytes is not None:
            size.add_metric(where, replica.size_bytes)
    yield from (records, seconds, to_restore, restored, size)


def _of_machine(machine: Machine) -> Iterator[Metric]:
    yield _gauge("onefold_disk_bytes", "Size of the disk with the stores", machine.disk_bytes)
    yield _gauge("onefold_disk_free_bytes", "What is left of it", machine.disk_free_bytes)
    if machine.full_in_s is not None:
        yield _gauge("onefold_disk_full_seconds", "Until the stores fill it, if they grow", machine.full_in_s)
    if machine.memory_limit_bytes is not None:
        limit = "What the process may have in memory: its container's limit, or all of the machine's"
        yield _gauge("onefold_memory_limit_bytes", limit, machine.memory_limit_bytes)


def _counter(name: str, help: str, value: float) -> Metric:
    return CounterMetricFamily(name, help, value=value)


def _gauge(name: str, help: str, value: float) -> Metric:
    return GaugeMetricFamily(name, help, value=float(value))
