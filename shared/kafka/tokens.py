"""Tokens with which aiokafka signs in to the brokers; librdkafka and Java get theirs by themselves."""

from __future__ import annotations

import aiohttp
from aiokafka.abc import AbstractTokenProvider
from aiokafka.errors import KafkaConnectionError

from shared.kafka.access import ANSWER_S
from shared.runtime.settings import Principal

_TIMEOUT = aiohttp.ClientTimeout(total=ANSWER_S)


class ClientTokens(AbstractTokenProvider):  # type: ignore[misc]
    """Asks for one for each connection, which are few, by the grant of client credentials (RFC 6749, 4.4)."""

    def __init__(self, principal: Principal, url: str) -> None:
        self._login = {"Authorization": aiohttp.encode_basic_auth(principal.user, principal.password)}
        self._asked = {"grant_type": "client_credentials"}
        self._asked |= {"scope": principal.token_scope} if principal.token_scope else {}
        self._url = url

    async def token(self) -> str:
        """Raises KafkaConnectionError without one: aiokafka tries again after that, and would end after another."""
        try:
            async with (
                aiohttp.ClientSession(timeout=_TIMEOUT, raise_for_status=True, trust_env=True) as http,
                http.post(self._url, data=self._asked, headers=self._login) as answer,
            ):
                return str((await answer.json(content_type=None))["access_token"])
        except (aiohttp.ClientError, TimeoutError, ValueError, KeyError, TypeError) as error:
            fix = "see what the issuer says, and ONEFOLD_KAFKA_TOKEN_URL, ONEFOLD_KAFKA_USER and its password"
            raise KafkaConnectionError(f"no token from {self._url}: {error!r}; fix: {fix}") from error
