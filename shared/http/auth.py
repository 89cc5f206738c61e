"""Authentication: a bearer token of an OIDC issuer, verified with the issuer's published keys.

Only RS256 and ES256 are accepted: a token signed with a shared secret, or not at all, is refused.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from math import inf, isfinite, nan
from pathlib import Path
from typing import Any, Protocol

import aiohttp
import jwt
import structlog
from fastapi import Request
from pydantic import BaseModel, ConfigDict

from shared.domain.errors import NotReady
from shared.http.refusals import Forbidden, Unauthenticated
from shared.runtime.clock import brokers_clock, elapsed_s
from shared.runtime.settings import Settings

log = structlog.get_logger(__name__)

ALGORITHMS = ("RS256", "ES256")
LEEWAY_S = 10  # between the issuer's clock and the brokers'
REFRESH_S = 600.0
MISS_PAUSE_S = 10.0  # between two requests to the issuer while it is down, and at least, whatever keys tokens name
FETCH_TIMEOUT_S = 3.0
REMEMBERED = 1_000  # verified tokens; checking a signature takes 250 µs


class Authority(BaseModel):
    """What a caller may do according to its verified token.

    owner: the only aggregate id it may access where aggregates have owners. expires_at: seconds since the epoch.
    """

    model_config = ConfigDict(frozen=True)

    subject: str
    scopes: frozenset[str]
    owner: str | None = None
    expires_at: float

    def check_scope(self, scope: str) -> None:
        """Raises Forbidden."""
        if scope not in self.scopes:
            raise Forbidden("scope.missing", f"this needs the scope {scope}")


def caller_of(request: Request) -> Authority | None:
    """The caller that the route's guard has verified; None when authentication is off."""
    found: Authority | None = request.scope.get("onefold.caller")
    return found


@dataclass
class OwnRows:
    """The rows to which a caller is confined: those whose `field` names it. owner: None owns nothing.

    heeded: whether what answers the request has asked for this.
    """

    field: str
    owner: str | None
    heeded: bool = False

    def has(self, part: object) -> bool:
        """Whether a state, or a command, names the caller."""
        return self.owner is not None and getattr(part, self.field, None) == self.owner


def own_rows(request: Request) -> OwnRows | None:
    """What the answer has to keep to; None for all rows, as where they have no owners or the caller has `:any`."""
    found: OwnRows | None = request.scope.get("onefold.own_rows")
    if found is not None:
        found.heeded = True
    return found


class Keys(Protocol):
    """An issuer's public keys. age_s: how many seconds ago they were read."""

    @property
    def age_s(self) -> float: ...

    async def keep(self) -> None:
        """Keeps them up to date, for as long as it runs."""

    async def find(self, key_id: str | None) -> jwt.PyJWK:
        """Raises Unauthenticated for a key that the issuer does not have, and NotReady while it can't be known."""


class Tokens:
    """Verifies bearer tokens of one issuer for one audience."""

    def __init__(self, issuer: str, audience: str, owner_claim: str, keys: Keys) -> None:
        self._issuer = issuer
        self._audience = audience
        self._owner_claim = owner_claim
        self.keys = keys
        self._decoded = lru_cache(REMEMBERED)(self._decode)  # by token and key, so a withdrawn key no longer counts

    async def verify(self, token: str) -> Authority:
        """Raises Unauthenticated, saying why, and NotReady while the issuer's keys are unknown."""
        try:
            header = jwt.get_unverified_header(token)
            if header.get("alg") not in ALGORITHMS:
                raise Unauthenticated(f"a token must be signed with {' or '.join(ALGORITHMS)}")
            authority, begins_at = self._decoded(token, await self.keys.find(header.get("kid")))
        except jwt.InvalidTokenError as error:
            raise Unauthenticated(f"{type(error).__name__}: {error}"[:200]) from error
        now = brokers_clock.now()
        if authority.expires_at <= now - LEEWAY_S:
            raise Unauthenticated("the token has expired")
        if begins_at > now + LEEWAY_S:
            raise Unauthenticated("the token is not valid yet")
        return authority

    def _decode(self, token: str, key: jwt.PyJWK) -> tuple[Authority, float]:
        """What it allows, and from when on, in seconds since the epoch. Raises jwt.InvalidTokenError."""
        claims = jwt.decode(
            token,
            key,
            algorithms=list(ALGORITHMS),
            audience=self._audience,
            issuer=self._issuer,
            options={
                "require": ["aud", "exp", "iss", "sub"],
                "verify_exp": False,  # these three, which `verify` checks, would be by this machine's clock
                "verify_iat": False,
                "verify_nbf": False,
            },
        )
        authority = Authority(
            subject=str(claims["sub"]),
            scopes=frozenset(_scopes(claims)),
            owner=_text(claims.get(self._owner_claim)),
            expires_at=_time(claims, "exp"),
        )
        return authority, max(_time(claims, "nbf"), _time(claims, "iat"))


def _scopes(claims: Mapping[str, Any]) -> Iterable[str]:
    """From `scope`, a string (RFC 8693), or from `scp`, which other issuers send as a list or a string.

    Raises jwt.InvalidTokenError.
    """
    name = "scp" if claims.get("scope") is None else "scope"
    found = claims.get(name)
    if found is None:
        return []
    if isinstance(found, str):
        return found.split()
    if isinstance(found, list) and all(isinstance(each, str) for each in found):
        return found
    raise jwt.InvalidTokenError(f"{name} must be a string or a list of strings")


def _time(claims: Mapping[str, Any], name: str) -> float:
    """0 without the claim. Raises jwt.InvalidTokenError."""
    try:
        time = float(claims.get(name, 0))
    except (OverflowError, TypeError, ValueError):
        time = nan
    if not isfinite(time):
        raise jwt.InvalidTokenError(f"{name} is not a time")
    return time


def _text(claim: object) -> str | None:
    return claim if isinstance(claim, str) else None


class KeySet:
    """An issuer's key set (JWKS), which `keep` reads again and again from a URL or a file.

    A request waits for that only if its key is unknown, as the issuer's next one is at first, or the keys are too old.
    """

    def __init__(self, source: str, issuer: str, max_age_s: float) -> None:
        """max_age_s: how long keys are trusted without having been read again."""
        self._source = source
        self._issuer = issuer
        self._max_age_s = max_age_s
        self._keys: dict[str | None, jwt.PyJWK] = {}
        self._asked_at = self._read_at = -inf  # by `elapsed_s`: equal if the last request succeeded
        self._reading: asyncio.Future[None] | None = None

    @property
    def age_s(self) -> float:
        """How long ago the issuer was asked for the keys that are known; inf before the first."""
        return elapsed_s() - self._read_at

    async def keep(self) -> None:
        """Reads the keys for as long as it runs."""
        while True:
            await self._read()
            await asyncio.sleep(REFRESH_S if self._read_at == self._asked_at else MISS_PAUSE_S)

    async def find(self, key_id: str | None) -> jwt.PyJWK:
        if key_id not in self._keys or self.age_s > self._max_age_s:
            await self._read()
        if self.age_s > self._max_age_s:
            since = f"for {self.age_s:.0f} s" if self._keys else "yet"
            raise NotReady(
                f"the keys of {self._issuer} could not be read {since}, so its tokens can't be trusted; "
                f"fix: let workers reach what ONEFOLD_AUTH_JWKS names, or raise ONEFOLD_AUTH_JWKS_MAX_AGE_S"
            )
        if key_id in self._keys:
            return self._keys[key_id]
        if self._read_at < self._asked_at:
            raise NotReady(f"the keys of {self._issuer} can't be read now")
        raise Unauthenticated("the issuer has no such key")

    async def _read(self) -> None:
        """Asks the issuer, unless it was asked just now; once for all that wait."""
        if self._reading is None or self._reading.done():
            if elapsed_s() - self._asked_at <= MISS_PAUSE_S:
                return
            self._reading = asyncio.ensure_future(self._ask())
        await asyncio.shield(self._reading)

    async def _ask(self) -> None:
        asked_at = elapsed_s()
        try:
            self._keys = _usable(await self._fetch())
            self._read_at = asked_at
        except (OSError, aiohttp.ClientError, TimeoutError, ValueError) as error:
            tell = log.error if self.age_s > self._max_age_s else log.warning
            tell("the issuer's keys can't be read", source=self._source, reason=str(error), age=f"{self.age_s:.0f} s")
        self._asked_at = asked_at

    async def _fetch(self) -> bytes:
        if not self._source.startswith(("https://", "http://")):
            return await asyncio.to_thread(Path(self._source).read_bytes)
        timeout = aiohttp.ClientTimeout(total=FETCH_TIMEOUT_S)
        async with (
            aiohttp.ClientSession(timeout=timeout, raise_for_status=True) as session,
            session.get(self._source, allow_redirects=False) as answer,
        ):
            return await answer.read()


class _Published(BaseModel):
    keys: list[dict[str, Any]]


def _usable(key_set: bytes) -> dict[str | None, jwt.PyJWK]:
    """The keys for algorithms that we accept, by id, without broken ones. Raises ValueError."""
    keys = {}
    for fields in filter(_can_sign, _Published.model_validate_json(key_set).keys):
        try:
            keys[fields.get("kid")] = jwt.PyJWK(fields, "RS256" if fields["kty"] == "RSA" else "ES256")
        except (jwt.PyJWTError, TypeError) as error:  # TypeError: its id is not hashable
            log.warning("a key of the issuer is unusable and left out", key_id=fields.get("kid"), reason=str(error))
    return keys


def _can_sign(fields: Mapping[str, Any]) -> bool:
    """Whether the key is for one of ALGORITHMS."""
    return (fields.get("kty"), fields.get("crv")) in (("RSA", None), ("EC", "P-256")) and fields.get("use") != "enc"


def tokens_of(settings: Settings) -> Tokens | None:
    """None when authentication is off, for development."""
    if settings.auth == "off":
        return None
    assert settings.auth_issuer is not None
    assert settings.auth_audience is not None
    assert settings.auth_jwks is not None
    keys = KeySet(settings.auth_jwks, settings.auth_issuer, settings.auth_jwks_max_age_s)
    return Tokens(settings.auth_issuer, settings.auth_audience, settings.auth_owner_claim, keys)
