"""`sink parity`: a table that has what its topic makes is told from one that somebody changed."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from itertools import count
from pathlib import Path

import pytest
from sqlalchemy import JSON, Column, String, create_engine, text

from shared.kafka.brokers import Brokers
from shared.privacy.persons import PersonKeys
from shared.privacy.sealing import Sealer
from shared.sinks.database import Database, Differences
from shared.sinks.filling import Filling
from shared.sinks.parity import check
from shared.sinks.sink import BadRow, EventsOf, Sink, Upsert
from tests.accounts.domain.commands import OpenAccount
from tests.accounts.domain.events import AccountCharged
from tests.accounts.domain.state import Open
from tests.accounts.domain.upcasters import UPCASTERS
from tests.accounts.sinks import SINKS, accounts_sink
from tests.accounts.topology import EVENTS, TOPOLOGY
from tests.sinks.outside import LEASE_S, Log, SinkProcess, expected, found, row_of
from tests.sinks.test_filling import filled_until, has, own_topology, state
from tests.waiting import eventually

pytestmark = [pytest.mark.broker, pytest.mark.slow]

ACCOUNTS, CHARGES = SINKS


@pytest.fixture
def process(tmp_path: Path, bootstrap: str, url: str) -> Iterator[SinkProcess]:
    """Which is not started."""
    one = SinkProcess("one", tmp_path, bootstrap, url)
    yield one
    one.kill()


def checked(sink: Sink, url: str, log: Log) -> Differences:
    with closing(Database(url)) as database:
        return check(sink, sink.source.topic_in(TOPOLOGY), database, Brokers(log.bootstrap), lambda *_: None)


@pytest.mark.parametrize("url", ["sqlite", pytest.param("postgres", marks=pytest.mark.long)], indirect=True)
def test_what_somebody_changed_is_told_beside_a_sink_at_work(
    url: str, log: Log, bootstrap: str, process: SinkProcess
) -> None:
    log.write(2_500)
    process.start()
    wanted = expected(ACCOUNTS, TOPOLOGY, bootstrap)
    eventually(partial(has, url, ACCOUNTS, wanted))
    eventually(partial(has, url, CHARGES, expected(CHARGES, TOPOLOGY, bootstrap)))
    stop = threading.Event()

    def write() -> None:
        while not stop.wait(0.05):
            log.write(20)

    writing = threading.Thread(target=write)
    writing.start()
    try:
        for sink in SINKS:
            agrees = checked(sink, url, log)
            assert agrees.rows > 200
            assert agrees.keys == []
    finally:
        stop.set()
        writing.join()
    wanted = expected(ACCOUNTS, TOPOLOGY, bootstrap)
    eventually(partial(has, url, ACCOUNTS, wanted))
    process.kill()
    (gone,), (changed,), *_ = wanted
    engine = create_engine(url)
    with engine.begin() as connection:
        connection.execute(text("DELETE FROM accounts_v1 WHERE account_id = :id"), {"id": gone})
        connection.execute(text("UPDATE accounts_v1 SET balance_cents = -1 WHERE account_id = :id"), {"id": changed})
        connection.execute(text("INSERT INTO accounts_v1 VALUES ('nobody', NULL, 0, 1)"))
    engine.dispose()
    assert checked(ACCOUNTS, url, log) == Differences(len(wanted) + 1, sorted([(gone,), (changed,), ("nobody",)]))


@pytest.mark.long  # in short, what somebody changed is told
def test_json_is_compared_and_other_code_is_told(url: str, log: Log, bootstrap: str) -> None:
    log.write(100)
    versions = count()
    columns = Column("id", String(80), primary_key=True), Column("what", JSON)
    charges = EventsOf(EVENTS, (AccountCharged,), UPCASTERS)
    sink = Sink("told", columns, charges, lambda key, e: [Upsert({"id": e.event_id, "what": {"cents": [key, None]}})])
    wanted = expected(sink, TOPOLOGY, bootstrap)
    with closing(Database(url)) as database:
        filled_until(
            partial(has, url, sink, wanted), (Filling(sink, TOPOLOGY, database, bootstrap, "me", LEASE_S), None)
        )
    assert checked(sink, url, log) == Differences(len(wanted), [])
    columns = Column("id", String(80), primary_key=True), Column("what", JSON)
    other = Sink("told", columns, charges, lambda key, e: [Upsert({"id": e.event_id, "what": next(versions)})])
    assert len(checked(other, url, log).keys) == len(wanted)
    columns = Column("id", String(80), primary_key=True), Column("what", JSON)
    broken = Sink("told", columns, charges, lambda key, e: [Upsert({"id": e.data.nothing})])
    with pytest.raises(BadRow, match=rf"{EVENTS.name}/\d+@\d+: AttributeError; fix: raise `version` of the sink"):
        checked(broken, url, log)


@pytest.mark.parametrize("url", ["sqlite"], indirect=True)
def test_personal_text_is_compared_in_the_clear(url: str, bootstrap: str, tmp_path: Path) -> None:
    topology, table, _ = own_topology(bootstrap)
    sealer = Sealer(PersonKeys(f"sqlite:///{tmp_path / 'keys.sqlite3'}"))
    command = asyncio.run(sealer.sealed(OpenAccount.model_validate({"holder": "Ann Example"}), "accounts:ann"))
    topic = topology.changelog(table).name
    Log(bootstrap, topology).put(topic, "ann", row_of(Open(holder=command.holder), 1))
    sink = accounts_sink(table=table, opens=True)
    with closing(Database(url)) as database:
        filled_until(
            lambda: state(url, sink) and found(sink, url),
            (Filling(sink, topology, database, bootstrap, "me", LEASE_S), sealer),
        )
        assert check(sink, topic, database, Brokers(bootstrap), lambda *_: None, sealer) == Differences(1, [])
