"""The embedded cluster keeps its data and says what is wrong, whatever process is killed, port taken or disk full."""

from __future__ import annotations

import os
import resource
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic, ResourceType

from shared.dev import embedded
from shared.dev.embedded import BrokerFailed, EmbeddedKafka
from tests.waiting import eventually

pytestmark = pytest.mark.broker

TOPIC = "facts"
RECORDS = [b"%d" % number for number in range(100)]


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedKafka]:
    """One broker with a filled topic."""
    root = tmp_path_factory.mktemp("one broker, é")
    with EmbeddedKafka(root / "data", root / "logs", properties={"message.max.bytes": 300_000}) as kafka:
        create(kafka, replication=1)
        write(kafka, RECORDS)
        yield kafka


Config = dict[str, str | int | float | bool]


def client(kafka: EmbeddedKafka, settings: Config | None = None) -> Config:
    return {"bootstrap.servers": kafka.bootstrap, "log_level": 0, **(settings or {})}


def create(kafka: EmbeddedKafka, replication: int) -> None:
    admin = AdminClient(client(kafka))
    admin.create_topics([NewTopic(TOPIC, 1, replication)])[TOPIC].result()


def write(kafka: EmbeddedKafka, records: list[bytes]) -> None:
    """Returns when every record is acknowledged by all in-sync replicas."""
    producer = Producer(client(kafka, {"acks": "all", "enable.idempotence": True}))
    refused: list[object] = []
    for record in records:
        producer.produce(TOPIC, record, on_delivery=lambda error, _: refused.append(error) if error else None)
    assert producer.flush(30) == 0
    assert refused == []


def read(kafka: EmbeddedKafka, count: int) -> list[bytes | None]:
    consumer = Consumer(client(kafka, {"group.id": "reader", "enable.auto.commit": False}))
    try:
        consumer.assign([TopicPartition(TOPIC, 0, 0)])
        return [message.value() for message in consumer.consume(count, timeout=30)]
    finally:
        consumer.close()


def test_the_broker_runs_with_safe_settings_and_the_given_ones(kafka: EmbeddedKafka) -> None:
    broker = ConfigResource(ResourceType.BROKER, "1")
    admin = AdminClient(client(kafka))
    found = admin.describe_configs([broker])[broker].result()
    expected = {
        "auto.create.topics.enable": "false",
        "unclean.leader.election.enable": "false",
        "min.insync.replicas": "1",
        "message.max.bytes": "300000",
    }
    assert {name: found[name].value for name in expected} == expected


def test_an_undeclared_topic_is_not_created(kafka: EmbeddedKafka) -> None:
    producer = Producer(client(kafka, {"message.timeout.ms": 1000}))
    problems: list[object] = []
    producer.produce("undeclared", b"", on_delivery=lambda error, _: problems.append(error))
    producer.flush(10)
    assert len(problems) == 1
    assert problems[0] is not None
    assert "undeclared" not in AdminClient(client(kafka)).list_topics(timeout=5).topics


def test_a_paused_broker_is_silent_until_resumed(kafka: EmbeddedKafka) -> None:
    admin = AdminClient(client(kafka))
    assert admin.list_topics(timeout=30).brokers  # connected: from here on, silence is the broker's

    def silent() -> bool:
        """An answer may have been on its way."""
        with suppress(KafkaException):
            admin.list_topics(timeout=2)
            return False
        return True

    kafka.pause(1)
    try:
        eventually(silent)
    finally:
        kafka.resume(1)
    assert admin.list_topics(timeout=30).brokers


def test_data_and_port_survive_a_restart(kafka: EmbeddedKafka) -> None:
    bootstrap = kafka.bootstrap
    kafka.restart(1)
    assert kafka.bootstrap == bootstrap
    assert read(kafka, 100) == RECORDS


def test_a_port_that_was_taken_while_the_broker_was_down_is_named(kafka: EmbeddedKafka) -> None:
    kafka.kill(1)
    port = kafka.bootstrap.partition(":")[2]
    with taken(kafka.bootstrap), pytest.raises(BrokerFailed, match=f"another program uses its port {port}"):
        kafka.restart(1)


@pytest.mark.long  # in short, data and port survive a restart
def test_a_new_port_is_chosen_for_a_taken_one_and_the_data_stay(kafka: EmbeddedKafka) -> None:
    earlier = kafka.bootstrap
    kafka.stop()
    with taken(earlier):
        kafka.start()
    assert kafka.bootstrap != earlier
    assert read(kafka, 100) == RECORDS


def test_a_folder_in_use_is_refused(kafka: EmbeddedKafka, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedded, "_LOCK_DEADLINE_S", 0.0)
    with pytest.raises(BrokerFailed, match="is in use by running brokers"):
        EmbeddedKafka(kafka._data_dir, kafka._log_dir).start()
    kafka.check()


def test_a_cluster_of_another_size_is_refused(kafka: EmbeddedKafka) -> None:
    kafka.stop()
    with pytest.raises(BrokerFailed, match="holds a cluster of 1, not of 3"):
        EmbeddedKafka(kafka._data_dir, kafka._log_dir, brokers=3).start()


ORPHAN = """
import pathlib, sys
from shared.dev.embedded import EmbeddedKafka
kafka = EmbeddedKafka(pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[1]))
kafka.start()
print("started", flush=True)
sys.stdin.read()
"""


def test_a_broker_ends_when_its_parent_process_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedded, "_LOCK_DEADLINE_S", 60.0)
    parent = subprocess.Popen(
        [sys.executable, "-c", ORPHAN, tmp_path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with parent:
        assert parent.stdout is not None
        assert parent.stdout.readline() == "started\n"
        parent.kill()
    os.close(embedded._exclusive(tmp_path / "lock"))
    assert "shut down completed" in (tmp_path / "kafka-1.log").read_text()


def test_a_full_disk_is_reported_with_the_log(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", ORPHAN, tmp_path],
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (2_000_000, 2_000_000)),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )
    assert f"BrokerFailed: broker 1 ended with code 1; the last errors in {tmp_path}/kafka-1.log" in done.stderr
    assert "java.io.IOException: File too large" in done.stderr


@pytest.mark.long
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_the_first_broker_leaves_its_classes_to_the_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedded, "user_cache", lambda: tmp_path)
    monkeypatch.setattr(embedded, "_STOP_DEADLINE_S", 90.0)  # what is late is left out
    for number in (1, 2):
        with EmbeddedKafka(tmp_path / f"data{number}", tmp_path / "logs") as kafka:
            maps = Path(f"/proc/{broker_pid(kafka)}/maps").read_text()
            assert [str(file) in maps for file in tmp_path.glob("kafka-classes-*.jsa")] == [True] * (number - 1)
    assert len([*tmp_path.glob("kafka-classes-*")]) == 1


def broker_pid(kafka: EmbeddedKafka) -> int:
    process = kafka._brokers[1]._process
    assert process is not None
    return process.pid


@pytest.mark.long  # in short, workers and their load lose nothing in the same case, in tests/faults
def test_three_brokers_lose_nothing_when_one_is_killed(tmp_path: Path) -> None:
    with EmbeddedKafka(tmp_path / "data", tmp_path / "logs", brokers=3) as kafka:
        create(kafka, replication=3)
        write(kafka, RECORDS[:50])
        admin = AdminClient(client(kafka))
        leader = admin.list_topics(TOPIC, timeout=10).topics[TOPIC].partitions[0].leader
        kafka.kill(leader)
        write(kafka, RECORDS[50:])
        assert read(kafka, 100) == RECORDS
        kafka.restart(leader)
        eventually(lambda: len(admin.list_topics(timeout=10).brokers), lambda found: found == 3)
        for number in (1, 2, 3):
            kafka.kill(number)  # an orderly end of all three takes five seconds


@contextmanager
def taken(address: str) -> Iterator[None]:
    host, _, port = address.partition(":")
    with socket.create_server((host, int(port))):
        yield
