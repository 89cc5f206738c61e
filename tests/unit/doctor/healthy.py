"""A snapshot of two workers on three brokers with which nothing is wrong."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from shared.doctor.examine import examine
from shared.doctor.finding import Finding
from shared.doctor.snapshot import Snapshot, Told
from shared.http.cluster import Cluster
from shared.http.dead_letters import DeadLetter
from shared.kafka.brokers import Bounds
from shared.operations.provision import Copies, Placement, TopicSpec, declared_topics
from shared.runtime.positions import Place
from shared.runtime.settings import Settings
from tests.accounts.topology import COMMANDS, TOPOLOGY

A, B = "http://a", "http://b"
NOW = 1_000_000.0
GROUP = TOPOLOGY.group
SETTINGS = Settings(replication=3, min_isr=2, standbys=1)
DECLARED = declared_topics([TOPOLOGY], SETTINGS)
PARTITIONS = [Place(topic, number) for topic in DECLARED for number in range(TOPOLOGY.partitions)]
BROKERS = (1, 2, 3)

SEEN = Snapshot(
    SETTINGS,
    [TOPOLOGY],
    NOW,
    Placement(frozenset(BROKERS), dict.fromkeys(PARTITIONS, Copies(BROKERS, BROKERS))),
    DECLARED,
    {name: replace(spec, config={**spec.config, "max.message.bytes": "1048588"}) for name, spec in DECLARED.items()},
    dict.fromkeys(PARTITIONS, Bounds(0, 10, 10)),
    {GROUP: ["1 on a", "2 on b"]},
    {GROUP: {Place(COMMANDS.name, number): 10 for number in range(TOPOLOGY.partitions)}},
    stores=[Path("/data/accounts-1"), Path("/data/accounts-2")],
)


def member(url: str, **more: Any) -> dict[str, Any]:
    return {"url": url, "reachable": True, "instance": url[-1], "ready": True, "idle": False, "troubles": [], **more}


def told(
    *members: dict[str, Any], standbys: int = 1, letters: list[DeadLetter] | None = None, **lag: Any
) -> dict[str, Told]:
    """What the first worker says of all. lag: of each standby."""
    warm = [{"url": B, "lag_records": 0, "lag_seconds": 0.0, **lag}] * standbys
    owned = {"active": A, "restored": True, "to_restore": 0, "standbys": warm}
    counts = dict.fromkeys(("handled", "commits", "aborts", "waiting"), 0)
    own = {"service": GROUP, "owners": {}, "replicas": [], "sources": [], **member(A), **counts}
    tables = {"accounts": [{"partition": number, **owned} for number in range(TOPOLOGY.partitions)]}
    whole = {"members": members or (member(A), member(B)), "tables": tables, "topics": {}}
    cluster = Cluster.model_validate(own | whole)
    return {TOPOLOGY.service: Told(A, cluster, letters or [])}


HEALTHY = replace(SEEN, told=told())


def changed(topic: str, **settings: str) -> Snapshot:
    """The topic found with these settings, by Kafka's names with underscores."""
    spec = HEALTHY.found[topic]
    config = {**spec.config, **{name.replace("_", "."): value for name, value in settings.items()}}
    return replace(HEALTHY, found={**HEALTHY.found, topic: TopicSpec(spec.partitions, spec.replication, config)})


def only(seen: Snapshot) -> Finding:
    """The one thing that is wrong."""
    (finding,) = examine(seen)
    return finding
