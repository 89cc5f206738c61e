"""The key of each person, in a database that no topic, mirror or archive includes: to drop a key is to forget a person.

In the log a key could not be dropped: compaction removes it from one cluster at some later time, and from no backup.
"""

from __future__ import annotations

import secrets
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from functools import cached_property
from pathlib import Path

import structlog
from sqlalchemy import (
    URL,
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

from shared.domain.errors import NotReady, OnefoldError
from shared.runtime.settings import Settings, SettingsError

log = structlog.get_logger(__name__)

_EXAMPLE = "postgresql+psycopg://user:password@host/name?connect_timeout=3&tcp_user_timeout=3000&keepalives_idle=3"

_AT_ONCE = 1_000  # persons in a query: databases limit its parameters, and a page of many partitions has thousands
KEY_BYTES = 64  # AES-SIV takes half of it to authenticate, half to encrypt

KEYS_FILE = "person-keys.sqlite3"
"""In dev, in the folder of the stores."""
_KEYS = Table(
    "onefold_person_keys",
    MetaData(),
    Column("person", String(255), primary_key=True),
    Column("key", LargeBinary(KEY_BYTES), nullable=True),  # null: forgotten
)


def url_of(settings: Settings) -> str:
    """Of the database; in dev, if none is set, a file that the workers of this machine share."""
    file = settings.data_dir.absolute() / KEYS_FILE
    return settings.person_keys.get_secret_value() or URL.create("sqlite", database=str(file)).render_as_string()


def check_person_keys(settings: Settings) -> None:
    """For a service with personal fields. Raises SettingsError for no database, or one that can't be used."""
    if settings.env == "prod" and not settings.person_keys.get_secret_value():
        fix = "name a database that is backed up apart from the topics"
        raise SettingsError(f"ONEFOLD_PERSON_KEYS is not set, and there are personal fields; fix: {fix}")
    fix = f"give SQLAlchemy's URL, such as {_EXAMPLE}, and install the driver"
    try:
        engine = create_engine(url_of(settings))
    except (SQLAlchemyError, ImportError) as error:
        raise SettingsError(f"ONEFOLD_PERSON_KEYS cannot be used: {error}; fix: {fix}") from error
    except (ValueError, TypeError):  # which quote it, with its password
        raise SettingsError(f"ONEFOLD_PERSON_KEYS cannot be used: it is no URL of a database; fix: {fix}") from None
    if settings.env == "prod" and engine.url.get_backend_name() == "sqlite":
        fix = f"name a database that every worker reaches, such as {_EXAMPLE}"
        raise SettingsError(f"ONEFOLD_PERSON_KEYS is SQLite, which other machines do not share; fix: {fix}")


class Forgotten(OnefoldError):
    """Personal data of somebody who was forgotten: there is no key any more, and there will be none."""

    def __init__(self, person: str) -> None:
        super().__init__(f"{person} was forgotten, so nothing personal can be kept of them any more")


class PersonKeys:
    """Blocking and thread-safe. Every method raises NotReady while the database does not answer."""

    def __init__(self, url: str) -> None:
        """url: SQLAlchemy's, such as `sqlite:////a/file`."""
        self._url = url

    @property
    def database(self) -> str:
        """Its name, without a password, which may be in the query, too."""
        return make_url(self._url).set(query={}).render_as_string()

    def of(self, persons: Collection[str]) -> dict[str, bytes | None]:
        """The keys of those that have or had one; None for the forgotten."""
        wanted = [*persons]
        some = (wanted[begin : begin + _AT_ONCE] for begin in range(0, len(wanted), _AT_ONCE))
        with self._connected() as connection:
            queries = (select(_KEYS).where(_KEYS.c.person.in_(each)) for each in some)
            return {row.person: row.key for query in queries for row in connection.execute(query)}

    def of_or_new(self, person: str) -> bytes:
        """The person's key, made now if there is none; callers at the same time get the same one. Raises Forgotten."""
        if person not in (found := self.of([person])):
            self._add(person, secrets.token_bytes(KEY_BYTES))
            found = self.of([person])
        key = found[person]
        if key is None:
            raise Forgotten(person)
        return key

    def forget(self, person: str) -> bool:
        """Drop the key for ever; no other will be made. False: there was none."""
        self._add(person, None)
        has_key = _KEYS.c.person == person, _KEYS.c.key.is_not(None)
        with self._connected() as connection:
            return connection.execute(_KEYS.update().where(*has_key).values(key=None)).rowcount > 0

    def _add(self, person: str, key: bytes | None) -> None:
        """Does nothing if the person is there already."""
        with suppress(IntegrityError), self._connected() as connection:
            connection.execute(_KEYS.insert().values(person=person, key=key))

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
        """Connected lazily, so that a service without personal data needs no database."""
        url = make_url(self._url)
        if url.get_backend_name() == "sqlite" and url.database:
            Path(url.database).parent.mkdir(parents=True, exist_ok=True)
            Path(url.database).touch(mode=0o600)
        engine = create_engine(url, pool_pre_ping=True, hide_parameters=True)
        if not inspect(engine).has_table(_KEYS.name):
            with suppress(IntegrityError), engine.begin() as connection:  # another process makes it now
                connection.execute(CreateTable(_KEYS, if_not_exists=True))
        return engine
