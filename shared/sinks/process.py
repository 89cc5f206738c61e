"""The process that fills all sinks of a service. Any number of them may run: each sink is filled by one."""

from __future__ import annotations

import asyncio
import os
import secrets
import signal
import socket
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import structlog
from sqlalchemy import URL, make_url

from shared.privacy.persons import check_person_keys
from shared.privacy.sealing import sealer
from shared.runtime.logs import configure_logging
from shared.runtime.settings import Settings, SettingsError
from shared.sinks.database import Database
from shared.sinks.filling import Filling
from shared.sinks.sink import Sink
from shared.topology.topics import Topology

log = structlog.get_logger(__name__)


def url_of(settings: Settings) -> str:
    """Of the sinks' database; in dev, if none is set, a file. Raises SettingsError."""
    if url := settings.sink_database.get_secret_value():
        return url
    if settings.env == "prod":
        raise SettingsError("ONEFOLD_SINK_DATABASE is not set, and there are sinks; fix: name their database")
    return URL.create("sqlite", database=str(settings.data_dir.absolute() / "sinks.sqlite3")).render_as_string()


def database_of(settings: Settings) -> Database:
    """Raises SettingsError."""
    url = url_of(settings)
    try:
        return Database(url, settings.session_timeout_s)
    except Exception as error:  # SQLAlchemy's, or a ValueError that quotes the URL with its password
        kind = type(error).__name__
        fix = "give a URL such as postgresql+psycopg://user:password@host/name, or sqlite:////a/file"
        raise SettingsError(f"ONEFOLD_SINK_DATABASE cannot be used ({kind}); fix: {fix}") from None


def begun_database(settings: Settings) -> Database | None:
    """None where none is named, or its file is not there: nobody has begun to fill it. Raises SettingsError."""
    if not settings.sink_database.get_secret_value() and settings.env == "prod":
        return None
    database, url = database_of(settings), make_url(url_of(settings))
    is_there = url.get_backend_name() != "sqlite" or Path(url.database or "").exists()
    return database if is_there else None


def run(topology: Topology, sinks: Sequence[Sink], settings: Settings) -> None:
    """Fills the sinks until SIGTERM or SIGINT. Raises SettingsError, and ValueError for two of one name and version."""
    names = [sink.table.name for sink in sinks]
    if repeated := {name for name in names if names.count(name) > 1}:
        raise ValueError(f"more than one sink fills {sorted(repeated)}; fix: give one another name or version")
    configure_logging(settings)
    if any(sink.opens for sink in sinks):
        check_person_keys(settings)
    with closing(database_of(settings)) as database:
        asyncio.run(_run(topology, sinks, settings, database))


async def _run(topology: Topology, sinks: Sequence[Sink], settings: Settings, database: Database) -> None:
    owner = f"{settings.instance}@{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(4)}"
    this = asyncio.current_task()
    assert this is not None
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, this.cancel)
    try:
        async with asyncio.TaskGroup() as everything:
            for sink in sinks:
                filling = Filling(sink, topology, database, settings.bootstrap, owner, settings.session_timeout_s)
                everything.create_task(filling.run(sealer(settings) if sink.opens else None))
    except asyncio.CancelledError:
        log.info("the sinks stop; what is not committed will be read again")
