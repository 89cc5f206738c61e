"""How this process's clients connect to the brokers: in plaintext, or as its own principal over TLS."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

from confluent_kafka import KafkaError

from shared.runtime.settings import Principal, load_settings

ANSWER_S = 10.0  # the longest wait for an answer: a frozen broker closes no connection; 60 or 40 by default
# of a consumer that joins no group: librdkafka looks for a coordinator although nothing is committed
GROUP_ERRORS = frozenset({KafkaError.GROUP_AUTHORIZATION_FAILED, KafkaError.COORDINATOR_NOT_AVAILABLE})
ABSENT_FIX = "fix: start the brokers, or name others in ONEFOLD_BOOTSTRAP"

_LOGIN = 'org.apache.kafka.common.security.{module} required username="{user}" password={password};'


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
        module = "plain.PlainLoginModule" if principal.mechanism == "PLAIN" else "scram.ScramLoginModule"
        password = json.dumps(principal.password, ensure_ascii=False)  # Java's parser knows no \u
        options |= {
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": principal.mechanism,
            "sasl.jaas.config": _LOGIN.format(module=module, user=principal.user, password=password),
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(principal.ca),
        }
    return options


def signed_in(principal: Principal) -> dict[str, str]:
    """The settings with which a librdkafka client connects as this principal."""
    return {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": principal.mechanism,
        "sasl.username": principal.user,
        "sasl.password": principal.password,
        "ssl.ca.location": str(principal.ca),
    }


@cache
def _principal() -> Principal | None:
    return load_settings().principal
