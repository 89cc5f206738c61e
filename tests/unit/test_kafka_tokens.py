"""A client of the brokers that signs in by a token: aiokafka's is fetched here, the others are told where it is."""

from __future__ import annotations

import asyncio
from pathlib import Path

import jwt
import pytest
from aiokafka.client import AIOKafkaClient
from aiokafka.errors import KafkaConnectionError
from aiokafka.structs import BrokerMetadata
from confluent_kafka import Producer

from shared.dev.authority import Authority
from shared.dev.issuer import DevIssuer
from shared.kafka import access
from shared.kafka.tokens import ClientTokens
from shared.runtime.settings import Principal
from tests.secure.tokens import AUDIENCE, token_endpoint
from tests.waiting import eventually

SECRET = 'only "we" know: ß'


def principal(url: str, secret: str = SECRET) -> Principal:
    return Principal("accounts", secret, Path("/ca.pem"), "OAUTHBEARER", url, "brokers all")


def test_a_client_gets_a_token_of_its_own_with_the_scope_it_asked_for(tmp_path: Path) -> None:
    with token_endpoint(DevIssuer(tmp_path), lambda _: SECRET) as url:
        token = asyncio.run(ClientTokens(principal(url), url).token())
        told = jwt.decode(token, options={"verify_signature": False})
        assert (told["sub"], told["aud"], told["scope"]) == ("accounts", AUDIENCE, "brokers all")
        with pytest.raises(KafkaConnectionError, match=rf"no token from {url}: .*401.*; fix: "):
            asyncio.run(ClientTokens(principal(url, "a guess"), url).token())


def test_without_an_issuer_a_broker_is_not_ready_and_asked_again_later() -> None:
    url = "http://127.0.0.1:1/token"  # nobody listens there

    async def ready() -> bool:
        tokens = ClientTokens(principal(url), url)
        client = AIOKafkaClient(
            security_protocol="SASL_PLAINTEXT", sasl_mechanism="OAUTHBEARER", sasl_oauth_token_provider=tokens
        )

        async def connected(*_: object, **__: object) -> None:
            await tokens.token()  # as soon as a broker answers

        with pytest.MonkeyPatch.context() as patched:
            patched.setattr("aiokafka.client.create_conn", connected)
            client.cluster._brokers = {0: BrokerMetadata(0, "127.0.0.1", 1, None)}
            return bool(await client.ready(0))

    assert asyncio.run(ready()) is False


def test_librdkafka_trusts_a_token_endpoint_as_the_system_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    authority, asked = Authority(), list[str]()
    (tmp_path / "ca.pem").write_bytes(authority.certificate)
    (tmp_path / "server.pem").write_bytes(authority.issue(["127.0.0.1"]))
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "ca.pem"))  # what OpenSSL then takes for the system's

    def secret_of(client: str) -> str:
        asked.append(client)
        return "pw"

    with token_endpoint(DevIssuer(tmp_path), secret_of, tmp_path / "server.pem") as url:
        client = principal(url, "pw")._replace(ca=tmp_path / "ca.pem")
        _ = Producer({"bootstrap.servers": "127.0.0.1:1", **access.signed_in(client)})
        assert eventually(lambda: asked, deadline_s=15) == ["accounts"]


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
