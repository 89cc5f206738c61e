"""A sink whose database or records are not as they should be, with a log in memory: what it writes, says, and waits."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import Callable, Collection, Iterable, Mapping, MutableMapping
from contextlib import closing, suppress
from functools import partial
from typing import Any

import pytest
import structlog
from sqlalchemy import JSON, BigInteger, Column, Integer, String, create_engine, event, text
from sqlalchemy.pool import Pool
from structlog.testing import capture_logs

from shared.domain.envelope import EventEnvelope
from shared.kafka.brokers import Bounds
from shared.kafka.reader import ReadRecord
from shared.runtime.positions import Place
from shared.sinks import filling
from shared.sinks.database import Database, Fenced
from shared.sinks.filling import Filling
from shared.sinks.sink import Change, EventsOf, Sink, Upsert
from tests.accounts.domain.events import AccountCharged
from tests.accounts.domain.state import Open
from tests.accounts.domain.upcasters import UPCASTERS
from tests.accounts.sinks import accounts_sink, charges_sink
from tests.accounts.topology import EVENTS, TOPOLOGY
from tests.sinks.outside import event_of, found, row_of
from tests.waiting import Deadline

LEASE_S = 0.3
SLEEP = asyncio.sleep


class Memory:
    """What filling asks of the brokers, and the log that its readers read. gone: the topic was deleted.

    meanwhile: what others do while the sink waits, with the number of its tries.
    """

    def __init__(self) -> None:
        self.meanwhile: Callable[[int], None] = lambda tries: self.charge(f"other-{tries}", 1, partition=1)
        self.records: dict[int, list[tuple[str, bytes | None]]] = {0: [], 1: []}
        self.gone = False

    def charge(self, account: str, cents: int, partition: int = 0) -> None:
        records = self.records[partition]
        records.append((account, event_of(AccountCharged(amount_cents=cents), account, len(records) + 1)))

    def starts(self, topic: str) -> dict[int, int]:
        return dict.fromkeys(self.records, 0)

    def topic_ids(self, topics: Collection[str]) -> set[str]:
        return set() if self.gone else {"an-id"}

    def bounds(self, partitions: Collection[Place]) -> dict[Place, Bounds]:
        ends = {place: len(self.records[place.number]) for place in partitions}
        return {place: Bounds(0, end, end) for place, end in ends.items()}


class MemoryReader:
    """Each sink has its own."""

    def __init__(self, memory: Memory) -> None:
        self._records = memory.records
        self._positions: dict[Place, int] = {}

    def assign(self, positions: Mapping[Place, int]) -> None:
        self._positions = dict(positions)

    def position(self, place: Place) -> int:
        return self._positions[place]

    async def getmany(self, timeout_ms: int, max_records: int) -> dict[Place, list[ReadRecord]]:
        await SLEEP(0)
        for place in sorted(self._positions, reverse=True):
            position = self._positions[place]
            if values := self._records[place.number][position : position + max_records]:
                self._positions[place] = position + len(values)
                records = [
                    ReadRecord(*place, position + number, key.encode(), value, 0)
                    for number, (key, value) in enumerate(values)
                ]
                return {place: records}
        await SLEEP(timeout_ms / 1000)
        return {}

    async def stop(self) -> None:
        """There is nothing to close."""


@pytest.fixture
def memory(monkeypatch: pytest.MonkeyPatch) -> Memory:
    memory = Memory()
    monkeypatch.setattr(filling, "Brokers", lambda bootstrap: memory)
    monkeypatch.setattr(filling, "Reader", lambda bootstrap, group: MemoryReader(memory))
    return memory


@pytest.fixture
def paused(monkeypatch: pytest.MonkeyPatch, memory: Memory) -> list[float]:
    """How many seconds the sink was to wait after each try. It does not."""
    paused: list[float] = []

    async def pause(seconds: float) -> None:
        if threading.current_thread() is not threading.main_thread():  # a client of another test, on its own loop
            await SLEEP(seconds)
        else:
            paused.append(seconds)
            memory.meanwhile(len(paused))
            await SLEEP(0.01)

    monkeypatch.setattr(asyncio, "sleep", pause)
    return paused


def filled(url: str, good: Callable[[], object], *sinks: Sink) -> list[MutableMapping[str, Any]]:
    """What the log says of them until it is good."""

    async def run() -> None:
        with closing(Database(url)) as database:
            fillings = [Filling(sink, TOPOLOGY, database, "nowhere", "me", LEASE_S) for sink in sinks]
            tasks = [asyncio.create_task(filling.run(None)) for filling in fillings]
            deadline = Deadline(30)
            while not good():
                deadline.check(said)
                assert not any(task.done() for task in tasks), "a sink has ended"
                await SLEEP(0.01)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    with capture_logs() as said, pytest.MonkeyPatch.context() as patch:
        patch.setattr(filling, "log", structlog.get_logger())  # the old one, once used, heeds no later configuration
        asyncio.run(run())
    return said


def waits(said: Iterable[MutableMapping[str, Any]]) -> list[str]:
    return [each["reason"] for each in said if each["event"] == "a sink waits"]


@pytest.mark.parametrize("url", ["sqlite"], indirect=True)
def test_a_bad_record_is_told_once_and_tried_more_and_more_rarely(
    url: str, memory: Memory, paused: list[float]
) -> None:
    memory.charge("ann", 5)
    memory.records[0].append(("bob", None))
    said = filled(url, lambda: len(paused) > 8, charges_sink())
    assert paused[:8] == [0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 10.0, 10.0]
    reason = f"{EVENTS.name}/0@1: it can't be read: no value; fix: correct the sink charges, and start it again"
    assert waits(said) == [reason]
    assert told(url, charges_sink()) == reason
    assert [each["event"] for each in said] == ["a sink is filled", "a sink waits"]
    assert found(charges_sink(), url).keys() >= {("ann", 1), ("other-1", 1)}


@pytest.mark.parametrize("url", ["sqlite"], indirect=True)
def test_a_sink_that_goes_on_says_so_and_would_tell_the_next_trouble(
    url: str, memory: Memory, paused: list[float]
) -> None:
    memory.records[0].append(("bob", None))

    def mend(tries: int) -> None:
        if tries == 3:
            memory.records[0] = []
            memory.charge("ann", 5)
            memory.records[0].append(("bob", None))

    memory.meanwhile = mend
    said = filled(url, lambda: len(paused) > 5, charges_sink())
    assert [each["event"] for each in said] == ["a sink is filled", "a sink waits", "a sink goes on", "a sink waits"]
    assert paused[:3] == [0.2, 0.4, 0.8]
    assert paused[3] == 0.2


def things(*columns: Column[Any], rows: Callable[[EventEnvelope[AccountCharged]], dict[str, Any]]) -> Sink:
    """A row for each charge, with more columns than its account and cents."""
    keys = Column("account_id", String(255), primary_key=True), Column("cents", Integer, primary_key=True)
    source = EventsOf(EVENTS, (AccountCharged,), UPCASTERS)

    def with_keys(account: str, event: EventEnvelope[AccountCharged]) -> list[Change]:
        return [Upsert({"account_id": account, "cents": event.data.amount_cents, **rows(event)})]

    return Sink("things", (*keys, *columns), source, with_keys)


NO_JSON = things(Column("value", JSON), rows=lambda event: {"value": {"secret": event.occurred_at}})
NO_TEXT = things(Column("value", String), rows=lambda event: {"value": "secret \udc80"})
TOO_LARGE = things(Column("value", BigInteger), rows=lambda event: {"value": 1 << 70})
NULL = things(Column("value", String, nullable=False), rows=lambda event: {"value": None})
NO_TYPE = things(Column("value", String), rows=lambda event: {"value": {"a": "secret"}})


@pytest.mark.parametrize(
    "sink", [NO_JSON, NO_TEXT, TOO_LARGE, NULL, NO_TYPE], ids=["JSON", "text", "number", "null", "type"]
)
def test_a_row_that_no_database_can_have_stops_its_sink_alone(
    sink: Sink, url: str, memory: Memory, paused: list[float]
) -> None:
    memory.charge("ann", 5)
    memory.meanwhile = lambda tries: None
    said = filled(url, lambda: len(paused) > 3 and is_filled(url, charges_sink(), 1), sink, charges_sink())
    assert len(waits(said)) == 1
    assert "secret" not in str(said)
    assert found(charges_sink(), url).keys() >= {("ann", 1)}
    assert found(sink, url) == {}


def told(url: str, sink: Sink) -> str:
    """Why it waits, as `sink status` and the doctor read it."""
    with closing(Database(url)) as database:
        return database.state(sink).waits


def is_filled(url: str, sink: Sink, position: int) -> bool:
    with closing(Database(url)) as database, suppress(Fenced):
        return database.state(sink).positions[0] == position
    return False


def test_the_record_whose_row_is_refused_is_named_and_those_before_it_are_written(
    url: str, memory: Memory, paused: list[float]
) -> None:
    for number in range(1, 100):
        memory.charge(f"account-{number}", number)

    def rows(event: EventEnvelope[AccountCharged]) -> dict[str, Any]:
        return {"value": None if event.data.amount_cents == 70 else 1}

    sink = things(Column("value", Integer, nullable=False), rows=rows)
    said = filled(url, lambda: len(paused) > 2, sink)
    (reason,) = waits(said)
    assert reason.startswith(f"{EVENTS.name}/0@69: the database refuses it: ")
    assert reason.endswith("; fix: correct the sink things, and start it again")
    assert [each["event"] for each in said] == ["a sink is filled", "a sink waits"]
    assert {key for key in found(sink, url) if key[0].startswith("account")} == {
        (f"account-{number}", number) for number in range(1, 70)
    }


NONE_MORE = things(rows=lambda event: {})


def filled_up(url: str) -> Callable[[], None]:
    """No row more fits into the table of NONE_MORE, in SQLite into no table, until what is returned is called."""
    if url.startswith("postgres"):
        stops = "CREATE FUNCTION is_full() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN {} END $$".format(
            "RAISE EXCEPTION 'could not extend file: No space left on device' USING ERRCODE = '53100';"
        )
        trigger = "TRIGGER is_full BEFORE INSERT ON things_v1 FOR EACH STATEMENT EXECUTE FUNCTION is_full()"
        execute(url, stops, f"CREATE {trigger}")
        return lambda: execute(url, "DROP TRIGGER is_full ON things_v1")
    connections: list[Any] = []

    def limit(connection: Any, _: object) -> None:
        connections.append(connection)
        connection.execute("PRAGMA max_page_count = 1")  # as many as there are

    def make_room() -> None:
        event.remove(Pool, "connect", limit)
        for connection in connections:
            with suppress(sqlite3.ProgrammingError):  # it is closed
                connection.execute("PRAGMA max_page_count = 1000000")

    event.listen(Pool, "connect", limit)
    return make_room


def locked(url: str) -> Callable[[], None]:
    """The table of NONE_MORE is as good as stopped, until what is returned is called."""
    engine = create_engine(url)
    connection = engine.connect()
    connection.execute(text("LOCK TABLE things_v1 IN SHARE MODE"))  # as CREATE INDEX does

    def unlock() -> None:
        connection.close()
        engine.dispose()

    return unlock


def execute(url: str, *statements: str) -> None:
    engine = create_engine(url)
    with engine.begin() as connection:
        for each in statements:
            connection.execute(text(each))
    engine.dispose()


@pytest.mark.parametrize(
    ("url", "trouble", "reason"),
    [
        ("sqlite", filled_up, "OperationalError: database or disk is full"),
        pytest.param(
            *("postgres", filled_up, "DiskFull: could not extend file: No space left on device"),
            marks=pytest.mark.long,  # in short, SQLite
        ),
        ("postgres", locked, "LockNotAvailable: canceling statement due to lock timeout"),
    ],
    indirect=["url"],
    ids=["sqlite-full", "postgres-full", "postgres-slow"],
)
def test_a_database_that_is_full_or_slow_is_waited_for_and_then_has_everything(
    trouble: Callable[[str], Callable[[], None]],
    reason: str,
    url: str,
    memory: Memory,
    paused: list[float],
) -> None:
    """How far the sink is, and why, can be asked meanwhile, and a sink of another table goes on."""
    memory.meanwhile = lambda tries: None
    memory.charge("ann", 5)
    others = charges_sink()
    filled(url, lambda: is_filled(url, NONE_MORE, 1) and is_filled(url, others, 1), NONE_MORE, others)
    for number in range(2, 3_000):
        memory.charge("ann", number * 5)
    is_lasting, end, seen = [trouble(url)], len(memory.records[0]), set[str]()

    def end_it(tries: int) -> None:
        others_went_on = is_filled(url, others, end) or url.startswith("sqlite")
        if is_lasting and tries > 2 and others_went_on and is_filled(url, NONE_MORE, 1):
            seen.add(told(url, NONE_MORE))
            is_lasting.pop()()

    memory.meanwhile = end_it
    soon = "" if url.startswith("sqlite") else "?options=-c%20lock_timeout%3D200"
    both = NONE_MORE, others
    said = filled(f"{url}{soon}", lambda: all(is_filled(url, each, end) for each in both), *both)
    assert {*waits(said)} == seen == {reason}
    assert told(url, NONE_MORE) == ""
    assert "things_v1" in {each["sink"] for each in said if each["event"] == "a sink goes on"}
    assert len(found(NONE_MORE, url)) == end


def test_what_is_unique_may_move_from_row_to_row(url: str, memory: Memory, paused: list[float]) -> None:
    columns = Column("account_id", String(50), primary_key=True), Column("seat", Integer, unique=True)

    def rows(account: str, event: EventEnvelope[AccountCharged]) -> list[Change]:
        return [Upsert({"account_id": account, "seat": event.data.amount_cents})]

    sink = Sink("seats", columns, EventsOf(EVENTS, (AccountCharged,), UPCASTERS), rows)
    for batch in ([("ann", 1)], [("bob", 3), ("ann", 2), ("bob", 1)]):
        for account, seat in batch:
            memory.charge(account, seat)
        there = partial(is_filled, url, sink, len(memory.records[0]))
        assert waits(filled(url, there, sink)) == []
    assert found(sink, url) == {("ann",): ("ann", 2), ("bob",): ("bob", 1)}


@pytest.mark.parametrize("url", ["sqlite"], indirect=True)
def test_a_topic_that_is_deleted_is_waited_for(url: str, memory: Memory, paused: list[float]) -> None:
    memory.gone = True
    said = filled(url, lambda: len(paused) > 3, charges_sink())
    assert waits(said) == [f"the brokers have no topic {EVENTS.name}; fix: run `provision`"]


@pytest.mark.parametrize("url", ["sqlite"], indirect=True)
def test_what_nobody_has_thought_of_stops_its_sink_alone_and_is_told_without_its_text(
    url: str, memory: Memory, paused: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    def starts(topic: str) -> dict[int, int]:
        raise LookupError("a secret")

    monkeypatch.setattr(memory, "starts", starts)
    said = filled(url, lambda: len(paused) > 3, charges_sink())
    assert waits(said) == ["LookupError"]
    assert "in starts" in str(said)
    assert "secret" not in str(said)


@pytest.mark.parametrize("url", ["sqlite"], indirect=True)
def test_a_function_that_fails_is_told_with_its_place_and_without_the_values(
    url: str, memory: Memory, paused: list[float]
) -> None:
    def rows(event: EventEnvelope[AccountCharged]) -> dict[str, Any]:
        return {"value": AccountCharged.model_validate({"amount_cents": "a secret"})}

    memory.charge("ann", 5)
    memory.meanwhile = lambda tries: None
    said = filled(url, lambda: len(paused) > 1, things(Column("value", String), rows=rows))
    assert len(waits(said)) == 1
    assert f"{EVENTS.name}/0@0: ValidationError in rows; fix:" in str(said)
    assert "in rows" in str(said[-1]["frames"])
    assert "secret" not in str(said)


@pytest.mark.parametrize("url", ["sqlite"], indirect=True)
def test_a_sink_that_may_have_missed_deletions_is_refused(
    url: str, memory: Memory, paused: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    sink, row = accounts_sink(), row_of(Open(balance_cents=5), 1)
    memory.records[0].append(("ann", row))
    filled(url, partial(is_filled, url, sink, 1), sink)
    monkeypatch.setattr(filling, "DELETIONS_KEPT_S", 0)
    memory.records[1].append(("bob", row))  # of which nothing was read, so no row of it can have been deleted
    assert waits(filled(url, lambda: ("bob",) in found(sink, url), sink)) == []
    memory.records[0].append(("ann", row))
    (reason,) = waits(filled(url, lambda: len(paused) > 2, sink))
    assert reason == told(url, sink)
    assert reason.startswith("accounts_v1 was last written on ")
    assert reason.endswith("some may have stayed; fix: raise `version` of the sink")
    assert is_filled(url, sink, 1)
