"""A broker that authenticates its clients: over TLS a listener for each mechanism, beside an open one for operators."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import NamedTuple

import pytest
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)

from shared.dev.authority import Authority
from shared.dev.embedded import EmbeddedKafka
from shared.dev.issuer import DevIssuer
from shared.dev.worker import free_port
from shared.operations.acls import MECHANISMS, create_principals, grant
from shared.operations.provision import load_services, provision
from shared.runtime.settings import DEV_ISSUER, SCRAM, Mechanism, Principal, Settings
from shared.topology.declaration import Service
from tests.accounts.service import SERVICE
from tests.secure.tokens import AUDIENCE, token_endpoint

HOST = "127.0.0.1"
OAUTH = "org.apache.kafka.common.security.oauthbearer"
LOGIN = "org.apache.kafka.common.security.{module} required{options};"


class Listener(NamedTuple):
    """certificate: the file with its key and certificate. login, options: what its mechanism needs to know."""

    certificate: Path
    mechanism: Mechanism = SCRAM
    login: str = LOGIN.format(module="scram.ScramLoginModule", options="")
    options: Mapping[str, str] = {}


class SecuredKafka(EmbeddedKafka):
    """listeners: by name. flags: of its JVM."""

    def __init__(self, root: Path, listeners: Mapping[str, Listener], flags: Sequence[str] = ()) -> None:
        super().__init__(root / "data", root / "logs")
        self._listeners = listeners
        self._flags = flags
        self._ports = {name: free_port() for name in listeners}

    def start(self) -> None:
        with pytest.MonkeyPatch.context() as environment:
            if self._flags:
                environment.setenv("JDK_JAVA_OPTIONS", " ".join(self._flags))
            super().start()

    def address(self, listener: str) -> str:
        return f"{HOST}:{self._ports[listener]}"

    def _configuration(self, number: int, client: int, controller: int, voters: str) -> dict[str, str | int]:
        configuration = super()._configuration(number, client, controller, voters) | {
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "super.users": "User:ANONYMOUS",
        }
        for name, listener in self._listeners.items():
            configuration["listeners"] = f"{configuration['listeners']},{name}://{self.address(name)}"
            protocols = configuration["listener.security.protocol.map"]
            configuration["listener.security.protocol.map"] = f"{protocols},{name}:SASL_SSL"
            prefix = f"listener.name.{name.lower()}"
            configuration[f"{prefix}.sasl.enabled.mechanisms"] = listener.mechanism
            configuration[f"{prefix}.{listener.mechanism.lower()}.sasl.jaas.config"] = listener.login
            configuration |= {
                f"{prefix}.{listener.mechanism.lower()}.{name}": value for name, value in listener.options.items()
            }
            configuration[f"{prefix}.ssl.keystore.type"] = "PEM"
            configuration[f"{prefix}.ssl.keystore.location"] = str(listener.certificate)
        return configuration


@dataclass(frozen=True, slots=True)
class Secured:
    """The broker's address for its services by SCRAM-SHA-512, and that of a listener whose certificate has expired.

    addresses: by mechanism. tokens: where OAUTHBEARER gets them. operators: the address of those who may do anything.
    """

    bootstrap: str
    addresses: Mapping[Mechanism, str]
    tokens: str
    operators: str
    expired: str
    ca: Path
    wrong_ca: Path

    def principal(self, service: str) -> Principal:
        return Principal(service, password_of(service), self.ca)


def by_token(certificate: Path, issuer: DevIssuer) -> Listener:
    options = {
        "sasl.server.callback.handler.class": f"{OAUTH}.OAuthBearerValidatorCallbackHandler",
        "sasl.oauthbearer.jwks.endpoint.url": issuer.key_set.as_uri(),
        "sasl.oauthbearer.expected.audience": AUDIENCE,
        "sasl.oauthbearer.expected.issuer": DEV_ISSUER,
    }
    login = LOGIN.format(module="oauthbearer.OAuthBearerLoginModule", options="")
    return Listener(certificate, "OAUTHBEARER", login, options)


def listeners_of(certificate: Path, issuer: DevIssuer) -> dict[str, Listener]:
    """One for each mechanism."""
    names = (*services(), "mirror")
    users = "".join(f" user_{name}={json.dumps(password_of(name), ensure_ascii=False)}" for name in names)
    return {
        "SECURE": Listener(certificate),
        "SECURE256": Listener(certificate, "SCRAM-SHA-256"),
        "PLAIN": Listener(certificate, "PLAIN", LOGIN.format(module="plain.PlainLoginModule", options=users)),
        "TOKENS": by_token(certificate, issuer),
    }


def allowed(issuer: DevIssuer) -> list[str]:
    """Flags of a broker that checks tokens."""
    keys = {"urls": issuer.key_set.as_uri(), "files": issuer.key_set}  # Kafka asks for both
    return [f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.{kind}={value}" for kind, value in keys.items()]


def allow_everything(name: str, bootstrap: str) -> None:
    """To a principal for operators. bootstrap: where the open listener is."""
    create_principals({name: password_of(name)}, bootstrap)
    of = (ResourcePatternType.LITERAL, f"User:{name}", "*", AclOperation.ALL, AclPermissionType.ALLOW)
    kinds = {ResourceType.TOPIC: "*", ResourceType.GROUP: "*", ResourceType.TRANSACTIONAL_ID: "*"}
    rules = [
        AclBinding(kind, of_kind, *of) for kind, of_kind in (kinds | {ResourceType.BROKER: "kafka-cluster"}).items()
    ]
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for answer in admin.create_acls(rules).values():
        answer.result()


def services() -> dict[str, Service]:
    """Those of this checkout by name, and the tests' own accounts where none has that name."""
    return {each.topology.service: each for each in (SERVICE, *load_services())}


def password_of(service: str) -> str:
    return f'only "{service}" knows: ß'


@pytest.fixture(scope="package")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    root = tmp_path_factory.mktemp("secured")
    authority = Authority()
    issuer = DevIssuer(root / "issuer")
    issuer.key()
    certificate, expired = root / "broker.pem", root / "expired.pem"
    certificate.write_bytes(authority.issue([HOST]))
    expired.write_bytes(authority.issue([HOST], valid=timedelta(days=-1)))
    listeners = {**listeners_of(certificate, issuer), "EXPIRED": Listener(expired)}
    (root / "ca.pem").write_bytes(authority.certificate)
    (root / "wrong.pem").write_bytes(Authority("somebody-else").certificate)
    with token_endpoint(issuer, password_of) as tokens, SecuredKafka(root, listeners, allowed(issuer)) as kafka:
        provision([each.topology for each in services().values()], Settings(bootstrap=kafka.bootstrap))
        grant([*services().values()], kafka.bootstrap)
        passwords = {name: password_of(name) for name in services()}
        for mechanism in MECHANISMS:
            create_principals(passwords, kafka.bootstrap, mechanism)
        yield Secured(
            kafka.address("SECURE"),
            {listener.mechanism: kafka.address(name) for name, listener in listeners_of(certificate, issuer).items()},
            tokens,
            kafka.bootstrap,
            kafka.address("EXPIRED"),
            root / "ca.pem",
            root / "wrong.pem",
        )
