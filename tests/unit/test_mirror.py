"""What a mirror copies follows from the topologies."""

from __future__ import annotations

import re
from pathlib import Path

import certifi
import pytest
from typer.testing import CliRunner

from shared.dev import cli
from shared.dev.stages import StageFailed
from shared.kafka import access
from shared.operations import mirror
from shared.operations.mirror import mirror_properties, mirrored_topics
from shared.runtime.java import Java
from shared.runtime.settings import Principal
from shared.topology.topics import Table, Topic, Topology

COMMANDS = Topic("books.commands.v1")
BY_YEAR = Topic("books.by-year.v1")
BOOKS = Topology(
    "books",
    topics=(COMMANDS, Topic("books.events.v1"), BY_YEAR),
    tables=(Table("books", source=COMMANDS), Table("years", source=BY_YEAR)),
)


def test_topics_that_can_be_recomputed_are_not_mirrored() -> None:
    assert mirrored_topics([BOOKS]) == ["books.commands.v1", "books.dead.v1", "books.events.v1"]


def test_each_committed_record_is_copied_once_under_its_topic_s_name() -> None:
    properties = mirror_properties(mirrored_topics([BOOKS]), "first:1", "second:2", 3)
    assert properties["first->second.topics"] == "books.commands.v1, books.dead.v1, books.events.v1"
    assert str(properties["replication.policy.class"]).endswith("IdentityReplicationPolicy")
    assert properties["first.consumer.isolation.level"] == "read_committed"
    assert properties["second.exactly.once.source.support"] == "enabled"
    excluded = [each.strip() for each in str(properties["config.properties.exclude"]).split(",")]
    for copied in ("min.insync.replicas", "unclean.leader.election.enable", "retention.ms", "cleanup.policy"):
        assert not any(re.fullmatch(each, copied) for each in excluded)
    assert {value for name, value in properties.items() if name.endswith("replication.factor")} == {3}


def test_a_cluster_is_not_mirrored_onto_itself() -> None:
    """Under the same names every copy would be copied again; after a failover a shell may still name the second one."""
    environment = {"ONEFOLD_BOOTSTRAP": "second-1:9092,second-2:9092"}
    error = CliRunner().invoke(cli.cli, ["mirror", "second-2:9092", "--show"], env=environment).exception
    assert isinstance(error, StageFailed)
    assert "second-2:9092 is where the records come from" in error.problem


def test_a_mirror_signs_in_to_both_clusters_and_shows_no_password(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    signing_in = {"ONEFOLD_KAFKA_USER": "mirror", "ONEFOLD_KAFKA_PASSWORD": "secret"}
    environment = signing_in | {"ONEFOLD_KAFKA_CA": certifi.where()}
    shown = CliRunner().invoke(cli.cli, ["mirror", "second:9092", "--show"], env=environment)
    assert "second.bootstrap.servers=second:9092" in shown.stdout
    assert "secret" not in shown.stdout
    monkeypatch.setattr(access, "_principal", lambda: Principal("mirror", "secret", Path("/ca.pem"), "PLAIN"))
    monkeypatch.setattr(mirror, "Child", lambda *_: None)
    monkeypatch.setattr(mirror, "find_java", lambda: Java(Path("java"), 21))
    monkeypatch.setattr(mirror, "fetch_jars", lambda _: [])
    mirror.Mirror(mirror.signed_in(mirror_properties([], "first:1", "second:2", 3)), tmp_path).start()
    (config,) = tmp_path.iterdir()
    assert config.stat().st_mode & 0o077 == 0
    for cluster in ("first", "second"):
        assert f"{cluster}.security.protocol=SASL_SSL\n{cluster}.sasl.mechanism=PLAIN\n" in config.read_text()
        login = f"{cluster}.sasl.jaas.config=org.apache.kafka.common.security.plain.PlainLoginModule required"
        assert f'{login} username="mirror" password="secret";\n' in config.read_text()
