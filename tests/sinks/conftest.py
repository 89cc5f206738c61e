"""A database of each kind, one PostgreSQL server and one broker for all tests of this folder."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest
from sqlalchemy import create_engine, text

from shared.dev.embedded import EmbeddedKafka
from shared.dev.postgres import Postgres, programs
from shared.operations.provision import provision
from shared.runtime.settings import Settings
from tests.accounts.topology import TOPOLOGY
from tests.sinks.outside import Log

_NUMBERS = count(1)


@pytest.fixture(scope="package")
def postgres() -> Iterator[Postgres]:
    if programs() is None:
        pytest.skip("PostgreSQL is not installed")
    with Postgres.temporary() as server:
        yield server


@pytest.fixture(scope="package")
def bootstrap(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """One broker, with the topics of accounts."""
    root = tmp_path_factory.mktemp("kafka")
    with EmbeddedKafka(root / "data", root / "logs") as kafka:
        provision([TOPOLOGY], Settings(bootstrap=kafka.bootstrap))
        yield kafka.bootstrap


@pytest.fixture
def log(bootstrap: str) -> Log:
    return Log(bootstrap, TOPOLOGY, next(_NUMBERS))


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Of an empty database."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'sinks.sqlite3'}"
    return empty_database(request.getfixturevalue("postgres"))


def empty_database(postgres: Postgres) -> str:
    name = f"sinks{next(_NUMBERS)}"
    engine = create_engine(postgres.url, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        connection.execute(text(f"CREATE DATABASE {name}"))
    engine.dispose()
    return engine.url.set(database=name).render_as_string(hide_password=False)
