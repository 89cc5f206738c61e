"""The metrics that the dashboards query are those that a worker of every service exposes."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest

from shared.dev.kubernetes import LAG
from shared.http.metrics import RequestMetrics, StatusCollector
from shared.runtime.checkout import found_services
from shared.runtime.status import Machine, ReplicaStatus, SourceStatus, Status

DEPLOY = Path(__file__).parents[3] / "deploy"
OF_THE_SCRAPE = {"service", "instance"}
BEHIND = {"lag_records": 1, "lag_seconds": 1.0}
REPLICA = ReplicaStatus(
    table="t", partition=0, role="active", restored=True, position=0, target=0, to_restore=0, size_bytes=1, **BEHIND
)
MACHINE = Machine(memory_bytes=1, memory_limit_bytes=2, disk_bytes=3, disk_free_bytes=2, stores_bytes=1)
SOURCE = SourceStatus(topic="t", partition=0, position=0, **BEHIND)


def told() -> dict[str, set[str]]:
    """The labels of a worker's metrics, by their names with the suffixes that Prometheus sees."""
    status = Status(
        service="s", instance="1", url="http://s", ready=True, idle=False, owners={}, replicas=[REPLICA],
        sources=[SOURCE], parked={0: 1}, handled=0, commits=0, aborts=0, waiting=0,
        machine=MACHINE,
    )  # fmt: skip
    registry = CollectorRegistry()
    requests = RequestMetrics(registry)
    requests.requests("GET", "/", 200).inc()
    requests.seconds("GET", "/").observe(1)
    requests.lines("/", 200).inc()
    registry.register(StatusCollector(lambda: status))
    lines = re.findall(r"^(onefold_\w+)(.*)", generate_latest(registry).decode(), re.MULTILINE)
    return {name: set(re.findall(r'(\w+)="', labels)) for name, labels in lines}


def test_what_is_left_of_a_workers_machine_is_measured() -> None:
    assert {"onefold_disk_bytes", "onefold_disk_free_bytes", "onefold_memory_limit_bytes"} <= told().keys()
    assert told()["onefold_table_bytes"] == {"table", "partition", "role"}


def panels() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads((DEPLOY / "grafana/dashboards/onefold.json").read_text())["panels"]
    return found


def test_every_metric_of_the_dashboards_is_exposed_with_its_labels() -> None:
    metrics = told()
    queries = [target["expr"] for panel in panels() for target in panel["targets"]]
    assert len({name for query in queries for name in re.findall(r"onefold_\w+", query)}) > 8
    for query in queries:
        labels = set(re.findall(r'(\w+)(?:=|!)~?"', query))
        labels.update(*(each.split(", ") for each in re.findall(r"(?:by|on) \((.*?)\)", query)))
        assert labels - OF_THE_SCRAPE <= set().union(*(metrics[name] for name in re.findall(r"onefold_\w+", query)))


def test_what_kubernetes_scales_by_is_exposed() -> None:
    assert LAG in told()


def test_every_panel_says_what_it_shows() -> None:
    assert all(panel["title"] and panel["description"] for panel in panels())


def test_every_service_is_scraped() -> None:
    (names,) = re.findall(r"names: \[(.*)\]", (DEPLOY / "prometheus.yml").read_text())
    assert sorted(names.split(", ")) == sorted(found_services())
