"""Topics are created as declared, and a difference is reported, never repaired silently."""

import re
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import chain
from math import inf
from pathlib import Path
from types import SimpleNamespace
from uuid import uuid4

import pytest
from typer.testing import CliRunner

from shared.dev import cli, here
from shared.dev.stages import StageFailed
from shared.dev.verbs import brokers
from shared.dev.worker import Worker
from shared.operations import provision as provision_module
from shared.operations.provision import (
    TIMESTAMPS,
    Difference,
    ProvisionError,
    TopicsMissing,
    TopicSpec,
    TopologyMismatch,
    declared_topics,
    differences,
    found_topics,
    load_topologies,
    provision,
    require_topics,
)
from shared.runtime.checkout import found_services
from shared.runtime.settings import Settings
from shared.topology.topics import HOUR_MS, Table, Topic, Topology
from tests.waiting import eventually

COMMANDS = Topic("stock.commands.v1")
TOPOLOGY = Topology("stock", (COMMANDS,), (Table("levels", COMMANDS),), partitions=4)
COMPACTED = {
    "cleanup.policy": "compact",
    "retention.ms": "-1",
    "retention.bytes": "-1",
    "min.insync.replicas": "2",
    "unclean.leader.election.enable": "false",
    "message.timestamp.type": "LogAppendTime",
}


@pytest.fixture
def topology() -> Topology:
    """A topology of its own, so that tests can share one broker."""
    name = f"stock-{uuid4().hex[:8]}"
    commands = Topic(f"{name}.commands.v1")
    return Topology(name, (commands, Topic(f"{name}.events.v1")), (Table("levels", commands),), partitions=4)


def test_every_topic_is_declared_with_the_settings_durability() -> None:
    declared = declared_topics([TOPOLOGY], Settings(replication=3, min_isr=2))
    assert declared.keys() == {
        "stock.commands.v1",
        "stock.dead.v1",
        "stock.parking.v1",
        "stock.routes.v1",
        "stock-levels-changelog",
        "stock-levels-outcomes-changelog",
        "stock-parked-changelog",
    }
    assert declared["stock-levels-changelog"] == TopicSpec(4, 3, COMPACTED)
    kept = {"cleanup.policy": "compact,delete", "retention.ms": str(48 * HOUR_MS)}
    assert declared["stock-levels-outcomes-changelog"] == TopicSpec(4, 3, COMPACTED | kept)
    assert declared["stock.commands.v1"] == TopicSpec(4, 3, COMPACTED | {"cleanup.policy": "delete"})


def test_a_service_may_not_declare_anothers_topic_differently() -> None:
    other = Topology("sales", (COMMANDS,), partitions=8)
    with pytest.raises(ProvisionError, match=r"stock\.commands\.v1 .* sales; fix: "):
        declared_topics([TOPOLOGY, other], Settings())


def test_a_topic_that_is_as_declared_has_no_difference() -> None:
    spec = TopicSpec(4, 3, COMPACTED)
    assert differences({"a": spec}, {"a": replace(spec, config=COMPACTED | {"segment.ms": "1"})}) == []


def test_each_difference_names_topic_setting_both_values_and_the_fix() -> None:
    declared = {"a": TopicSpec(4, 3, COMPACTED), "b": TopicSpec(4, 3, COMPACTED)}
    found = {"a": TopicSpec(8, 1, COMPACTED | {"cleanup.policy": "delete", "retention.ms": "604800000"})}
    assert differences(declared, found) == [
        Difference("a", "partitions", "4", "8"),
        Difference("a", "replication", "3", "1"),
        Difference("a", "cleanup.policy", "compact", "delete"),
        Difference("a", "retention.ms", "-1", "604800000"),
        Difference("b", "topic", "present", "missing"),
    ]
    assert str(Difference("a", "retention.ms", "-1", "604800000")) == (
        "a: retention.ms is 604800000, declared as -1; "
        "fix: `kafka configs --alter --topic a --add-config retention.ms=-1`, "
        "or declare 604800000 if its topology.py names the topic"
    )


@pytest.mark.parametrize(
    ("setting", "declared", "found", "fix"),
    [
        ("unclean.leader.election.enable", "false", "true", "--add-config unclean.leader.election.enable=false`"),
        ("cleanup.policy", "compact", "compact,delete", "--add-config cleanup.policy=compact`"),
        ("min.insync.replicas", "2", "1", "--add-config min.insync.replicas=2`, or set ONEFOLD_MIN_ISR=1"),
    ],
)
def test_a_difference_names_a_fix_that_can_be_carried_out(setting: str, declared: str, found: str, fix: str) -> None:
    assert Difference("a", setting, declared, found).fix.endswith(fix)


def test_no_fix_moves_keys_to_other_partitions() -> None:
    assert Difference("a", "partitions", "8", "12").fix == (
        "if the declaration was changed, declare 12 again, because keys must stay in their partitions; "
        "if the topic was, delete it if it is empty, else restore it from a backup"
    )


def test_more_partitions_than_there_are_name_the_command_that_moves_keys() -> None:
    assert Difference("a", "partitions", "12", "8").fix == (
        "`repartition --partitions 12`, for which all services stand still, or declare 8 again"
    )


@pytest.mark.parametrize("missing", [0, 1])
def test_topics_exits_with_1_when_one_is_not_as_declared(monkeypatch: pytest.MonkeyPatch, missing: int) -> None:
    monkeypatch.setattr(here, "load_topologies", lambda: [TOPOLOGY])
    monkeypatch.setattr(brokers, "found_topics", lambda declared, _: dict(list(declared.items())[missing:]))
    run = CliRunner().invoke(cli.cli, ["topics"], env={"ONEFOLD_BOOTSTRAP": "127.0.0.1:1"})
    assert (run.exit_code, run.output.count("fix: run `provision`")) == (missing, missing)


def test_a_missing_topic_that_provision_does_not_create_has_a_fix_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(provision_module, "_Topics", lambda _: SimpleNamespace(present=dict))
    fix = "run `provision`; if it does not create them, add them to `topics` in the topology.py of their service"
    with pytest.raises(TopicsMissing, match=rf"stock\.commands\.v1; fix: {re.escape(fix)}$"):
        require_topics([COMMANDS.name], 4, "nowhere")


def test_services_are_found_by_folder() -> None:
    assert [topology.service for topology in load_topologies()] == found_services(having="service.py")


def test_a_missing_broker_is_reported_with_its_address(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shared.operations.provision.ANSWER_S", 1.0)
    with pytest.raises(ProvisionError, match=r"no broker answers at 127\.0\.0\.1:1 .*; fix: start the brokers"):
        found_topics(["a"], "127.0.0.1:1")


def test_a_worker_does_not_start_on_a_topic_with_another_partition_count(monkeypatch: pytest.MonkeyPatch) -> None:
    present = {"a": SimpleNamespace(partitions=range(8)), "b": SimpleNamespace(partitions=range(12))}
    monkeypatch.setattr("shared.operations.provision._Topics.present", lambda _: present)
    require_topics(["a"], 8, "127.0.0.1:1")
    with pytest.raises(TopologyMismatch, match="b: partitions is 12, declared as 8; fix: "):
        require_topics(["a", "b"], 8, "127.0.0.1:1")


def test_a_topic_of_another_service_that_a_worker_writes_to_may_have_another_partition_count(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    present = {"a": SimpleNamespace(partitions=range(8)), "b": SimpleNamespace(partitions=range(12))}
    monkeypatch.setattr("shared.operations.provision._Topics.present", lambda _: present)
    require_topics(["a"], 8, "127.0.0.1:1", ["b"])
    with pytest.raises(TopicsMissing, match=r": c; fix: run `provision`"):
        require_topics(["a"], 8, "127.0.0.1:1", ["b", "c"])


@pytest.mark.broker
def test_missing_topics_are_created_once_and_exactly_as_declared(bootstrap: str, topology: Topology) -> None:
    settings = Settings(bootstrap=bootstrap)
    declared = declared_topics([topology], settings)
    assert provision([topology], settings) == sorted(declared)
    assert provision([topology], settings) == []
    assert differences(declared, found_topics(declared, bootstrap)) == []


@pytest.mark.broker
def test_several_processes_may_provision_at_once(bootstrap: str, topology: Topology) -> None:
    settings = Settings(bootstrap=bootstrap)
    with ThreadPoolExecutor(6) as pool:
        created = list(pool.map(lambda _: provision([topology], settings), range(6)))
    assert sorted(chain.from_iterable(created)) == sorted(declared_topics([topology], settings))


@pytest.mark.broker
def test_a_mismatch_is_refused_with_all_differences_and_creates_nothing(bootstrap: str, topology: Topology) -> None:
    settings = Settings(bootstrap=bootstrap)
    provision([topology], settings)
    commands, _ = topology.topics
    new = Topic(f"{topology.service}.new.v1")
    changed = replace(topology, topics=(replace(commands, retention_ms=1000), new), partitions=6)
    with pytest.raises(TopologyMismatch) as refused:
        provision([changed], settings)
    changelogs = ("{}-levels-changelog", "{}-levels-outcomes-changelog", "{}-parked-changelog")
    others = ("{}.dead.v1", "{}.parking.v1", "{}.routes.v1", *changelogs)
    assert refused.value.differences == (
        Difference(commands.name, "partitions", "6", "4"),
        Difference(commands.name, "retention.ms", "1000", "-1"),
        *(Difference(other.format(topology.service), "partitions", "6", "4") for other in others),
    )
    assert found_topics([new.name], bootstrap) == {}


@pytest.mark.broker
def test_topics_that_take_the_time_from_their_writers_are_changed(bootstrap: str, topology: Topology) -> None:
    """Those of an earlier release. No record changes, and no setting with which any could be lost."""
    settings = Settings(bootstrap=bootstrap)
    specs = declared_topics([topology], settings)
    earlier = {name: replace(spec, config={**spec.config, TIMESTAMPS: "CreateTime"}) for name, spec in specs.items()}
    provision_module._Topics(bootstrap).create(earlier, deadline=inf)
    eventually(lambda: found_topics(specs, bootstrap).keys() == specs.keys())
    assert provision([topology], settings) == []
    assert differences(specs, found_topics(specs, bootstrap)) == []


@pytest.mark.broker
def test_too_few_brokers_for_the_replication_are_reported_in_the_brokers_words(
    bootstrap: str, topology: Topology
) -> None:
    with pytest.raises(ProvisionError, match=r"was not created: .*replication factor of 3 cannot be reached"):
        provision([topology], Settings(bootstrap=bootstrap, replication=3, min_isr=2))


@pytest.mark.broker
def test_a_worker_without_its_topics_says_so_and_exits(bootstrap: str, tmp_path: Path) -> None:
    settings = Settings(bootstrap=bootstrap, data_dir=tmp_path / "stores", log_format="json")
    worker = Worker("accounts", "1", settings, tmp_path / "worker.log")
    try:
        with pytest.raises(StageFailed, match=r"accounts\.commands\.v1, .*; fix: run `provision`"):
            worker.start()
    finally:
        worker.kill()
