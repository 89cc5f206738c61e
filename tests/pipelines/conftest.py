"""One Spark session and one broker for all tests of this folder; topics of its own for each test."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from msgspec import structs

from services.accounts.domain.commands import AccountCommand
from services.accounts.domain.decide import DECIDER
from services.accounts.domain.events import AccountOpened
from services.accounts.domain.state import Open
from shared.dev.embedded import EmbeddedKafka
from shared.dev.stack import Stack
from shared.dev.worker import faust_command
from shared.domain.outcomes import OUTCOME_CODEC, key_of, row_of
from shared.domain.row import Outcome, Row
from shared.domain.step import step
from shared.kafka.brokers import Brokers
from shared.kafka.murmur2 import partition_of
from shared.kafka.producer import producer_config
from shared.operations.provision import provision
from shared.parking.parked import PARKED_CODEC, Parked, partition_of_id
from shared.runtime.settings import Settings
from shared.topology.topics import Table, Topic, Topology
from tests.conftest import accounts_stack
from tests.faults.log import read_whole
from tests.waiting import eventually

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from pipelines.catalog import FoldedTable

if not find_spec("pyspark"):
    collect_ignore_glob = ["test_*"]

FIRST_DAY = datetime(1997, 1, 1, tzinfo=UTC)
PARTITIONS = 3


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "tests/pipelines" in item.path.as_posix():
            item.add_marker(pytest.mark.broker)
            item.add_marker(pytest.mark.spark)
            # PySpark leaves its sockets to the garbage collector to close
            item.add_marker(pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning"))


@pytest.fixture(scope="package")
def spark() -> Iterator[SparkSession]:
    from pipelines.session import spark_session

    with spark_session("tests", cores=2) as session:
        yield session


@pytest.fixture
def executors_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files that tasks write are on another machine."""
    from pipelines import sinks

    filed: Any = sinks._filed
    monkeypatch.setattr(sinks, "_filed", lambda folder, *given: filed(Path(f"{folder}-of-an-executor"), *given))


@pytest.fixture(scope="package")
def bootstrap(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    root = tmp_path_factory.mktemp("kafka")
    with EmbeddedKafka(root / "data", root / "logs") as kafka:
        yield kafka.bootstrap


@pytest.fixture(scope="package")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """Two workers of the service, whose tables the pipelines find by its name."""
    with accounts_stack(tmp_path_factory.mktemp("stack"), workers=2, command=faust_command) as stack:
        yield stack


@dataclass
class Ledger:
    """Accounts as the engine writes them: a command's events and its account's row in one transaction."""

    bootstrap: str
    table: FoldedTable
    rows: dict[str, Row[Any]] = field(default_factory=dict)
    _offsets: dict[int, int] = field(default_factory=dict)
    _ids: Iterator[int] = field(default_factory=itertools.count)

    def __post_init__(self) -> None:
        config = producer_config(self.bootstrap, transactional_id=self.table.topology.service) | {"log_level": 0}
        self._producer = Producer(config)
        self._producer.init_transactions(30)

    def decide(self, *commands: tuple[str, AccountCommand], same_day: bool = False) -> None:
        self._produce(commands, same_day)
        self._producer.commit_transaction(30)

    def decide_but_abort(self, *commands: tuple[str, AccountCommand]) -> None:
        """Leaves what a worker leaves that died in its transaction: records that nobody may see."""
        before = dict(self.rows)
        self._produce(commands)
        self._producer.abort_transaction(30)
        self.rows = before

    def put_row(self, account: str, value: bytes | None) -> None:
        self._put(self.table.changelog, account, value)

    def put_outcome(self, account: str, outcome: Outcome, at: int) -> None:
        topology, key = self.table.topology, key_of(account, outcome.command_id).decode()
        assert topology.outcomes is not None
        place = partition_of(account.encode(), PARTITIONS)
        self._write(
            topology.changelog(topology.outcomes).name, key, OUTCOME_CODEC.encode(row_of(outcome, at, 0)), place
        )

    def put_event(self, account: str, value: bytes) -> None:
        self._put(self.table.events.name, account, value)

    def park(self, row_id: str) -> None:
        """Writes the parked row of a record that could not be handled. row_id: processor, partition and key."""
        processor, partition, _ = row_id.split("/")
        place = {"processor": processor, "topic": self.table.table.source.name, "partition": int(partition)}
        parked = Parked(**place, offset=3, code="message.bad", reason="not JSON", attempts=1)
        self._put_parked(row_id, PARKED_CODEC.encode(Row(1, parked, {}, 3)))

    def release(self, row_id: str) -> None:
        self._put_parked(row_id, None)

    def tamper(self, account: str, sequence: int | None = None, **state: Any) -> None:
        """Writes the account's row once more, altered."""
        row = self.rows[account]
        altered = structs.replace(row, sequence=sequence or row.sequence, state=row.state.model_copy(update=state))
        self.put_row(account, DECIDER.row_codec.encode(altered))

    def miscount(self, account: str, cents: int) -> None:
        """Makes the account's rows wrong by so much from now on."""
        row = self.rows[account]
        self.rows[account] = structs.replace(row, state=Open(balance_cents=row.state.balance_cents + cents))

    def event(self, account: str, sequence: int) -> bytes:
        return DECIDER.event_codec.write(
            AccountOpened(),
            event_id="e",
            aggregate_id=account,
            sequence=sequence,
            occurred_at=FIRST_DAY,
            correlation_id="c",
        )

    def forget(self) -> None:
        """Deletes every record in the events topic, as retention does in time."""
        forget(self.bootstrap, self.table.events.name)

    def make_again(self) -> None:
        """Deletes the topic of events and creates it, as `repartition` does."""
        brokers, name = Brokers(self.bootstrap), self.table.events.name
        admin = AdminClient({"bootstrap.servers": self.bootstrap})
        admin.delete_topics([name])[name].result(60)
        eventually(lambda: brokers.has(name), lambda there: not there)
        provision([self.table.topology], Settings(bootstrap=self.bootstrap))
        eventually(lambda: brokers.has(name))
        self.__post_init__()  # a producer numbers what it sends to a topic, whichever that is

    def encoded_row(self, account: str) -> bytes:
        return DECIDER.row_codec.encode(self.rows[account])

    def _put_parked(self, row_id: str, value: bytes | None) -> None:
        topology = self.table.topology
        self._write(topology.changelog(topology.parked).name, row_id, value, partition_of_id(row_id))

    def _put(self, topic: str, account: str, value: bytes | None) -> None:
        self._write(topic, account, value, partition_of(account.encode(), PARTITIONS))

    def _write(self, topic: str, key: str, value: bytes | None, partition: int) -> None:
        self._producer.begin_transaction()
        self._producer.produce(topic, value, key.encode(), partition)
        self._producer.commit_transaction(30)

    def _produce(self, commands: tuple[tuple[str, AccountCommand], ...], same_day: bool = False) -> None:
        self._producer.begin_transaction()
        for account, command in commands:
            key, number = account.encode(), next(self._ids)
            partition = partition_of(key, PARTITIONS)
            issued_at = FIRST_DAY + timedelta(days=0 if same_day else number)
            envelope = DECIDER.command_codec.wrap(
                command, command_id=f"c{number}", aggregate_id=account, issued_at=issued_at
            )
            done = step(DECIDER, self.rows.get(account, DECIDER.initial_row), envelope, self._next(partition))
            self.rows[account] = done.row
            for event in done.events:
                self._producer.produce(self.table.events.name, event, key, partition)
            self._producer.produce(self.table.changelog, self.encoded_row(account), key, partition)
        self._producer.flush()

    def _next(self, partition: int) -> int:
        self._offsets[partition] = self._offsets.get(partition, -1) + 1
        return self._offsets[partition]


def forget(bootstrap: str, topic: str) -> None:
    """Deletes every record of the topic."""
    ends = Brokers(bootstrap).settled_ends(topic)
    wanted = [TopicPartition(topic, partition, end) for partition, end in ends.items()]
    admin = AdminClient({"bootstrap.servers": bootstrap})  # kept until it has the answers
    for deleted in admin.delete_records(wanted).values():
        deleted.result(60)


class Record(NamedTuple):
    partition: int
    key: bytes
    value: bytes | None


def read_records(bootstrap: str, topic: str) -> list[Record]:
    """All committed records, in order within each partition."""
    found = read_whole(bootstrap, topic)
    return [Record(partition, read.key or b"", read.value) for (_, partition), reads in found.items() for read in reads]


def next_version(service: str) -> list[str]:
    """The command of a worker that declares version 2."""
    return [sys.executable, "-m", "faust", "-A", f"tests.pipelines.next_{service}", "worker", "--without-web"]


def latest(records: Iterable[Record]) -> dict[bytes, bytes | None]:
    return {record.key: record.value for record in records}


_SERVICES = itertools.count(1)


@pytest.fixture
def ledger(bootstrap: str) -> Ledger:
    """An empty ledger in topics of its own, computed by the domain of accounts."""
    from pipelines.catalog import table_of

    name = f"ledger{next(_SERVICES)}"
    commands, events = Topic(f"{name}.commands.v1"), Topic(f"{name}.events.v1")
    table = Table("accounts", source=commands)
    topology = Topology(name, topics=(commands, events), tables=(table,), partitions=PARTITIONS)
    provision([topology], Settings(bootstrap=bootstrap))
    described = replace(table_of("accounts", "accounts"), topology=topology, table=table, events=events)
    return Ledger(bootstrap, described)
