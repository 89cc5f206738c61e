"""What dashboards and alerts query is what a worker of every service exposes, and each alert fires."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest

from shared.dev.kubernetes import LAG
from shared.doctor.finding import Severity
from shared.http.metrics import RequestMetrics, StatusCollector
from shared.runtime.checkout import CHECKOUT, found_services
from shared.runtime.status import Machine, ReplicaStatus, SourceStatus, Status, Trouble

DEPLOY = Path(__file__).parents[3] / "deploy"
ALERTS = (DEPLOY / "alerts.yml").read_text()
CASES = Path(__file__).with_name("alerts.yml")
OF_THE_SCRAPE = {"service", "instance", "job"}
METRIC = re.compile(r"\b(?:onefold_|process_|python_)\w+")
BEHIND = {"lag_records": 1, "lag_seconds": 1.0}
REPLICA = ReplicaStatus(
    table="t", partition=0, role="active", restored=True, position=0, target=0, to_restore=0, size_bytes=1, **BEHIND
)
MACHINE = Machine(memory_bytes=1, memory_limit_bytes=2, disk_bytes=3, disk_free_bytes=2, stores_bytes=1, full_in_s=9)
SOURCE = SourceStatus(topic="t", partition=0, position=0, **BEHIND)


def told() -> dict[str, set[str]]:
    """The labels of a worker's metrics, by their names with the suffixes that Prometheus sees."""
    status = Status(
        service="s", instance="1", url="http://s", ready=True, idle=False, owners={}, replicas=[REPLICA],
        sources=[SOURCE], parked={0: 1}, handled=0, commits=0, aborts=0, waiting=0,
        machine=MACHINE, troubles=[Trouble(topic="t", partition=0, for_s=1, reason="r")],
    )  # fmt: skip
    registry = CollectorRegistry()
    requests = RequestMetrics(registry)
    requests.requests("GET", "/", 200).inc()
    requests.seconds("GET", "/").observe(1)
    requests.lines("/", 200).inc()
    registry.register(StatusCollector(lambda: status))
    ProcessCollector(registry=registry)
    lines = re.findall(r"^(\w+)(.*)", generate_latest(registry).decode(), re.MULTILINE)
    of_the_api = re.findall(r'Gauge\(\s*"(\w+)"', (CHECKOUT / "shared/http/api.py").read_text())  # without labels
    return {name: set(re.findall(r'(\w+)="', labels)) for name, labels in lines} | {name: set() for name in of_the_api}


def test_what_is_left_of_a_workers_machine_is_measured() -> None:
    assert {"onefold_disk_bytes", "onefold_disk_free_bytes", "onefold_memory_limit_bytes"} <= told().keys()
    assert told()["onefold_table_bytes"] == {"table", "partition", "role"}


def panels() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads((DEPLOY / "grafana/dashboards/onefold.json").read_text())["panels"]
    return found


@pytest.mark.parametrize(
    ("queries", "at_least"),
    [
        ([target["expr"] for panel in panels() for target in panel["targets"]], 9),
        (re.findall(r"^        expr: (.*?)^        (?:for|labels):", ALERTS, re.MULTILINE | re.DOTALL), 14),
    ],
    ids=["dashboards", "alerts"],
)
def test_every_metric_that_is_queried_is_exposed_with_its_labels(queries: list[str], at_least: int) -> None:
    metrics = told()
    assert len({name for query in queries for name in METRIC.findall(query)}) >= at_least
    for query in queries:
        labels = set(re.findall(r'(\w+)(?:=|!)~?"', query)) - {"__name__"}
        labels.update(*(each.split(", ") for each in re.findall(r"(?:by|on) \((.*?)\)", query)))
        assert labels - OF_THE_SCRAPE <= set().union(*(metrics[name] for name in METRIC.findall(query)))


def test_every_alert_is_proved_to_fire_and_says_how_bad_it_is() -> None:
    names = re.findall(r"^      - alert: (\w+)", ALERTS, re.MULTILINE)
    assert set(names) == set(re.findall(r'alertname="(\w+)"', CASES.read_text()))
    severities = re.findall(
        r"^        labels: \{severity: (\w+)\}\n        annotations: \{summary: ", ALERTS, re.MULTILINE
    )
    assert len(severities) == len(names)
    assert set(severities) <= {each.name.lower() for each in Severity}


def test_prometheus_own_tool_sees_each_alert_fire_and_no_other(tmp_path: Path) -> None:
    if (promtool := shutil.which("promtool")) is None:
        pytest.skip("no promtool is on the PATH; fix: install your system's package `prometheus`, of 2.43 or newer")
    for file in ("prometheus.yml", "alerts.yml"):  # as Compose places them
        shutil.copy(DEPLOY / file, tmp_path)
    (tmp_path / "services").symlink_to(DEPLOY.parent / "services")
    for task in (["check", "config", str(tmp_path / "prometheus.yml")], ["test", "rules", str(CASES)]):
        run = subprocess.run([promtool, *task], capture_output=True, text=True)
        assert run.returncode == 0, run.stdout + run.stderr


def test_what_kubernetes_scales_by_is_exposed() -> None:
    assert LAG in told()


def test_every_panel_says_what_it_shows() -> None:
    assert all(panel["title"] and panel["description"] for panel in panels())


def test_every_service_is_scraped() -> None:
    jobs = yaml.safe_load((CHECKOUT / "services" / "prometheus.yml").read_text())["scrape_configs"]
    found = [each for job in jobs for each in job.get("dns_sd_configs") or []]  # of no service, and of a team's own
    composed = {name for name in found_services() if (CHECKOUT / "services" / name / "deploy").exists()}
    assert composed <= {name for each in found for name in each["names"]}


def test_prometheus_takes_the_patterns_of_its_files() -> None:
    """It takes a * in a file's name only."""
    config = yaml.safe_load((DEPLOY / "prometheus.yml").read_text())
    patterns = [*config["rule_files"], *config["scrape_config_files"]]
    assert [each for each in patterns if not re.fullmatch(r"[^*]*(\*[^/]*)?", each)] == []
