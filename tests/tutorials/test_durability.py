"""What docs/tutorials/durability.md says: an answer survives the loss of any broker, and what would lose it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from services.accounts.topology import COMMANDS, TOPOLOGY
from shared.dev.embedded import EmbeddedKafka
from shared.dev.stack import Stack
from shared.dev.worker import faust_command
from shared.kafka.murmur2 import partition_of
from shared.kafka.producer import CommandProducer
from shared.topology.topics import Topic, Topology
from tests.conftest import accounts_stack
from tests.waiting import Deadline

pytestmark = pytest.mark.timeout(600)

LOSSY = Topic("orders.commands.v1")
CENTS = 100
DEADLINE_S = 120.0
HEAD_START_S = 5.0


class Customer:
    """One account; each charge's Idempotency-Key has its number."""

    def __init__(self, stack: Stack, account_id: str) -> None:
        self._account = f"{stack.workers[0].url}/accounts/{account_id}"
        self.partition = partition_of(account_id.encode(), TOPOLOGY.partitions)
        insist(lambda: httpx.post(self._account, timeout=60.0), 201)

    def charge(self, number: int) -> httpx.Response:
        body, headers = {"amount_cents": CENTS}, {"Idempotency-Key": f"charge-{number}"}
        return httpx.post(f"{self._account}/charges", json=body, headers=headers, timeout=60.0)

    def balance_cents(self) -> int:
        return int(insist(lambda: httpx.get(self._account, timeout=60.0), 200).json()["balance_cents"])


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    with accounts_stack(tmp_path_factory.mktemp("durable"), workers=1, brokers=3, command=faust_command) as stack:
        yield stack


@pytest.mark.parametrize("first_back", ["the first lost", "the last lost"])
def test_answered_charges_survive_whichever_broker_comes_back_first(stack: Stack, first_back: str) -> None:
    customer = Customer(stack, first_back.replace(" ", "-"))
    leader, *followers = replicas(stack.bootstrap, COMMANDS.name, customer.partition)
    assert customer.charge(1).status_code == 201
    stack.kafka.kill(followers[0])
    insist(lambda: customer.charge(2), 201)
    stack.kafka.kill(followers[1])
    assert customer.charge(3).status_code == 503
    stack.kafka.kill(leader)
    lost = [*followers, leader]
    come_back(stack.kafka, lost if first_back == "the first lost" else lost[::-1])
    insist(lambda: customer.charge(3), 201)
    assert customer.balance_cents() == 3 * CENTS


def test_an_answer_that_needs_only_one_replica_can_be_lost(tmp_path_factory: pytest.TempPathFactory) -> None:
    root = tmp_path_factory.mktemp("lossy")
    with EmbeddedKafka(root / "data", root / "logs", brokers=3) as kafka:
        config = {"min.insync.replicas": "1", "unclean.leader.election.enable": "true"}
        admin = AdminClient({"bootstrap.servers": kafka.bootstrap, "log_level": 0})
        admin.create_topics([NewTopic(LOSSY.name, 1, 2, config=config)])[LOSSY.name].result()
        assert send(kafka, b"kept") == 0
        leader, follower = replicas(kafka.bootstrap, LOSSY.name, 0)
        kafka.kill(follower)
        assert send(kafka, b"answered") == 1
        kafka.kill(leader)
        kafka.restart(follower)
        assert send(kafka, b"in its place") == 1
        kafka.restart(leader)
        assert values(kafka.bootstrap, 2) == [b"kept", b"in its place"]


def replicas(bootstrap: str, topic: str, partition: int) -> list[int]:
    """The leader, then the followers."""
    found = AdminClient({"bootstrap.servers": bootstrap}).list_topics(topic, timeout=30).topics[topic]
    leader = found.partitions[partition].leader
    return [leader, *(number for number in found.partitions[partition].replicas if number != leader)]


def come_back(kafka: EmbeddedKafka, order: Sequence[int]) -> None:
    """Restarts each broker a little after the one before; the first can't answer until the second makes a majority."""
    with ThreadPoolExecutor(len(order)) as pool:
        starts = []
        for number in order:
            starts.append(pool.submit(kafka.restart, number))
            time.sleep(HEAD_START_S)
    for start in starts:
        start.result()


def insist(request: Callable[[], httpx.Response], status: int) -> httpx.Response:
    """The answer with this status; asks again while the answer is 503."""
    deadline = Deadline(DEADLINE_S)
    while (answer := request()).status_code != status:
        assert answer.status_code == 503, answer.text
        deadline.check(answer.text)
        time.sleep(0.5)
    return answer


def send(kafka: EmbeddedKafka, value: bytes) -> int:
    """The offset that all in-sync replicas acknowledged."""

    async def main() -> int:
        producer = CommandProducer(kafka.bootstrap, [Topology("orders", (LOSSY,), partitions=1)])
        _, offset = await producer.send(LOSSY.name, b"o-1", value)
        return offset

    return asyncio.run(main())


def values(bootstrap: str, count: int) -> list[bytes | None]:
    reader = Consumer({"bootstrap.servers": bootstrap, "group.id": "reader"})
    reader.assign([TopicPartition(LOSSY.name, 0, 0)])
    found = [message.value() for message in reader.consume(count, timeout=60)]
    reader.close()
    return found
