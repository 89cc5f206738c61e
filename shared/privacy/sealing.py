"""Personal fields, encrypted and decrypted with the key of the person they are about.

A secret is `sealed:1:PERSON:TEXT`, both in Base64. It names its person, so that any service with the keys can show it.
The same text of the same person gives the same secret, so a repeated command is known as one.
"""

from __future__ import annotations

import asyncio
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import NamedTuple, TypeVar

import structlog
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESSIV
from pydantic import BaseModel

from shared.domain.errors import NotReady
from shared.domain.personal import SEALED, personal_fields
from shared.privacy.persons import PersonKeys, url_of
from shared.runtime.clock import elapsed_s
from shared.runtime.settings import Settings

log = structlog.get_logger(__name__)

A = TypeVar("A")
M = TypeVar("M", bound=BaseModel)
R = TypeVar("R")

KEPT_S = 5.0  # how long a process may go on showing what it has a key for, after a person was forgotten
MANY = 100  # persons, whose texts take a millisecond: those of more are decrypted beside the event loop
ANSWER_S = 3.0  # how long a request waits for the database
PAUSE_S = 1.0  # how long nobody else does after that: each of many lines would, in turn
MAX_CHARS = 1_000  # of a personal text


class Sealer:
    """Encrypts the personal fields of commands, and decrypts those of what is shown. Thread-safe."""

    def __init__(self, keys: PersonKeys) -> None:
        self._keys = keys
        self._kept: dict[str, bytes | None] = {}
        self._kept_since = 0.0
        self._asked_again_at = 0.0
        # its own: if the database hangs, asyncio's are still there for everything else
        self._threads = ThreadPoolExecutor(4, thread_name_prefix="person-keys")

    async def sealed(self, command: M, person: str) -> M:
        """The command with its personal fields encrypted.

        Raises Forgotten, NotReady, and ValueError for a text that is too long.
        """
        texts = _personal(command)
        if not texts:
            return command
        for name, text in texts.items():
            if len(text) > MAX_CHARS:
                raise ValueError(f"{name}: a personal text has at most {MAX_CHARS} characters, this one {len(text)}")
        key = await self._answered(self._keys.of_or_new, person)
        return command.model_copy(update={name: _sealed(text, person, key) for name, text in texts.items()})

    async def unsealed(self, models: Sequence[M]) -> Sequence[M]:
        """The models with text again in personal fields, None where it is forgotten. Raises NotReady."""
        secrets = [*map(_secrets, models)]
        persons, kept = _persons(secrets), self._recent()
        if not persons <= kept.keys():
            kept = await self._answered(self._load, persons)
        if len(persons) > MANY:
            return await asyncio.to_thread(_shown, models, secrets, kept)
        return _shown(models, secrets, kept)

    async def _answered(self, ask: Callable[[A], R], asked: A) -> R:
        """What the database answers. Raises NotReady if it takes too long, or has just done so."""
        if elapsed_s() < self._asked_again_at:
            raise NotReady("the database of personal keys has not answered, and is asked again in a moment")
        answer = asyncio.get_running_loop().run_in_executor(self._threads, ask, asked)
        try:
            return await asyncio.wait_for(answer, ANSWER_S)
        except TimeoutError:
            self._asked_again_at = elapsed_s() + PAUSE_S
            raise NotReady(f"the database of personal keys has not answered within {ANSWER_S:.0f} s") from None

    def _load(self, persons: set[str]) -> dict[str, bytes | None]:
        kept = self._recent()
        if missing := {person for person in persons if person not in kept}:
            found = self._keys.of(missing)
            if unknown := missing - found.keys():
                fix = "let ONEFOLD_PERSON_KEYS name the database that has their keys"
                log.error("personal texts without a key are not shown", persons=sorted(unknown), fix=fix)
            kept.update(dict.fromkeys(missing) | found)
        return kept

    def _recent(self) -> dict[str, bytes | None]:
        if elapsed_s() - self._kept_since > KEPT_S:
            self._kept, self._kept_since = {}, elapsed_s()
        return self._kept


class _Secret(NamedTuple):
    person: str
    sealed: bytes

    def text(self, key: bytes | None) -> str | None:
        """None: it can't be read."""
        if key is None:
            return None
        try:
            return AESSIV(key).decrypt(self.sealed, [self.person.encode()]).decode()
        except InvalidTag:
            log.error("a personal text was not encrypted with its person's key", person=self.person)
            return None


_Secrets = Mapping[str, _Secret]
"""By field."""


def has_personal_text(model: BaseModel) -> bool:
    return any(getattr(model, name) is not None for name in personal_fields(type(model)))


def _personal(model: BaseModel) -> dict[str, str]:
    """The personal texts that it has, by field."""
    return {name: text for name in personal_fields(type(model)) if (text := getattr(model, name)) is not None}


def _sealed(text: str, person: str, key: bytes) -> str:
    parts = person.encode(), AESSIV(key).encrypt(text.encode(), [person.encode()])
    return SEALED + ":".join(urlsafe_b64encode(part).decode() for part in parts)


def _secrets(model: BaseModel) -> _Secrets:
    """What was never encrypted, such as a history from elsewhere, is none."""
    found = {name: _secret(text) for name, text in _personal(model).items()}
    return {name: secret for name, secret in found.items() if secret is not None}


def _secret(text: str) -> _Secret | None:
    if not text.startswith(SEALED):
        return None
    try:
        person, sealed = map(urlsafe_b64decode, text.removeprefix(SEALED).split(":"))
        return _Secret(person.decode(), sealed)
    except ValueError:
        return None


def _persons(secrets: Iterable[_Secrets]) -> set[str]:
    return {secret.person for found in secrets for secret in found.values()}


def _shown(models: Iterable[M], secrets: Iterable[_Secrets], keys: Mapping[str, bytes | None]) -> Sequence[M]:
    return [
        model.model_copy(update={name: each.text(keys[each.person]) for name, each in found.items()})
        if found
        else model
        for model, found in zip(models, secrets, strict=True)
    ]


def sealer(settings: Settings) -> Sealer:
    """The process's own: those with equal settings share the keys that they have read."""
    return _sealer(url_of(settings))


@cache
def _sealer(url: str) -> Sealer:
    return Sealer(PersonKeys(url))
