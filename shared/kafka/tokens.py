"""Tokens with which aiokafka signs in to the brokers; librdkafka and Java get theirs by themselves."""

from __future__ import annotations

import ssl

import httpx
from aiokafka.abc import AbstractTokenProvider
from aiokafka.errors import KafkaConnectionError

from shared.kafka.access import ANSWER_S
from shared.runtime.settings import Principal


class ClientTokens(AbstractTokenProvider):  # type: ignore[misc]
    """Asks for one for each connection, which are few, by the grant of client credentials (RFC 6749, 4.4)."""

    def __init__(self, principal: Principal, url: str) -> None:
        self._login = (principal.user, principal.password)
        self._asked = {"grant_type": "client_credentials"}
        self._asked |= {"scope": principal.token_scope} if principal.token_scope else {}
        self._url = url

    async def token(self) -> str:
        """Raises KafkaConnectionError without one: aiokafka tries again after that, and would end after another."""
        try:
            async with httpx.AsyncClient(timeout=ANSWER_S, verify=ssl.create_default_context()) as client:
                answer = await client.post(self._url, data=self._asked, auth=self._login)
            return str(answer.raise_for_status().json()["access_token"])
        except (httpx.HTTPError, ValueError, KeyError, TypeError) as error:
            fix = "see what the issuer says, and ONEFOLD_KAFKA_TOKEN_URL, ONEFOLD_KAFKA_USER and its password"
            raise KafkaConnectionError(f"no token from {self._url}: {error!r}; fix: {fix}") from error
