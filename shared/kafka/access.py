"""How this process's clients reach the brokers: over plaintext, or as its own principal over TLS."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

from shared.settings import SCRAM, Principal, load_settings

ANSWER_S = 10.0  # a frozen broker breaks no connection, and nobody waits longer for its answer; 60 or 40 by default

_LOGIN = 'org.apache.kafka.common.security.scram.ScramLoginModule required username="{user}" password={password};'


def client_config(bootstrap: str) -> dict[str, Any]:
    """What every librdkafka client of this process begins with."""
    principal = _principal()
    return {
        "bootstrap.servers": bootstrap,
        "socket.timeout.ms": int(ANSWER_S * 1000),
        "reconnect.backoff.max.ms": 1_000,  # 10 s by default, which a broker's restart would be lengthened by
        **(signed_in(principal) if principal else {}),
    }


def spark_options(bootstrap: str) -> dict[str, str]:
    """The same for what Spark reads and writes: options of the Java client, PEM as it is."""
    options = {"bootstrap.servers": bootstrap}
    if (principal := _principal()) is not None:
        password = json.dumps(principal.password, ensure_ascii=False)  # what Java reads it with knows no \u
        options |= {
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": SCRAM,
            "sasl.jaas.config": _LOGIN.format(user=principal.user, password=password),
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(principal.ca),
        }
    return {f"kafka.{name}": value for name, value in options.items()}


def signed_in(principal: Principal) -> dict[str, str]:
    """What makes a librdkafka client this principal's."""
    return {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": SCRAM,
        "sasl.username": principal.user,
        "sasl.password": principal.password,
        "ssl.ca.location": str(principal.ca),
    }


@cache
def _principal() -> Principal | None:
    return load_settings().principal
