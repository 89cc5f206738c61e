"""Rows and positions in one transaction, who may write them, and versions of a table, in each kind of database."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest
from sqlalchemy import JSON, Column, Engine, Integer, String, create_engine, event, inspect, text

from shared.dev.postgres import Postgres
from shared.sinks.database import Claim, Database, DatabaseUnavailable, Fenced, Origin, Positions, SinkMismatch
from shared.sinks.sink import Changed, EventsOf, Sink
from tests.accounts.domain.events import AccountOpened
from tests.accounts.sinks import accounts_sink
from tests.accounts.topology import EVENTS
from tests.sinks.conftest import empty_database
from tests.waiting import eventually

ORIGIN = Origin("a-topic", "its-id", {0: 0, 1: 5})
ANN: Changed = {("ann",): ("ann", "Ann", 5, 1)}


@pytest.fixture
def database(url: str) -> Iterator[Database]:
    with closing(Database(url)) as database:
        yield database


@pytest.fixture
def reader(url: str) -> Iterator[Engine]:
    """As others read it."""
    engine = create_engine(url)
    yield engine
    engine.dispose()


def rows(reader: Engine, name: str = "accounts") -> list[tuple[Any, ...]]:
    with reader.connect() as connection:
        return sorted(tuple(row) for row in connection.execute(text(f"SELECT * FROM {name}")))


def claimed(database: Database, sink: Sink, owner: str = "one") -> Claim:
    database.prepare(sink, ORIGIN)
    claim = database.claim(sink, database.lease(sink), owner)
    assert claim is not None
    return claim


def test_a_new_table_begins_where_its_topic_does(database: Database, reader: Engine) -> None:
    assert claimed(database, accounts_sink()) == Claim(1, {0: 0, 1: 5})
    assert rows(reader) == []


def test_two_sinks_may_begin_at_once_in_an_empty_database(postgres: Postgres) -> None:
    """Tables that two transactions make at once collide, though each makes only what is missing."""
    url = empty_database(postgres)
    onlooker, refused = create_engine(url), list[Exception]()

    def prepare_another() -> None:
        try:
            database.prepare(accounts_sink(version=2), ORIGIN)
        except DatabaseUnavailable as error:
            refused.append(error)

    def until_it_waits(*_: Any, **__: Any) -> None:
        later.start()
        with onlooker.connect() as connection:
            eventually(lambda: connection.execute(text("SELECT FROM pg_locks WHERE NOT granted")).first() is not None)

    later = threading.Thread(target=prepare_another)
    first = accounts_sink()
    event.listen(first.table, "after_create", until_it_waits)
    with closing(Database(url)) as database:
        database.prepare(first, ORIGIN)
        later.join(60)
        assert refused == []
        assert database.state(accounts_sink(version=2)).positions == ORIGIN.starts
    onlooker.dispose()


def test_rows_and_positions_come_together(database: Database, reader: Engine) -> None:
    sink = accounts_sink()
    claim = claimed(database, sink)
    database.write(sink, claim.epoch, claim.positions, {0: 7}, ANN | {("bob",): ("bob", None, 3, 1)})
    assert rows(reader) == [("ann", "Ann", 5, 1), ("bob", None, 3, 1)]
    database.write(
        sink, claim.epoch, {0: 7, 1: 5}, {0: 9}, {("ann",): ("ann", "Ann", 6, 2), ("bob",): None, ("eve",): None}
    )
    assert rows(reader) == [("ann", "Ann", 6, 2)]
    assert database.state(sink).positions == {0: 9, 1: 5}


def test_what_the_database_refuses_leaves_it_as_it_was(database: Database, reader: Engine) -> None:
    sink = accounts_sink()
    claim = claimed(database, sink)
    refused: Changed = {("bob",): ("bob", "a secret name", None, 1)}
    with pytest.raises(DatabaseUnavailable) as refusal:
        database.write(sink, claim.epoch, claim.positions, {0: 7}, ANN | refused)
    assert "secret" not in str(refusal.value)
    assert rows(reader) == []
    assert database.state(sink).positions == claim.positions
    database.write(sink, claim.epoch, claim.positions, {0: 7}, ANN)
    assert rows(reader) == [("ann", "Ann", 5, 1)]


def test_a_process_whose_sink_was_claimed_writes_no_more(database: Database, reader: Engine) -> None:
    sink = accounts_sink()
    zombie, successor = claimed(database, sink), claimed(database, sink, "two")
    assert successor.epoch == zombie.epoch + 1
    with pytest.raises(Fenced):
        database.write(sink, zombie.epoch, zombie.positions, {0: 7}, ANN)
    with pytest.raises(Fenced):
        database.write(sink, zombie.epoch, zombie.positions, {}, {})
    assert rows(reader) == []
    database.release(sink, zombie.epoch)
    assert database.lease(sink).owner == "two"


def test_a_position_that_is_not_the_databases_is_not_written_from(database: Database, reader: Engine) -> None:
    sink = accounts_sink()
    claim = claimed(database, sink)
    with pytest.raises(Fenced, match="was restored: it is at"):
        database.write(sink, claim.epoch, {0: 3, 1: 5}, {0: 7}, ANN)
    assert rows(reader) == []


@pytest.mark.parametrize("moved", [{}, {1: 9}])
def test_a_database_that_lost_rows_of_a_quiet_partition_fences(
    moved: Positions, database: Database, reader: Engine
) -> None:
    """A quick restore leaves the epoch as it was."""
    sink = accounts_sink()
    claim = claimed(database, sink)
    database.write(sink, claim.epoch, claim.positions, {0: 7}, ANN)
    with reader.begin() as connection:
        connection.execute(text("UPDATE onefold_sink_positions SET position = 0 WHERE partition = 0"))
    with pytest.raises(Fenced, match=r"was restored: it is at \{0: 0, 1: 5\}, and was left at \{0: 7, 1: 5\}"):
        database.write(sink, claim.epoch, {0: 7, 1: 5}, moved, {})


def test_a_sink_is_not_claimed_from_somebody_who_lives(database: Database) -> None:
    sink = accounts_sink()
    claim = claimed(database, sink)
    seen = database.lease(sink)
    database.write(sink, claim.epoch, claim.positions, {}, {})
    assert database.claim(sink, seen, "two") is None
    database.release(sink, claim.epoch)
    assert database.lease(sink).owner == ""


def test_a_database_without_the_sink_fences(database: Database, reader: Engine) -> None:
    sink = accounts_sink()
    claim = claimed(database, sink)
    with reader.begin() as connection:
        connection.execute(text("DELETE FROM onefold_sinks"))
    with pytest.raises(Fenced):
        database.write(sink, claim.epoch, claim.positions, {0: 7}, ANN)
    with pytest.raises(Fenced, match="the database does not know accounts_v1"):
        database.lease(sink)


def test_versions_are_filled_side_by_side_and_swapped_back_and_forth(database: Database, reader: Engine) -> None:
    first, second = accounts_sink(), accounts_sink(version=2)
    for sink, cents in ((first, 1), (second, 2)):
        claim = claimed(database, sink)
        database.write(sink, claim.epoch, claim.positions, {0: 7}, {("ann",): ("ann", "Ann", cents, 1)})
    for sink, cents in ((first, 1), (second, 2), (first, 1)):
        database.show(sink)
        assert rows(reader) == [("ann", "Ann", cents, 1)]
        assert [database.state(each).shown for each in (first, second)] == [sink is first, sink is second]


def test_a_database_of_before_has_its_new_columns_with_the_next_claim(database: Database, reader: Engine) -> None:
    sink = accounts_sink()
    claimed(database, sink)
    with reader.begin() as connection:
        for column in ("written_ms", "waits"):
            connection.execute(text(f"ALTER TABLE onefold_sinks DROP COLUMN {column}"))
    assert (database.state(sink).waits, database.written_ms(sink)) == ("", None)  # as `sink status` and the doctor ask
    claim = claimed(database, sink)
    assert database.written_ms(sink) is None
    database.write(sink, claim.epoch, claim.positions, {0: 7}, ANN)
    assert database.written_ms(sink) is not None


def test_another_version_may_have_other_columns(database: Database, reader: Engine) -> None:
    database.prepare(accounts_sink(), ORIGIN)
    column = Column("id", Integer, primary_key=True)
    other = Sink("accounts", (column,), EventsOf(EVENTS, (AccountOpened,)), lambda key, event: (), version=2)
    database.prepare(other, ORIGIN)
    database.show(other)
    assert [each["name"] for each in inspect(reader).get_columns("accounts")] == ["id"]


def test_a_version_that_is_not_there_is_not_shown(database: Database, reader: Engine) -> None:
    database.prepare(accounts_sink(), ORIGIN)
    with pytest.raises(Fenced, match="the database does not know accounts_v2"):
        database.show(accounts_sink(version=2))
    assert rows(reader) == []


def test_a_table_that_was_dropped_is_filled_from_the_start(database: Database, reader: Engine) -> None:
    sink = accounts_sink()
    zombie = claimed(database, sink)
    database.write(sink, zombie.epoch, zombie.positions, {0: 7}, ANN)
    with reader.begin() as connection:
        connection.execute(text("DROP VIEW accounts"))
        connection.execute(text("DROP TABLE accounts_v1"))
    assert claimed(database, sink, "two").positions == ORIGIN.starts
    assert rows(reader) == []
    with pytest.raises(Fenced):
        database.write(sink, zombie.epoch, {0: 7, 1: 5}, {0: 9}, ANN)


def test_a_version_stays_what_it_was_made_of(database: Database) -> None:
    database.prepare(accounts_sink(), ORIGIN)
    database.prepare(accounts_sink(), ORIGIN)
    with pytest.raises(SinkMismatch, match="was filled from a-topic with the id its-id"):
        database.prepare(accounts_sink(), ORIGIN._replace(topic_id="made again"))
    column = Column("id", Integer, primary_key=True)
    other = Sink("accounts", (column,), EventsOf(EVENTS, (AccountOpened,)), lambda key, event: ())
    with pytest.raises(SinkMismatch, match=r"accounts_v1 has the columns .*fix: raise `version`"):
        database.prepare(other, ORIGIN)


def test_values_are_written_as_their_columns_type_says(database: Database, reader: Engine) -> None:
    columns = Column("id", Integer, primary_key=True), Column("tags", JSON), Column("name", String)
    sink = Sink("things", columns, EventsOf(EVENTS, (AccountOpened,)), lambda key, event: ())
    claim = claimed(database, sink)
    odd = 'tab\t, \\N, "quotes" and\nlines'
    database.write(sink, claim.epoch, claim.positions, {0: 1}, {(1,): (1, {"a": ["b", None]}, odd)})
    with reader.connect() as connection:
        assert connection.execute(sink.table.select()).one() == (1, {"a": ["b", None]}, odd)


def test_a_new_row_may_have_what_was_unique_of_a_deleted_one(database: Database, reader: Engine) -> None:
    columns = Column("id", Integer, primary_key=True), Column("email", String(50), unique=True)
    sink = Sink("things", columns, EventsOf(EVENTS, (AccountOpened,)), lambda key, event: ())
    claim = claimed(database, sink)
    database.write(sink, claim.epoch, claim.positions, {0: 1}, {(1,): (1, "a@example.org")})
    database.write(sink, claim.epoch, {0: 1, 1: 5}, {0: 2}, {(2,): (2, "a@example.org"), (1,): None})
    assert rows(reader, "things") == [(2, "a@example.org")]


def test_a_database_that_is_away_is_told_without_its_password() -> None:
    url = "postgresql+psycopg://somebody:secret@127.0.0.1:1/nowhere"
    with closing(Database(url)) as away, pytest.raises(DatabaseUnavailable) as told:
        away.lease(accounts_sink())
    assert "secret" not in str(told.value)


def test_options_of_the_url_are_added_to_ours(postgres: Postgres) -> None:
    url = f"{empty_database(postgres)}?options=-c%20search_path%3Delsewhere"
    with closing(Database(url, silent_s=7)) as database, database._transaction() as connection:
        names = "search_path", "lock_timeout", "idle_in_transaction_session_timeout"
        assert [connection.execute(text(f"SHOW {name}")).scalar_one() for name in names] == ["elsewhere", "7s", "7s"]


def test_other_databases_are_refused() -> None:
    with pytest.raises(ValueError, match="sinks don't know mysql; fix:"):
        Database("mysql://a/b")


def test_who_may_read_the_view_still_may_after_a_swap(postgres: Postgres) -> None:
    url = empty_database(postgres)
    admin, sinks = create_engine(url), (accounts_sink(), accounts_sink(version=2))
    with closing(Database(url)) as database:
        for sink in sinks:
            database.prepare(sink, ORIGIN)
        with admin.begin() as connection:
            connection.execute(text("GRANT SELECT ON accounts TO pg_monitor"))
        database.show(sinks[1])
    with admin.connect() as connection:
        query = "SELECT has_table_privilege('pg_monitor', 'accounts', 'SELECT')"
        assert connection.execute(text(query)).scalar_one() is True
    admin.dispose()


def test_a_process_that_freezes_amid_a_transaction_keeps_no_lock(
    postgres: Postgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thread that waits within its transaction is to PostgreSQL what a paused process is."""
    url = empty_database(postgres)
    zombie, successor, sink = Database(url, silent_s=1), Database(url, silent_s=1), accounts_sink()
    claim = claimed(zombie, sink)
    merge, reached, frozen = zombie._merge.merge, threading.Event(), threading.Event()

    def freeze(*arguments: Any) -> None:
        merge(*arguments)
        reached.set()
        frozen.wait(60)

    monkeypatch.setattr(zombie._merge, "merge", freeze)
    refused: list[Exception] = []

    def write() -> None:
        try:
            zombie.write(sink, claim.epoch, claim.positions, {0: 7}, ANN)
        except DatabaseUnavailable as error:
            refused.append(error)

    writing = threading.Thread(target=write)
    writing.start()
    assert reached.wait(60)

    def claim_it() -> Claim | None:
        try:
            return successor.claim(sink, successor.lease(sink), "two")
        except DatabaseUnavailable:  # the lock is still held
            return None

    assert eventually(claim_it) == Claim(claim.epoch + 1, claim.positions)
    frozen.set()
    writing.join(60)
    assert len(refused) == 1
    assert successor.state(sink).positions == claim.positions
    for each in (zombie, successor):
        each.close()
