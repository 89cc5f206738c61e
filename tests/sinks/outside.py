"""A service's topics, the processes that fill its sinks, and what their database should have."""

from __future__ import annotations

import os
import random
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from confluent_kafka import Producer
from pydantic import SecretStr
from sqlalchemy import create_engine, select

from shared.domain.envelope import EventCodec
from shared.domain.row import Row, RowCodec
from shared.kafka.brokers import Brokers
from shared.kafka.producer import producer_config
from shared.kafka.spans import read_all
from shared.runtime.checkout import CHECKOUT
from shared.runtime.child import Child
from shared.runtime.settings import PREFIX, Settings
from shared.sinks.sink import Changed, Sink, Values
from shared.topology.topics import Topology
from tests.accounts.domain.events import AccountCharged, AccountEvent, AccountOpened, PaymentReceived
from tests.accounts.domain.state import Account, Closed, Open
from tests.accounts.domain.upcasters import UPCASTERS

LEASE_S = 1.5
_OF_THE_TESTS = (sys.executable, "-P", "-m", "tests.sinks.sinking")
_NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
_ROWS = RowCodec[Account](Account)
_EVENTS = EventCodec[AccountEvent]((AccountOpened, AccountCharged, PaymentReceived), UPCASTERS)


class Log:
    """Writes rows into the changelog of accounts, and events beside them, as its workers would."""

    def __init__(self, bootstrap: str, topology: Topology, seed: int = 1) -> None:
        self.bootstrap = bootstrap
        self._changelog = topology.changelog(topology.tables[0]).name
        self._events = topology.topics[1].name
        self._partitions = topology.partitions
        self._chance = random.Random(seed)
        self._sequence: dict[str, int] = {}
        self._producer = Producer(producer_config(bootstrap, transactional_id=f"log-{topology.service}-{seed}"))
        self._producer.init_transactions(30)

    def write(self, count: int, *, abort: bool = False) -> None:
        """`count` changes of some 300 accounts in one transaction: charges, payments, closures and deletions."""
        self._producer.begin_transaction()
        before = dict(self._sequence)
        for _ in range(count):
            self._change(f"account-{self._chance.randrange(300)}")
            self._producer.poll(0)
        self._producer.flush(60)
        if abort:
            self._sequence = before
            self._producer.abort_transaction(60)
        else:
            self._producer.commit_transaction(60)

    def put(self, topic: str, key: str, value: bytes | None) -> None:
        self._producer.begin_transaction()
        self._producer.produce(topic, value, key.encode(), 0)
        self._producer.commit_transaction(60)

    def _change(self, account: str) -> None:
        sequence = self._sequence[account] = self._sequence.get(account, 0) + 1
        cents, what = self._chance.randrange(1, 10_000), self._chance.random()
        state: Account = Closed() if what < 0.05 else Open(balance_cents=cents)
        row = None if what > 0.95 else row_of(state, sequence)
        event: AccountEvent = AccountCharged(amount_cents=cents) if what < 0.5 else PaymentReceived(amount_cents=cents)
        partition = hash_of(account) % self._partitions
        self._producer.produce(self._changelog, row, account.encode(), partition)
        self._producer.produce(self._events, event_of(event, account, sequence), account.encode(), partition)


def hash_of(account: str) -> int:
    return int(account.rpartition("-")[2])


def row_of(state: Account, sequence: int) -> bytes:
    return _ROWS.encode(Row(sequence, state, {}, offset=0))


def event_of(event: AccountEvent, account: str, sequence: int) -> bytes:
    return _EVENTS.write(
        event,
        event_id=f"{account}-{sequence}",
        aggregate_id=account,
        sequence=sequence,
        occurred_at=_NOON,
        correlation_id="story",
    )


def expected(sink: Sink, topology: Topology, bootstrap: str) -> dict[Values, Values]:
    """What `rows` makes of all records there are, one after the other."""
    changed: Changed = {}
    for _, key, value in read_all(Brokers(bootstrap), sink.source.topic_in(topology)):
        decoded = sink.source.decode(value)
        if sink.source.passes(decoded):
            sink.change(changed, (key or b"").decode(), decoded)
    return {key: values for key, values in changed.items() if values is not None}


def found(sink: Sink, url: str) -> dict[Values, Values]:
    """What the database has."""
    engine = create_engine(url)
    with engine.connect() as connection:
        rows = [tuple(map(_comparable, row)) for row in connection.execute(select(sink.table))]
    engine.dispose()
    places = [sink.names.index(name) for name in sink.key_names]
    return {tuple(row[place] for place in places): row for row in rows}


def _comparable(value: Any) -> Any:
    """SQLite returns times as they were written, without their zone."""
    return value.replace(tzinfo=UTC) if isinstance(value, datetime) else value


class SinkProcess:
    """One process of `sink run`."""

    def __init__(
        self, name: str, folder: Path, bootstrap: str, url: str, command: Sequence[str] = _OF_THE_TESTS
    ) -> None:
        self.name = name
        self._command = command
        self.log = folder / f"{name}.log"
        settings = Settings(
            bootstrap=bootstrap,
            instance=name,
            sink_database=SecretStr(url),
            session_timeout_s=LEASE_S,
            log_format="json",
            data_dir=folder,
        )
        self._environment = _without_settings() | settings.environment()
        self._child: Child | None = None

    def start(self) -> None:
        environment = {**self._environment, "PYTHONPATH": str(CHECKOUT)}
        self._child = Child(self._command, self.log, CHECKOUT, environment)

    @property
    def child(self) -> Child:
        assert self._child is not None, f"{self.name} was not started"
        return self._child

    def kill(self) -> None:
        if self._child is not None:
            self._child.kill()
            self._child = None

    def said(self) -> str:
        return self.log.read_text() if self.log.exists() else ""


def _without_settings() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith(PREFIX)}
