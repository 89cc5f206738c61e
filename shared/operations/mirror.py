"""MirrorMaker 2, from Kafka's own jars: copies what services write to a second cluster as it is committed."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Self

from shared.domain.errors import OnefoldError
from shared.kafka.access import java_flags, java_options
from shared.kafka.producer import MAX_RECORD_BYTES
from shared.runtime.child import Child
from shared.runtime.jars import KAFKA_JARS, MIRROR_JARS, fetch_jars
from shared.runtime.java import as_properties, find_java
from shared.topology.topics import Topology

_KINDS = frozenset({"commands", "events", "timers", "public", "dead"})
_COPIES = (
    "replication.factor",
    "config.storage.replication.factor",
    "offset.storage.replication.factor",
    "status.storage.replication.factor",
    "offset-syncs.topic.replication.factor",
    "checkpoints.topic.replication.factor",
    "heartbeats.topic.replication.factor",
)
# MirrorMaker's defaults but min.insync.replicas and unclean.leader.election.enable, which keep data safe there, too
_NOT_COPIED = (
    r"follower\.replication\.throttled\.replicas",
    r"leader\.replication\.throttled\.replicas",
    r"message\.timestamp\.(difference\.max\.ms|type)",
    r"log\.message\.timestamp\.(before|after)\.max\.ms",
)
_STOP_DEADLINE_S = 30.0


def mirrored_topics(topologies: Iterable[Topology]) -> list[str]:
    """Topics that can't be computed again. Changelogs and rekeyed copies can, and hold this cluster's offsets."""
    topics = {topic for topology in topologies for topic in (*topology.topics, topology.dead_letters)}
    return sorted(topic.name for topic in topics if topic.kind in _KINDS)


def mirror_properties(topics: Iterable[str], source: str, target: str, replication: int) -> dict[str, str | int]:
    """MirrorMaker's configuration: same topic names, committed records only, each once. source, target: bootstrap."""
    return {
        "clusters": "first, second",
        "first.bootstrap.servers": source,
        "second.bootstrap.servers": target,
        "first->second.enabled": "true",
        "first->second.topics": ", ".join(topics),
        "replication.policy.class": "org.apache.kafka.connect.mirror.IdentityReplicationPolicy",
        "first.consumer.isolation.level": "read_committed",
        "second.exactly.once.source.support": "enabled",
        "second.producer.max.request.size": MAX_RECORD_BYTES,
        "dedicated.mode.enable.internal.rest": "true",
        "listeners": "http://127.0.0.1:0",
        "tasks.max": 2,
        "refresh.topics.interval.seconds": 10,
        "config.properties.exclude": ", ".join(_NOT_COPIED),
        "sync.topic.acls.enabled": "false",  # `grant` creates them
        # the first cluster is only read: heartbeats would also go the other way
        "offset-syncs.topic.location": "target",
        "emit.heartbeats.enabled": "false",
        **dict.fromkeys(_COPIES, replication),
    }


def signed_in(properties: dict[str, str | int]) -> dict[str, str | int]:
    """The same, with which MirrorMaker connects to both clusters as this process's principal, if it has one."""
    options = {name: value for name, value in java_options("").items() if name != "bootstrap.servers"}
    return properties | {
        f"{cluster}.{name}": value for cluster in ("first", "second") for name, value in options.items()
    }


class MirrorFailed(OnefoldError):
    """MirrorMaker ended by itself.

    Operator action: read its log, which the message names.
    """


class Mirror:
    """MirrorMaker in a process of its own, which ends with the process that started it."""

    def __init__(self, properties: dict[str, str | int], folder: Path) -> None:
        """folder: for MirrorMaker's configuration and log."""
        self.log = folder / "mirror.log"
        self._config = folder / "mirror.properties"
        self._properties = properties
        self._process: Child | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        """Returns at once. Raises JavaUnavailable or JarsUnavailable."""
        java, jars = find_java(), [*fetch_jars(KAFKA_JARS), *fetch_jars(MIRROR_JARS)]
        self._config.parent.mkdir(parents=True, exist_ok=True)
        self._config.unlink(missing_ok=True)
        with os.fdopen(os.open(self._config, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(as_properties(self._properties))  # it may have a password
        command = [*java.kafka(jars, java_flags()), "org.apache.kafka.connect.mirror.MirrorMaker", str(self._config)]
        self._process = Child(command, self.log)

    def wait(self) -> None:
        """Returns once MirrorMaker has ended by itself."""
        if self._process is not None:
            self._process.wait()

    def check(self) -> None:
        """Raises MirrorFailed if MirrorMaker has ended by itself."""
        if self._process is not None and self._process.exit_code is not None:
            raise MirrorFailed(f"MirrorMaker ended with {self._process.exit_code}: see {self.log}")

    def stop(self) -> None:
        """SIGTERM, so that it ends its transactions, and SIGKILL if it takes too long."""
        if self._process is not None:
            self._process.terminate()
            self._process.wait(_STOP_DEADLINE_S)
            self._process.kill()
            self._process = None
