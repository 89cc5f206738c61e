"""Webhooks by the specification Standard Webhooks 1.0, https://www.standardwebhooks.com."""

from __future__ import annotations

import hmac
import time
from base64 import b64decode, b64encode
from contextlib import suppress
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from functools import cached_property

import httpx
from pydantic import SecretStr

from shared.effects.target import CallFailed, Target, key_of
from shared.runtime.clients import DIRECT, trusted
from shared.topology.effect import Content

_AMBIGUOUS = (500, 502, 504)  # it, or a gateway, has failed amid the work
_PREFIX = "whsec_"


class Unclear(Exception):
    """An answer that leaves open whether there was an effect."""


@dataclass(frozen=True)
class Webhook(Target):
    """Posts the body, with the effect's id as `webhook-id` and `Idempotency-Key`.

    url     where to.
    secret  shared with the receiver, as `whsec_…`: `whsec_` and the Base64 of 24 to 64 random bytes.
    name, repeats, at_once, timeout_s, breaks_after, rests_s: as of every Target.

    Any answer of 2xx is a success; 410 gives the effect up, after any other it is attempted again. With `Retry-After`
    it gets no call for so long. Redirects are not followed.
    """

    url: str = field(kw_only=True)
    secret: SecretStr = field(kw_only=True)

    @cached_property
    def _http(self) -> httpx.AsyncClient:
        kept = None if self.repeats else 0  # on one that the receiver has just closed, a call ends without an answer
        limits = httpx.Limits(max_keepalive_connections=kept)
        return httpx.AsyncClient(timeout=self.timeout_s, mounts=DIRECT, verify=trusted(), limits=limits)

    async def send(self, effect_id: str, content: Content) -> None:
        id_, at_s = key_of(effect_id), int(time.time())
        headers = {
            "Content-Type": "application/json",
            "Idempotency-Key": id_,
            "webhook-id": id_,
            "webhook-timestamp": str(at_s),
            "webhook-signature": signature(self.secret.get_secret_value(), id_, at_s, content.body),
        }
        try:
            answer = await self._http.post(self.url, content=content.body.encode(), headers=headers)
        except (httpx.ConnectError, httpx.ConnectTimeout) as error:
            raise CallFailed(type(error).__name__) from error
        if answer.status_code in _AMBIGUOUS:
            raise Unclear(str(answer.status_code))
        if not answer.is_success:
            final, rest_s = answer.status_code == httpx.codes.GONE, _seconds(answer.headers.get("Retry-After", ""))
            raise CallFailed(str(answer.status_code), final=final, rest_s=rest_s)


def _seconds(retry_after: str) -> float:
    """From now; 0 for what is neither seconds nor a date."""
    with suppress(ValueError):
        if retry_after.isdecimal():
            return float(retry_after)
        return parsedate_to_datetime(retry_after).timestamp() - time.time()
    return 0.0


def signature(secret: str, id_: str, at_s: int, body: str) -> str:
    """The header `webhook-signature`."""
    signed = f"{id_}.{at_s}.{body}".encode()
    return "v1," + b64encode(hmac.digest(b64decode(secret.removeprefix(_PREFIX)), signed, "sha256")).decode()
