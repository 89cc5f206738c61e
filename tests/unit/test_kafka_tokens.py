"""A client of the brokers that signs in by a token: aiokafka's is fetched here, the others are told where it is."""

from __future__ import annotations

import asyncio
from pathlib import Path

import httpx
import jwt
import pytest

from shared.dev.issuer import DevIssuer
from shared.kafka import access
from shared.kafka.tokens import ClientTokens
from shared.runtime.settings import Principal
from tests.secure.tokens import AUDIENCE, token_endpoint

SECRET = 'only "we" know: ß'


def principal(url: str, secret: str = SECRET) -> Principal:
    return Principal("accounts", secret, Path("/ca.pem"), "OAUTHBEARER", url, "brokers all")


def test_a_client_gets_a_token_of_its_own_with_the_scope_it_asked_for(tmp_path: Path) -> None:
    with token_endpoint(DevIssuer(tmp_path), lambda _: SECRET) as url:
        token = asyncio.run(ClientTokens(principal(url), url).token())
        told = jwt.decode(token, options={"verify_signature": False})
        assert (told["sub"], told["aud"], told["scope"]) == ("accounts", AUDIENCE, "brokers all")
        with pytest.raises(httpx.HTTPStatusError, match="401"):
            asyncio.run(ClientTokens(principal(url, "a guess"), url).token())


def test_librdkafka_and_java_are_told_where_tokens_are(monkeypatch: pytest.MonkeyPatch) -> None:
    url = "https://issuer/token"
    monkeypatch.setattr(access, "_principal", lambda: principal(url))
    told = access.client_config("b:1")
    assert told["sasl.mechanism"] == "OAUTHBEARER"
    assert {name.removeprefix("sasl.oauthbearer."): value for name, value in told.items() if "oauth" in name} == {
        "method": "oidc",
        "token.endpoint.url": url,
        "client.id": "accounts",
        "client.secret": SECRET,
        "scope": "brokers all",
    }
    assert {name for name in told if name.startswith("sasl.")}.isdisjoint({"sasl.username", "sasl.password"})
    login = access.java_options("b:1")["sasl.jaas.config"]
    assert login == (
        "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required "
        r'clientId="accounts" clientSecret="only \"we\" know: ß" scope="brokers all";'
    )
    assert access.java_flags() == [f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls={url}"]
