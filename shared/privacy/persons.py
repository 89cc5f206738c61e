"""The key of each person, in a database that no topic, mirror or archive includes: to drop a key is to forget a person.

In the log a key could not be dropped: compaction removes it from one cluster at some later time, and from no backup.
"""

from __future__ import annotations

import secrets
from collections.abc import Collection
from functools import cached_property
from typing import TYPE_CHECKING
from urllib.parse import quote

from shared.domain.errors import OnefoldError
from shared.runtime.settings import Settings, SettingsError

if TYPE_CHECKING:
    from shared.privacy.keys_table import KeysTable

_EXAMPLE = "postgresql+psycopg://user:password@host/name?connect_timeout=3&tcp_user_timeout=3000&keepalives_idle=3"

KEY_BYTES = 64  # AES-SIV takes half of it to authenticate, half to encrypt

KEYS_FILE = "person-keys.sqlite3"
"""In dev, in the folder of the stores."""


def url_of(settings: Settings) -> str:
    """Of the database; in dev, if none is set, a file that the workers of this machine share."""
    file = quote(str(settings.data_dir.absolute() / KEYS_FILE), safe=" +/")
    return settings.person_keys.get_secret_value() or f"sqlite:///{file}"


def check_person_keys(settings: Settings) -> None:
    """For a service with personal fields. Raises SettingsError for no database, or one that can't be used."""
    if settings.env == "prod" and not settings.person_keys.get_secret_value():
        fix = "name a database that is backed up apart from the topics"
        raise SettingsError(f"ONEFOLD_PERSON_KEYS is not set, and there are personal fields; fix: {fix}")
    from shared.privacy.keys_table import backend_of  # with SQLAlchemy, which no worker without personal fields needs

    fix = f"give SQLAlchemy's URL, such as {_EXAMPLE}, and install the driver"
    try:
        backend = backend_of(url_of(settings))
    except ValueError as error:
        raise SettingsError(f"ONEFOLD_PERSON_KEYS cannot be used: {error}; fix: {fix}") from error
    if settings.env == "prod" and backend == "sqlite":
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
        """Its name, without a password."""
        return self._table.database

    def of(self, persons: Collection[str]) -> dict[str, bytes | None]:
        """The keys of those that have or had one; None for the forgotten."""
        return self._table.of(persons)

    def of_or_new(self, person: str) -> bytes:
        """The person's key, made now if there is none; callers at the same time get the same one. Raises Forgotten."""
        if person not in (found := self.of([person])):
            self._table.add(person, secrets.token_bytes(KEY_BYTES))
            found = self.of([person])
        key = found[person]
        if key is None:
            raise Forgotten(person)
        return key

    def forget(self, person: str) -> bool:
        """Drop the key for ever; no other will be made. False: there was none."""
        self._table.add(person, None)
        return self._table.drop(person)

    @cached_property
    def _table(self) -> KeysTable:
        from shared.privacy.keys_table import KeysTable  # as above

        return KeysTable(self._url)
