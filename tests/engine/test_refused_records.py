"""What leads to a record that its topic does not take is parked; its worker goes on with the other keys."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

from shared.dev.stack import Stack
from shared.kafka.access import client_config
from shared.kafka.murmur2 import partition_of
from shared.topology.topics import Topic
from tests.accounts.topology import ACCOUNTS, COMMANDS, EVENTS, TOPOLOGY
from tests.api.client import Answer, Client
from tests.conftest import accounts_stack, variant_of_accounts
from tests.doctor.patient import FOUND_S, Patient
from tests.engine.parked import ask, await_letter
from tests.waiting import eventually

pytestmark = pytest.mark.broker

A_THIRD = 400_000  # characters, of what a topic takes by default
ROWS = TOPOLOGY.changelog(ACCOUNTS)
FIX = "fix: make the command, event or row smaller, or raise the topic's max.message.bytes"


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """One worker, with states that grow."""

    command = variant_of_accounts("tests.engine.growing_accounts")
    with accounts_stack(tmp_path_factory.mktemp("growing"), workers=1, command=command) as stack:
        yield stack


@pytest.fixture
def client(stack: Stack) -> Client:
    return Client(stack.urls("accounts")[0])


@pytest.mark.long  # in short, the finding, in tests/unit/doctor
def test_the_doctor_sees_it_grow_and_gives_it_room(stack: Stack, client: Client) -> None:
    """First, as a worker tells the largest row that it has written."""
    patient = Patient(stack.settings, [TOPOLOGY], {TOPOLOGY.service: stack.urls(TOPOLOGY.service)})
    account = _account(client)
    with _limited(stack, ROWS, 2**20):
        assert _charge(client, account, A_THIRD).status == 201
        for each in eventually(lambda: patient.findings("row.large"), lambda found: len(found) == 2, FOUND_S):
            patient.treat(each)  # of the row, and of its history
        patient.await_health("row.large")
        assert [_charge(client, account, A_THIRD).status for _ in range(2)] == [201, 201]


def test_a_row_that_grows_too_large_stops_only_the_command_that_makes_it_so(stack: Stack, client: Client) -> None:
    account, other = _account(client), _account(client)
    pid = stack.workers[0].pid
    assert [_charge(client, account, A_THIRD).status for _ in range(2)] == [201, 201]
    refused = _charge(client, account, A_THIRD, "k1")
    assert (refused.status, refused.code) == (500, "record.too_large")
    assert f"{ROWS.name}/{_partition(account)}, key b'{account}': 12" in refused.json["detail"]
    assert refused.json["detail"].endswith(FIX)
    assert _charge(client, other, 1).json["sequence"] == 2
    assert _charge(client, account, 1).json["sequence"] == 4
    assert _charge(client, account, A_THIRD, "k1").body == refused.body
    await_letter(stack, _id(account, refused), code="record.too_large", behind=0)
    with _limited(stack, ROWS, 2**21):
        ask(stack, _id(account, refused), "retry")
        await_letter(stack, _id(account, refused))
        assert client.get(refused.headers["location"]).json["sequence"] == 5
    assert stack.workers[0].pid == pid


@pytest.mark.long  # in short, its first try does
def test_a_retry_whose_row_is_too_large_again_stops_nothing(stack: Stack, client: Client) -> None:
    account = _account(client)
    for _ in range(2):
        assert _charge(client, account, A_THIRD).status == 201
    refused = _charge(client, account, A_THIRD, "k1")
    ask(stack, _id(account, refused), "retry")
    await_letter(stack, _id(account, refused), code="record.too_large", attempts=2)
    assert _charge(client, account, 1).json["sequence"] == 4


@pytest.mark.parametrize("topic", [EVENTS, ROWS], ids=["event", "row"])
def test_while_a_topic_takes_nothing_commands_are_answered_and_kept(stack: Stack, client: Client, topic: Topic) -> None:
    """Of a row, not even the outcome fits."""
    account = f"refused-{uuid.uuid4()}"
    with _limited(stack, topic, 100):
        refused = client.post(f"/accounts/{account}")
        assert (refused.status, refused.code) == (500, "record.too_large")
        assert f"{topic.name}/{_partition(account)}, key b'{account}': " in refused.json["detail"]
        await_letter(stack, _id(account, refused), code="record.too_large")
    ask(stack, _id(account, refused), "retry")
    await_letter(stack, _id(account, refused))
    assert client.get(refused.headers["location"]).json["sequence"] == 1


def _account(client: Client) -> str:
    account = f"growing-{uuid.uuid4()}"
    assert client.post(f"/accounts/{account}").status == 201
    return account


def _charge(client: Client, account: str, cents: int, key: str | None = None) -> Answer:
    headers = {"Idempotency_Key": key or str(uuid.uuid4()), "Prefer": "wait=30"}
    return client.post(f"/accounts/{account}/charges", {"amount_cents": cents}, **headers)


def _partition(account: str) -> int:
    return partition_of(account.encode(), TOPOLOGY.partitions)


def _id(account: str, answer: Answer) -> str:
    """Where the command of this answer is parked."""
    mine = next(part for part in answer.headers["onefold-position"].split(",") if part.startswith(COMMANDS.name))
    return f"accounts/{_partition(account)}/@{COMMANDS.name}@{mine.rpartition('@')[2]}"


@contextmanager
def _limited(stack: Stack, topic: Topic, size_bytes: int) -> Iterator[None]:
    """Inside the block the topic takes batches of records up to this size."""
    _alter(stack.bootstrap, topic, AlterConfigOpType.SET, size_bytes)
    try:
        yield
    finally:
        _alter(stack.bootstrap, topic, AlterConfigOpType.DELETE, size_bytes)


def _alter(bootstrap: str, topic: Topic, operation: AlterConfigOpType, size_bytes: int) -> None:
    limit = ConfigEntry("max.message.bytes", str(size_bytes), incremental_operation=operation)
    resource = ConfigResource(ResourceType.TOPIC, topic.name, incremental_configs=[limit])
    admin = AdminClient(client_config(bootstrap))
    (altered,) = admin.incremental_alter_configs([resource]).values()
    altered.result()
