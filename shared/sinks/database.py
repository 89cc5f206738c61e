"""The database's side of sinks: its tables, who fills them and how far they are, in the transaction that fills them.

A sink's position is compared and set in the transaction that writes its rows, so each record has its effect once,
whoever writes. Its epoch is raised with each claim: of two processes that take themselves for the owner, one is fenced.
"""

from __future__ import annotations

import re
import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import psycopg
from sqlalchemy import (
    JSON,
    BigInteger,
    Column,
    Connection,
    Engine,
    Integer,
    MetaData,
    Select,
    String,
    Table,
    Text,
    and_,
    bindparam,
    cast,
    create_engine,
    event,
    except_,
    false,
    func,
    inspect,
    select,
    text,
    update,
)
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.engine import make_url
from sqlalchemy.exc import SQLAlchemyError

from shared.domain.errors import OnefoldError
from shared.sinks.sink import Changed, Sink, Values

Positions = Mapping[int, int]
"""The next offset to read, by partition."""

_OF_ONEFOLD = MetaData()
_SINKS = Table(
    "onefold_sinks",
    _OF_ONEFOLD,
    Column("name", String(60), primary_key=True),
    Column("topic", String(249), nullable=False),
    Column("topic_id", String(40), nullable=False),
    Column("epoch", BigInteger, nullable=False),
    Column("beat", BigInteger, nullable=False),
    Column("owner", String(255), nullable=False),
    Column("written_ms", BigInteger),
    Column("waits", Text),
)
_POSITIONS = Table(
    "onefold_sink_positions",
    _OF_ONEFOLD,
    Column("name", String(60), primary_key=True),
    Column("partition", Integer, primary_key=True, autoincrement=False),
    Column("position", BigInteger, nullable=False),
)
_DELETED = "onefold_deleted"
_EXPECTED = "onefold_expected"
_OF_A_DATABASE = SQLAlchemyError, psycopg.Error, sqlite3.Error, OSError
_OF_A_ROW = (
    *(psycopg.DataError, psycopg.IntegrityError),
    *(sqlite3.DataError, sqlite3.IntegrityError, sqlite3.InterfaceError, sqlite3.ProgrammingError),
)


class DatabaseUnavailable(OnefoldError):
    """The database does not answer, or refuses what is written; the sink goes on once it does not."""


class RowRefused(DatabaseUnavailable):
    """One of the rows can't be written: a column can't have its value, or a constraint forbids it."""


class Fenced(OnefoldError):
    """Another process fills the sink now, or the database was restored: what it has is not what this process knows."""


class SinkMismatch(OnefoldError):
    """The database's table was filled from another topic, or has other columns than the sink declares.

    Operator action: raise `version` in the sink; its new table is then filled from the start.
    """


class Origin(NamedTuple):
    """A topic as it is on the brokers. starts: the first offset that it still has, by partition."""

    topic: str
    topic_id: str
    starts: Positions


class Lease(NamedTuple):
    """Who fills a sink; beat grows while that process lives. owner: empty if it has left."""

    epoch: int
    beat: int
    owner: str


class Claim(NamedTuple):
    """The right to fill a sink from these positions on, until another process claims it."""

    epoch: int
    positions: Positions


class SinkState(NamedTuple):
    """What the database says of one version of a sink. shown: whether the view shows it.

    waits: why nothing more is written, as far as the process that waits could say so in the database; else empty.
    """

    lease: Lease
    topic: str
    topic_id: str
    positions: Positions
    shown: bool
    waits: str


class Differences(NamedTuple):
    """rows: how many there are, or should be. keys: the primary keys of those that are wrong, missing or too many."""

    rows: int
    keys: Sequence[Values]


class Database:
    """Blocking and thread-safe. Every method but `close` raises DatabaseUnavailable."""

    def __init__(self, url: str, silent_s: float = 10.0) -> None:
        """url: SQLAlchemy's. silent_s: how long PostgreSQL keeps a transaction's locks for a client that is silent.

        Raises ValueError for another kind of database.
        """
        self._engine, self._merge = _opened(url, silent_s)

    def prepare(self, sink: Sink, origin: Origin) -> None:
        """Makes what is missing: tables, view, and positions at the topic's start. Raises SinkMismatch.

        A table that was dropped is filled from there, too.
        """
        table, name = sink.table, sink.table.name
        with self._transaction() as connection:
            self._merge.lock(connection)
            _OF_ONEFOLD.create_all(connection)
            known_columns = _known_columns(connection)
            for column, type_ in (("written_ms", "BIGINT"), ("waits", "TEXT")):  # see `_later_column`
                if column not in known_columns:
                    connection.execute(text(f"ALTER TABLE {_SINKS.name} ADD COLUMN {column} {type_}"))
            if not inspect(connection).has_table(name):  # it may have been dropped: then no position vouches for rows
                for each in (_SINKS, _POSITIONS):
                    connection.execute(each.delete().where(each.c.name == name))
            table.create(connection, checkfirst=True)
            found = inspect(connection)
            if (columns := {each["name"] for each in found.get_columns(name)}) != {*sink.names}:
                raise SinkMismatch(f"{name} has the columns {sorted(columns)}; fix: raise `version` of the sink")
            if not found.has_table(sink.name):  # nor a view
                connection.execute(text(_view(connection, sink, "CREATE VIEW")))
            known = connection.execute(_origin(sink)).first()
            if known is None:
                row = {"name": name, "topic": origin.topic, "topic_id": origin.topic_id}
                connection.execute(_SINKS.insert().values(**row, epoch=0, beat=0, owner=""))
                begins = [{"name": name, "partition": each, "position": at} for each, at in origin.starts.items()]
                connection.execute(_POSITIONS.insert(), begins)
            elif known != (origin.topic, origin.topic_id):
                raise SinkMismatch(
                    f"{name} was filled from {known.topic} with the id {known.topic_id}, not from {origin.topic} with "
                    f"{origin.topic_id}; fix: raise `version` of the sink"
                )

    def lease(self, sink: Sink) -> Lease:
        """Raises Fenced if the database does not know the sink, as one that was restored."""
        with self._transaction() as connection:
            return _lease(connection, sink)

    def claim(self, sink: Sink, seen: Lease, owner: str) -> Claim | None:
        """None: something has happened since `seen`, so somebody else fills it."""
        mine = and_(_SINKS.c.name == sink.table.name, _SINKS.c.epoch == seen.epoch, _SINKS.c.beat == seen.beat)
        values = {"epoch": seen.epoch + 1, "beat": seen.beat + 1, "owner": owner}
        with self._transaction() as connection:
            if connection.execute(update(_SINKS).where(mine).values(values)).rowcount != 1:
                return None
            return Claim(seen.epoch + 1, _positions(connection, sink))

    def write(self, sink: Sink, epoch: int, before: Positions, after: Positions, changed: Changed) -> None:
        """Sets the positions of the partitions in `after`, and writes the rows: all of it or nothing. Raises Fenced, or
        RowRefused.

        before: of all partitions. Without anything to write, it says that this process lives.
        """
        with self._transaction(RowRefused if changed else DatabaseUnavailable) as connection:
            self._merge.stage(connection, sink, changed)  # before any lock that others wait for
            _fence(connection, sink, epoch, before)
            for partition, position in after.items():
                _advance(connection, sink, partition, position)
            self._merge.merge(connection, sink, changed)

    def tell(self, sink: Sink, waits: str) -> None:
        """Says why nothing is written, until something is."""
        with self._transaction() as connection:
            connection.execute(update(_SINKS).where(_SINKS.c.name == sink.table.name).values(waits=waits))

    def written_ms(self, sink: Sink) -> int | None:
        """When it was last written, or could have been, since the epoch; None if it never was, or by an older release.

        By the clock of the process that wrote: compare it with days.
        """
        with self._transaction() as connection:
            written_ms: int | None = _later_column(connection, sink, _SINKS.c.written_ms)
            return written_ms

    def release(self, sink: Sink, epoch: int) -> None:
        """Lets others claim the sink at once."""
        mine = and_(_SINKS.c.name == sink.table.name, _SINKS.c.epoch == epoch)
        with self._transaction() as connection:
            connection.execute(update(_SINKS).where(mine).values(owner=""))

    def show(self, sink: Sink) -> None:
        """Lets the view show this version, from one moment to the next. Raises Fenced if there is no such table."""
        with self._transaction() as connection:
            self._merge.lock(connection)
            _lease(connection, sink)
            self._merge.replace_view(connection, sink)

    def state(self, sink: Sink) -> SinkState:
        """Raises Fenced if the database does not know the sink."""
        with self._transaction() as connection:
            lease = _lease(connection, sink)
            known, positions = connection.execute(_origin(sink)).one(), _positions(connection, sink)
            waits = _later_column(connection, sink, _SINKS.c.waits) or ""
            return SinkState(lease, known.topic, known.topic_id, positions, _is_shown(connection, sink), waits)

    def differences(self, sink: Sink, changes: Iterable[Changed], since: Callable[[Positions], Changed]) -> Differences:
        """Compares the table with what these changes make, in a temporary table of the database.

        since: the changes from there up to positions. They are asked for behind the lock that the sink then waits for.
        """
        expected = Sink(_EXPECTED, tuple(map(_plain, sink.columns)), sink.source, sink.rows)
        own = Table(expected.table.name, MetaData(), *map(_plain, sink.columns), prefixes=["TEMPORARY"])
        with _told(), self._engine.connect() as connection:  # that alone sees the table
            with connection.begin():
                own.create(connection, checkfirst=False)
            for changed in changes:
                with connection.begin():
                    self._merge.stage(connection, expected, changed)
                    self._merge.merge(connection, expected, changed)
            with connection.begin():
                connection.execute(select(_SINKS).where(_SINKS.c.name == sink.table.name).with_for_update())
                changed = since(_positions(connection, sink))
                self._merge.stage(connection, expected, changed)
                self._merge.merge(connection, expected, changed)
                found = _differences(connection, sink, expected)
                own.drop(connection)
                return found

    def close(self) -> None:
        self._engine.dispose()

    @contextmanager
    def _transaction(self, refused: type[DatabaseUnavailable] = DatabaseUnavailable) -> Iterator[Connection]:
        """refused: raised for what is wrong with a row."""
        with _told(refused), self._engine.begin() as connection:
            yield connection


@contextmanager
def _told(refused: type[DatabaseUnavailable] = DatabaseUnavailable) -> Iterator[None]:
    """What a database raises as DatabaseUnavailable. refused: as `_transaction` has it."""
    try:
        yield
    except OnefoldError:
        raise
    except Exception as error:  # a value can raise anything on its way to the driver
        cause = getattr(error, "orig", None) or error
        raise (refused if _is_of_a_row(cause) else DatabaseUnavailable)(_reason(cause)) from error


def _is_of_a_row(cause: Exception) -> bool:
    if isinstance(cause, psycopg.ProgrammingError):
        return cause.sqlstate is None  # the driver's own: it can't write such a value
    return isinstance(cause, _OF_A_ROW) or not isinstance(cause, _OF_A_DATABASE)


def _reason(cause: Exception) -> str:
    """Without the values of a row, which may be personal."""
    if isinstance(cause, (psycopg.DataError, psycopg.IntegrityError)):
        return f"{type(cause).__name__} {cause.diag.table_name or ''} {cause.diag.column_name or ''}".rstrip()
    if isinstance(cause, _OF_A_DATABASE):
        return f"{type(cause).__name__}: {cause}".splitlines()[0]
    return type(cause).__name__


def _lease(connection: Connection, sink: Sink) -> Lease:
    query = select(_SINKS.c.epoch, _SINKS.c.beat, _SINKS.c.owner).where(_SINKS.c.name == sink.table.name)
    found = connection.execute(query).first() if inspect(connection).has_table(_SINKS.name) else None
    if found is None:
        raise Fenced(f"the database does not know {sink.table.name}; fix: start the sink, which makes it")
    return Lease(*found)


def _known_columns(connection: Connection) -> set[str]:
    return {each["name"] for each in inspect(connection).get_columns(_SINKS.name)}


def _later_column(connection: Connection, sink: Sink, column: Column[Any]) -> Any:
    """None, too, in a table of an older release, which gets the column from the next process that fills a sink."""
    query = select(column).where(_SINKS.c.name == sink.table.name)
    return connection.scalar(query) if column.name in _known_columns(connection) else None


def _origin(sink: Sink) -> Select[tuple[str, str]]:
    return select(_SINKS.c.topic, _SINKS.c.topic_id).where(_SINKS.c.name == sink.table.name)


def _positions(connection: Connection, sink: Sink) -> dict[int, int]:
    query = select(_POSITIONS.c.partition, _POSITIONS.c.position).where(_POSITIONS.c.name == sink.table.name)
    return {row.partition: row.position for row in connection.execute(query.order_by(_POSITIONS.c.partition))}


def _fence(connection: Connection, sink: Sink, epoch: int, before: Positions) -> None:
    """Also where nothing moves: a database that was restored may have the same epoch, and miss rows."""
    mine = and_(_SINKS.c.name == sink.table.name, _SINKS.c.epoch == epoch)
    values = {"beat": _SINKS.c.beat + 1, "written_ms": round(time.time() * 1000), "waits": None}
    if connection.execute(update(_SINKS).where(mine).values(values)).rowcount != 1:
        raise Fenced(f"{sink.table.name} is filled by another process, or was restored, since epoch {epoch}")
    found = _positions(connection, sink)  # behind the lock that the update has taken
    if found != before:
        raise Fenced(f"{sink.table.name} was restored: it is at {found}, and was left at {dict(before)}")


def _advance(connection: Connection, sink: Sink, partition: int, position: int) -> None:
    mine = and_(_POSITIONS.c.name == sink.table.name, _POSITIONS.c.partition == partition)
    connection.execute(update(_POSITIONS).where(mine).values(position=position))


def _plain(column: Column[Any]) -> Column[Any]:
    """Of the same values, in another table."""
    return Column(column.name, column.type, primary_key=column.primary_key)


def _differences(connection: Connection, sink: Sink, expected: Sink) -> Differences:
    there, wanted = (select(*map(_comparable, each.table.c)) for each in (sink, expected))
    keys: set[Values] = set()
    for more in (except_(there, wanted), except_(wanted, there)):
        found = more.subquery()
        keys |= {tuple(row) for row in connection.execute(select(*(found.c[name] for name in sink.key_names)))}
    there, wanted = (select(*(each.table.c[name] for name in sink.key_names)) for each in (sink, expected))
    rows = connection.scalar(select(func.count()).select_from(there.union(wanted).subquery()))
    return Differences(rows or 0, sorted(keys, key=repr))


def _comparable(column: Column[Any]) -> Any:
    """PostgreSQL compares no JSON."""
    return cast(column, Text).label(column.name) if isinstance(column.type, JSON) else column


def _view(connection: Connection, sink: Sink, create: str) -> str:
    quote = connection.dialect.identifier_preparer.quote
    columns = ", ".join(map(quote, sink.names))
    return f"{create} {quote(sink.name)} AS SELECT {columns} FROM {quote(sink.table.name)}"


def _is_shown(connection: Connection, sink: Sink) -> bool:
    found = inspect(connection)
    definition = found.get_view_definition(sink.name) if sink.name in found.get_view_names() else ""
    return sink.table.name in re.split(r'[\s";]+', definition or "")


def _opened(url: str, silent_s: float) -> tuple[Engine, _Merge]:
    parsed = make_url(url)
    if parsed.get_backend_name() == "sqlite":
        return _sqlite(url), _Sqlite()
    if parsed.get_driver_name() == "psycopg":
        return _postgres(url, silent_s), _Postgres()
    fix = "give the URL of PostgreSQL, postgresql+psycopg://user:password@host/name, or of SQLite"
    raise ValueError(f"sinks don't know {parsed.drivername}; fix: {fix}")


def _sqlite(url: str) -> Engine:
    if file := make_url(url).database:
        Path(file).parent.mkdir(parents=True, exist_ok=True)
    engine = create_engine(url, hide_parameters=True, connect_args={"timeout": 30})

    @event.listens_for(engine, "connect")
    def _no_implicit_begin(connection: Any, _: Any) -> None:
        connection.isolation_level = None  # the driver's own would leave DDL outside of the transaction
        connection.execute("PRAGMA journal_mode=WAL")

    @event.listens_for(engine, "begin")
    def _begin(connection: Connection) -> None:
        connection.exec_driver_sql("BEGIN IMMEDIATE")

    return engine


def _postgres(url: str, silent_s: float) -> Engine:
    """With locks that end when their client is silent or gone, and connections that end when the server is."""
    silent_ms = int(silent_s * 1000)
    waits = {"connect_timeout": 5, "keepalives_idle": 5, "tcp_user_timeout": silent_ms}
    given = make_url(url).normalized_query
    ours = f"-c idle_in_transaction_session_timeout={silent_ms} -c lock_timeout={silent_ms}"
    connect: dict[str, Any] = {name: value for name, value in waits.items() if name not in given}
    connect["options"] = " ".join([ours, *given.get("options", ())])  # of two for one setting, the last counts
    return create_engine(url, pool_pre_ping=True, hide_parameters=True, connect_args=connect)


class _Merge(Protocol):
    """How many rows come into one kind of database."""

    def lock(self, connection: Connection) -> None:
        """Lets nobody else make tables or views until the transaction ends: two that are made at once collide."""

    def stage(self, connection: Connection, sink: Sink, changed: Changed) -> None:
        """Brings them to the database, where nobody else sees them, and takes no lock that others need."""

    def merge(self, connection: Connection, sink: Sink, changed: Changed) -> None:
        """Writes what is staged; deletes first, because a new row may have what is unique of a deleted one."""

    def replace_view(self, connection: Connection, sink: Sink) -> None: ...


class _Sqlite:
    """Statements with many parameters."""

    def lock(self, connection: Connection) -> None:
        """BEGIN IMMEDIATE has done it."""

    def stage(self, connection: Connection, sink: Sink, changed: Changed) -> None:
        """Nothing is between this process and the file."""

    def merge(self, connection: Connection, sink: Sink, changed: Changed) -> None:
        if gone := [key for key, values in changed.items() if values is None]:
            named = [f"key_{name}" for name in sink.key_names]
            matches = [sink.table.c[name] == bindparam(f"key_{name}") for name in sink.key_names]
            connection.execute(
                sink.table.delete().where(*matches), [dict(zip(named, key, strict=True)) for key in gone]
            )
        if rows := [dict(zip(sink.names, values, strict=True)) for values in changed.values() if values is not None]:
            connection.execute(_upserting(sink, sqlite.insert(sink.table)), rows)

    def replace_view(self, connection: Connection, sink: Sink) -> None:
        connection.execute(text(f'DROP VIEW IF EXISTS "{sink.name}"'))
        connection.execute(text(_view(connection, sink, "CREATE VIEW")))


class _Postgres:
    """COPY into a temporary table of the connection, then a statement for what is there and one for what is gone."""

    def lock(self, connection: Connection) -> None:
        connection.execute(text("SELECT pg_advisory_xact_lock(hashtext('onefold_sinks'))"))

    def stage(self, connection: Connection, sink: Sink, changed: Changed) -> None:
        if not changed:
            return
        staged, columns = self._staged(sink), ", ".join(map(_quoted, sink.names))
        connection.exec_driver_sql(
            f"CREATE TEMP TABLE IF NOT EXISTS {staged} ON COMMIT DELETE ROWS AS "
            f"SELECT {columns}, true AS {_DELETED} FROM {_quoted(sink.table.name)} WITH NO DATA"
        )
        driver = connection.connection.driver_connection
        assert driver is not None
        with driver.cursor() as cursor, cursor.copy(f"COPY {staged} ({columns}, {_DELETED}) FROM STDIN") as copy:
            for row in self._rows(connection, sink, changed):
                copy.write_row(row)

    def merge(self, connection: Connection, sink: Sink, changed: Changed) -> None:
        if not changed:
            return
        staged = Table(f"staged_{sink.table.name}", MetaData(), *(Column(each) for each in (*sink.names, _DELETED)))
        kept = select(*(staged.c[name] for name in sink.names)).where(staged.c[_DELETED] == false())
        if None in changed.values():
            same = [sink.table.c[name] == staged.c[name] for name in sink.key_names]
            connection.execute(sink.table.delete().where(staged.c[_DELETED], *same))
        connection.execute(_upserting(sink, postgresql.insert(sink.table).from_select(sink.names, kept)))

    def replace_view(self, connection: Connection, sink: Sink) -> None:
        """As it is if it can be, because who may read it is forgotten when it is dropped."""
        with suppress(SQLAlchemyError), connection.begin_nested():
            connection.execute(text(_view(connection, sink, "CREATE OR REPLACE VIEW")))
            return
        connection.execute(text(f"DROP VIEW {_quoted(sink.name)}"))
        connection.execute(text(_view(connection, sink, "CREATE VIEW")))

    def _staged(self, sink: Sink) -> str:
        return _quoted(f"staged_{sink.table.name}")

    def _rows(self, connection: Connection, sink: Sink, changed: Changed) -> Iterator[Sequence[Any]]:
        """With the values as the columns' types write them, such as JSON."""
        dialect = connection.dialect
        writers = [column.type.dialect_impl(dialect).bind_processor(dialect) for column in sink.columns]
        needed = [(place, writer) for place, writer in enumerate(writers) if writer is not None]
        places = [sink.names.index(name) for name in sink.key_names]
        for key, values in changed.items():
            row = _at(len(sink.names), places, key) if values is None else [*values]
            for place, writer in needed:
                row[place] = writer(row[place])
            row.append(values is None)
            yield row


def _at(width: int, places: Sequence[int], key: Values) -> list[Any]:
    row: list[Any] = [None] * width
    for place, value in zip(places, key, strict=True):
        row[place] = value
    return row


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _upserting(sink: Sink, insert: Any) -> Any:
    """The insert that replaces a row with the same primary key."""
    others = {name: insert.excluded[name] for name in sink.names if name not in sink.key_names}
    if not others:
        return insert.on_conflict_do_nothing()
    return insert.on_conflict_do_update(index_elements=sink.key_names, set_=others)
