"""The table of keys, by SQLAlchemy. It is imported by whoever opens it: most workers have no personal data."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from functools import cached_property
from pathlib import Path

import structlog
from sqlalchemy import (
    Column,
    Connection,
    Engine,
    LargeBinary,
    MetaData,
    String,
    Table,
    create_engine,
    inspect,
    select,
)
from sqlalchemy.engine import make_url
from sqlalchemy.exc import IntegrityError, SQLAlchemyError
from sqlalchemy.schema import CreateTable

from shared.domain.errors import NotReady
from shared.privacy.persons import KEY_BYTES

log = structlog.get_logger(__name__)

_AT_ONCE = 1_000  # persons in a query: databases limit its parameters, and a page of many partitions has thousands
_KEYS = Table(
    "onefold_person_keys",
    MetaData(),
    Column("person", String(255), primary_key=True),
    Column("key", LargeBinary(KEY_BYTES), nullable=True),  # null: forgotten
)


def backend_of(url: str) -> str:
    """The kind of database, such as sqlite. Raises ValueError for a URL that can't be used, without its password."""
    try:
        return create_engine(url).url.get_backend_name()
    except (SQLAlchemyError, ImportError) as error:
        raise ValueError(str(error)) from error
    except (ValueError, TypeError):  # which quote it, with its password
        raise ValueError("it is no URL of a database") from None


class KeysTable:
    """Blocking and thread-safe. Every method raises NotReady while the database does not answer."""

    def __init__(self, url: str) -> None:
        self._url = url

    @property
    def database(self) -> str:
        """Its name, without a password, which may be in the query, too."""
        return make_url(self._url).set(query={}).render_as_string()

    def of(self, persons: Collection[str]) -> dict[str, bytes | None]:
        wanted = [*persons]
        some = (wanted[begin : begin + _AT_ONCE] for begin in range(0, len(wanted), _AT_ONCE))
        with self._connected() as connection:
            queries = (select(_KEYS).where(_KEYS.c.person.in_(each)) for each in some)
            return {row.person: row.key for query in queries for row in connection.execute(query)}

    def add(self, person: str, key: bytes | None) -> None:
        """Does nothing if the person is there already."""
        with suppress(IntegrityError), self._connected() as connection:
            connection.execute(_KEYS.insert().values(person=person, key=key))

    def drop(self, person: str) -> bool:
        """False: there was no key."""
        has_key = _KEYS.c.person == person, _KEYS.c.key.is_not(None)
        with self._connected() as connection:
            return connection.execute(_KEYS.update().where(*has_key).values(key=None)).rowcount > 0

    @contextmanager
    def _connected(self) -> Iterator[Connection]:
        """A transaction. Raises NotReady and, as it is, IntegrityError."""
        try:
            with self._engine.begin() as connection:
                yield connection
        except IntegrityError:
            raise
        except (SQLAlchemyError, OSError) as error:
            log.warning("the database of personal keys does not answer", reason=str(error))
            raise NotReady("the database of personal keys does not answer") from error

    @cached_property
    def _engine(self) -> Engine:
        """Connected lazily, so that a wrong command of a person needs no database."""
        url = make_url(self._url)
        if url.get_backend_name() == "sqlite" and url.database:
            Path(url.database).parent.mkdir(parents=True, exist_ok=True)
            Path(url.database).touch(mode=0o600)
        engine = create_engine(url, pool_pre_ping=True, hide_parameters=True)
        if not inspect(engine).has_table(_KEYS.name):
            with suppress(IntegrityError), engine.begin() as connection:  # another process makes it now
                connection.execute(CreateTable(_KEYS, if_not_exists=True))
        return engine
