"""How aiokafka's clients connect, and the tokens they sign in with; librdkafka and Java get theirs by themselves."""

from __future__ import annotations

import ssl
from typing import Any

import aiohttp
from aiokafka.abc import AbstractTokenProvider
from aiokafka.errors import KafkaConnectionError

from shared.kafka.access import ANSWER_S
from shared.runtime.settings import Principal

_TIMEOUT = aiohttp.ClientTimeout(total=ANSWER_S)


def aiokafka_config(bootstrap: str, principal: Principal | None) -> dict[str, Any]:
    """The settings that every aiokafka client outside of a group starts from."""
    answer_ms = int(ANSWER_S * 1000)
    config = {
        "bootstrap_servers": bootstrap,
        "request_timeout_ms": answer_ms,
        "metadata_max_age_ms": answer_ms,  # else it would return to the broker that did not answer
    }
    if principal is None:
        return config
    config |= {
        "security_protocol": "SASL_SSL",
        "sasl_mechanism": principal.mechanism,
        "ssl_context": ssl.create_default_context(cafile=principal.ca),
    }
    if principal.token_url is not None:
        return config | {"sasl_oauth_token_provider": ClientTokens(principal, principal.token_url)}
    return config | {"sasl_plain_username": principal.user, "sasl_plain_password": principal.password}


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
