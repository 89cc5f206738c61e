"""On a broker that authenticates its clients, a service can do all of its own work and nothing else."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicCollection, TopicPartition
from confluent_kafka.admin import (
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)

from shared.dev.stages import StageFailed
from shared.dev.worker import Worker
from shared.kafka.access import signed_in, spark_options
from shared.kafka.reader import Reader, ReadRefused
from shared.kafka.spans import Span, read
from shared.kafka.transactions import Record, TransactionalProducer, TransactionRefused, group_metadata, producer_id
from shared.operations.acls import grant
from shared.runtime.checkout import CHECKOUT
from shared.runtime.positions import Place
from shared.runtime.settings import Mechanism, Principal, Settings
from tests.conftest import accounts_command
from tests.secure.conftest import Secured, password_of, services
from tests.waiting import Deadline

pytestmark = pytest.mark.broker

TIMEOUT_S = 30.0
SERVICES = {name: each.topology for name, each in services().items()}
NEIGHBOURS: dict[str, dict[str, AclOperation]] = {
    "accounts": {},
    "inventory": {},
    "orders": {
        "inventory.commands.v1": AclOperation.WRITE,
        "accounts.commands.v1": AclOperation.WRITE,
        "pickups.commands.v1": AclOperation.WRITE,
        "inventory.events.v1": AclOperation.READ,
        "accounts.events.v1": AclOperation.READ,
    },
    "pickups": {},
    "sales": {"inventory.events.v1": AclOperation.READ, "orders.events.v1": AclOperation.READ},
}


def client(secured: Secured, service: str) -> dict[str, Any]:
    return {"bootstrap.servers": secured.bootstrap} | signed_in(secured.principal(service))


@pytest.mark.parametrize("service", [service for service in NEIGHBOURS if service in SERVICES])
def test_a_service_has_the_topic_rights_of_its_topology_and_no_others(secured: Secured, service: str) -> None:
    own = {AclOperation.READ, AclOperation.WRITE, AclOperation.DESCRIBE}
    expected = {topic.name: own for topic in SERVICES[service].all_topics()}
    expected |= {name: {operation, AclOperation.DESCRIBE} for name, operation in NEIGHBOURS[service].items()}
    every = TopicCollection([topic.name for each in SERVICES.values() for topic in each.all_topics()])
    admin = AdminClient(client(secured, service))
    assert operations(admin.describe_topics(every, include_authorized_operations=True)) == expected


def test_a_service_sees_the_offsets_of_its_own_group_only(secured: Secured) -> None:
    place = TopicPartition("accounts.commands.v1", 0)
    with closing(Consumer(client(secured, "accounts") | {"group.id": "accounts"})) as consumer:
        assert patiently(lambda: consumer.committed([place], TIMEOUT_S))[0].error is None
    admin = AdminClient(client(secured, "accounts"))
    assert refusal(admin.describe_consumer_groups(["orders"])["orders"].result) == KafkaError.GROUP_AUTHORIZATION_FAILED


def test_a_service_cannot_use_another_services_transactional_id(secured: Secured) -> None:
    own = Producer(client(secured, "accounts") | {"transactional.id": producer_id("accounts", "1")})
    own.init_transactions(TIMEOUT_S)
    for another in ("orders", "accounts-archive"):
        anothers = Producer(client(secured, "accounts") | {"transactional.id": producer_id(another, "1")})
        failed = KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
        assert refusal(partial(anothers.init_transactions, TIMEOUT_S)) == failed


def test_history_is_read_without_rights_on_any_consumer_group(secured: Secured) -> None:
    producer = Producer(client(secured, "accounts"))
    producer.produce("accounts.dead.v1", b"read", b"a-1", 0)
    assert producer.flush(TIMEOUT_S) == 0
    (chunk,) = read(client(secured, "accounts"), Span(Place("accounts.dead.v1", 0), 0, 1))
    assert chunk.values == [b"read"]


def test_a_refused_read_says_which_right_to_grant(secured: Secured, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shared.kafka.reader.client_config", lambda _: client(secured, "orders"))

    async def read_on() -> None:
        reader = Reader(secured.bootstrap, "orders")
        reader.assign({Place("accounts.commands.v1", 0): 0})
        try:
            async with asyncio.timeout(TIMEOUT_S):
                while True:
                    await reader.getmany(timeout_ms=100, max_records=1)
        finally:
            await reader.stop()

    with pytest.raises(
        ReadRefused, match=r"accounts\.commands\.v1: .*grant this service's principal READ on the topic"
    ):
        asyncio.run(read_on())


@pytest.mark.parametrize(
    ("group", "transactional_id", "topic", "refused"),
    [
        ("accounts", "accounts_1", "orders.commands.v1", r"orders\.commands\.v1.*; fix: grant .* WRITE on the topic"),
        ("orders", "accounts_1", "accounts.dead.v1", "; fix: grant .* READ on its group"),
        ("accounts", "orders_1", "accounts.dead.v1", "; fix: grant .* its transactional id"),
    ],
    ids=["topic", "group", "transactional id"],
)
def test_a_refused_commit_says_which_right_to_grant(
    secured: Secured, monkeypatch: pytest.MonkeyPatch, group: str, transactional_id: str, topic: str, refused: str
) -> None:
    monkeypatch.setattr("shared.kafka.producer.client_config", lambda _: client(secured, "accounts"))
    producer = TransactionalProducer(secured.bootstrap, transactional_id)

    def write() -> None:
        producer.send([Record(topic, b"a-1", b"", 0)])
        producer.commit({Place("accounts.commands.v1", 0): 1}, group_metadata(group, 1, "worker"))

    with pytest.raises(TransactionRefused, match=f"{refused}$"):
        write()


@pytest.mark.parametrize(
    "mechanism", ["SCRAM-SHA-512", pytest.param("SCRAM-SHA-256", marks=pytest.mark.long), "PLAIN", "OAUTHBEARER"]
)
def test_a_worker_does_its_work_as_its_principal(mechanism: Mechanism, secured: Secured, tmp_path: Path) -> None:
    access = {"bootstrap": secured.addresses[mechanism], "kafka_mechanism": mechanism}
    access |= {"kafka_token_url": secured.tokens} if mechanism == "OAUTHBEARER" else {}
    settings = settings_of(secured, data_dir=tmp_path, log_format="json", **access)
    worker = Worker("accounts", "1", settings, tmp_path / "worker.log", accounts_command)
    try:
        worker.start()
        account = f"{worker.url}/accounts/{mechanism}"
        assert httpx.post(account, timeout=TIMEOUT_S).status_code == 201
        assert httpx.get(account, timeout=TIMEOUT_S).json()["phase"] == "open"
    finally:
        worker.stop()


@pytest.mark.long  # in short, a failed sign-in says why
def test_a_worker_that_may_not_look_up_what_it_needs_stops_and_says_what_to_do(
    secured: Secured, tmp_path: Path
) -> None:
    """As after an upgrade without `grant`."""
    settings = settings_of(secured, data_dir=tmp_path, log_format="json")
    worker = Worker("accounts", "2", settings, tmp_path / "worker.log", accounts_command)
    admin = AdminClient({"bootstrap.servers": secured.operators})
    following = AclBindingFilter(
        ResourceType.GROUP,
        SERVICES["accounts"].next_version.group,
        ResourcePatternType.LITERAL,
        None,  # type: ignore[arg-type]
        None,  # type: ignore[arg-type]
        AclOperation.ANY,
        AclPermissionType.ANY,
    )
    try:
        admin.delete_acls([following])[following].result()
        with pytest.raises(StageFailed, match=r"the worker stops: .*GROUP_AUTHORIZATION_FAILED.*; fix: `grant`"):
            worker.start(TIMEOUT_S)
        assert worker.exit_code
    finally:
        grant([*services().values()], secured.operators)
        worker.stop()


def test_the_password_is_quoted_for_java(monkeypatch: pytest.MonkeyPatch) -> None:
    principal = Principal("accounts", password_of("accounts"), Path("ca.pem"))
    monkeypatch.setattr("shared.kafka.access._principal", lambda: principal)
    login = spark_options("127.0.0.1:9093")["kafka.sasl.jaas.config"]
    assert login.endswith(r' username="accounts" password="only \"accounts\" knows: ß";')


def test_a_failed_sign_in_says_why(secured: Secured) -> None:
    cases = [
        ("ONEFOLD_KAFKA_PASSWORD is wrong", settings_of(secured, kafka_password="a guess")),
        ("not signed by ONEFOLD_KAFKA_CA", settings_of(secured, kafka_ca=secured.wrong_ca)),
        ("ONEFOLD_KAFKA_MECHANISM", settings_of(secured, kafka_mechanism="PLAIN")),
        ("has expired", settings_of(secured, bootstrap=secured.expired)),
    ]
    for reason, process in [(reason, ask_for_topics(settings)) for reason, settings in cases]:
        said = process.communicate(timeout=2 * TIMEOUT_S)[0]
        assert process.returncode != 0
        assert reason in said


def settings_of(secured: Secured, **changes: Any) -> Settings:
    told = {"bootstrap": secured.bootstrap, "kafka_user": "accounts", "kafka_password": password_of("accounts")}
    return Settings(**{**told, "kafka_ca": secured.ca, **changes})


def ask_for_topics(settings: Settings) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "shared.dev.cli", "topics"]
    environment = os.environ | settings.environment()
    output = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    return subprocess.Popen(command, cwd=CHECKOUT, env=environment, **output)  # type: ignore[call-overload,no-any-return]


def operations(asked: Mapping[str, Any]) -> dict[str, set[AclOperation]]:
    """The allowed operations by topic, without the topics that are hidden from the principal."""
    seen = {name: answer for name, answer in asked.items() if answer.exception(TIMEOUT_S) is None}
    hidden = {refusal(answer.result) for name, answer in asked.items() if name not in seen}
    assert hidden <= {KafkaError.TOPIC_AUTHORIZATION_FAILED}
    return {name: set(answer.result().authorized_operations) for name, answer in seen.items()}


def patiently(ask: Callable[[], Any]) -> Any:
    """The answer, once a new broker knows the group's coordinator."""
    deadline = Deadline()
    while True:
        try:
            return ask()
        except KafkaException as failure:
            if failure.args[0].code() != KafkaError.NOT_COORDINATOR:
                raise
            deadline.check(failure)
            time.sleep(0.1)


def refusal(ask: Callable[[], Any]) -> int:
    with pytest.raises(KafkaException) as refused:
        ask()
    return int(refused.value.args[0].code())
