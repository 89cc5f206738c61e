"""How this process's clients connect to the brokers: in plaintext, or as its own principal over TLS."""

from __future__ import annotations

import json
import ssl
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from confluent_kafka import KafkaError

from shared.runtime.settings import Mechanism, Principal, load_settings

ANSWER_S = 10.0  # the longest wait for an answer: a frozen broker closes no connection; 60 or 40 by default
IN_NO_GROUP: Mapping[str, Any] = {
    "group.id": "nobody",  # required, but never joined
    "enable.auto.commit": False,
    "enable.partition.eof": True,
    "isolation.level": "read_committed",
}
"""Of a consumer whose partitions and offsets are chosen here."""
# of such a consumer: librdkafka looks for a coordinator although nothing is committed
GROUP_ERRORS = frozenset({KafkaError.GROUP_AUTHORIZATION_FAILED, KafkaError.COORDINATOR_NOT_AVAILABLE})
ABSENT_FIX = "fix: start the brokers, or name others in ONEFOLD_BOOTSTRAP"

_SCRAM_LOGIN = ("scram.ScramLoginModule", "username", "password")
_LOGINS: Mapping[Mechanism, tuple[str, str, str]] = {
    "SCRAM-SHA-512": _SCRAM_LOGIN,
    "SCRAM-SHA-256": _SCRAM_LOGIN,
    "PLAIN": ("plain.PlainLoginModule", "username", "password"),
    "OAUTHBEARER": ("oauthbearer.OAuthBearerLoginModule", "clientId", "clientSecret"),
}
"""By mechanism, Java's class, and what it calls user and password."""
_TRUSTED = ("/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/cert.pem")
_BY_TOKEN = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginCallbackHandler"


def client_config(bootstrap: str) -> dict[str, Any]:
    """The settings that every librdkafka client of this process starts from."""
    principal = _principal()
    return {
        "bootstrap.servers": bootstrap,
        "socket.timeout.ms": int(ANSWER_S * 1000),
        "reconnect.backoff.max.ms": 1_000,  # 10 s by default, which would prolong a broker's restart
        **(signed_in(principal) if principal else {}),
    }


def spark_options(bootstrap: str) -> dict[str, str]:
    """The same settings for Spark's reads and writes."""
    return {f"kafka.{name}": value for name, value in java_options(bootstrap).items()}


def java_options(bootstrap: str) -> dict[str, str]:
    """The same settings for the Java client, with PEM files as they are."""
    options = {"bootstrap.servers": bootstrap}
    if (principal := _principal()) is not None:
        options |= {
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": principal.mechanism,
            "sasl.jaas.config": _login(principal),
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(principal.ca),
        }
        if principal.token_url is not None:
            options |= {
                "sasl.login.callback.handler.class": _BY_TOKEN,
                "sasl.oauthbearer.token.endpoint.url": principal.token_url,
            }
    return options


def java_flags() -> list[str]:
    """What a JVM needs besides: Kafka's clients get tokens only where it says that they may."""
    principal = _principal()
    if principal is None or principal.token_url is None:
        return []
    return [f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls={principal.token_url}"]


def signed_in(principal: Principal) -> dict[str, str]:
    """The settings with which a librdkafka client connects as this principal."""
    access = {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": principal.mechanism,
        "ssl.ca.location": str(principal.ca),
    }
    if principal.token_url is None:
        return access | {"sasl.username": principal.user, "sasl.password": principal.password}
    return access | {
        "sasl.oauthbearer.method": "oidc",
        "sasl.oauthbearer.token.endpoint.url": principal.token_url,
        "sasl.oauthbearer.client.id": principal.user,
        "sasl.oauthbearer.client.secret": principal.password,
        **({"sasl.oauthbearer.scope": principal.token_scope} if principal.token_scope else {}),
        **({"https.ca.location": trusted} if (trusted := _trusted_file()) else {}),
    }


def _trusted_file() -> str | None:
    """The certificates that this system trusts: of itself, librdkafka looks for them only where Red Hat has them."""
    found = ssl.get_default_verify_paths().cafile  # what SSL_CERT_FILE names, or OpenSSL's own: Debian has none there
    return found or next((each for each in _TRUSTED if Path(each).exists()), None)


def _login(principal: Principal) -> str:
    """For Java's parser, which knows no \\u."""
    module, user, password = _LOGINS[principal.mechanism]
    options = {user: principal.user, password: principal.password}
    options |= {"scope": principal.token_scope} if principal.token_scope else {}
    quoted = "".join(f" {name}={json.dumps(value, ensure_ascii=False)}" for name, value in options.items())
    return f"org.apache.kafka.common.security.{module} required{quoted};"


@cache
def _principal() -> Principal | None:
    return load_settings().principal
