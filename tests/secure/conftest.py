"""A broker that authenticates its clients: a SCRAM listener over TLS beside the open one for operators."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import pytest

from shared.dev.authority import Authority
from shared.dev.embedded import EmbeddedKafka
from shared.dev.worker import free_port
from shared.operations.acls import create_principals, grant
from shared.operations.provision import load_services, load_topologies, provision
from shared.runtime.settings import SCRAM, Principal, Settings

HOST = "127.0.0.1"
LOGIN = "org.apache.kafka.common.security.scram.ScramLoginModule required;"


class SecuredKafka(EmbeddedKafka):
    """`listeners`: by name, the file with the key and certificate that the listener uses."""

    def __init__(self, root: Path, listeners: dict[str, Path]) -> None:
        super().__init__(root / "data", root / "logs")
        self._listeners = listeners
        self._ports = {name: free_port() for name in listeners}

    def address(self, listener: str) -> str:
        return f"{HOST}:{self._ports[listener]}"

    def _configuration(self, number: int, client: int, controller: int, voters: str) -> dict[str, str | int]:
        configuration = super()._configuration(number, client, controller, voters) | {
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "super.users": "User:ANONYMOUS",
            "sasl.enabled.mechanisms": SCRAM,
        }
        for name, certificate in self._listeners.items():
            configuration["listeners"] = f"{configuration['listeners']},{name}://{self.address(name)}"
            protocols = configuration["listener.security.protocol.map"]
            configuration["listener.security.protocol.map"] = f"{protocols},{name}:SASL_SSL"
            prefix = f"listener.name.{name.lower()}"
            configuration[f"{prefix}.{SCRAM.lower()}.sasl.jaas.config"] = LOGIN
            configuration[f"{prefix}.ssl.keystore.type"] = "PEM"
            configuration[f"{prefix}.ssl.keystore.location"] = str(certificate)
        return configuration


@dataclass(frozen=True, slots=True)
class Secured:
    """The broker's address for its services, and that of a listener whose certificate has expired.

    operators: the address for those who may do everything.
    """

    bootstrap: str
    operators: str
    expired: str
    ca: Path
    wrong_ca: Path

    def principal(self, service: str) -> Principal:
        return Principal(service, password_of(service), self.ca)


def password_of(service: str) -> str:
    return f'only "{service}" knows: ß'


@pytest.fixture(scope="package")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    root = tmp_path_factory.mktemp("secured")
    authority = Authority()
    listeners = {"SECURE": root / "broker.pem", "EXPIRED": root / "expired.pem"}
    listeners["SECURE"].write_bytes(authority.issue([HOST]))
    listeners["EXPIRED"].write_bytes(authority.issue([HOST], valid=timedelta(days=-1)))
    (root / "ca.pem").write_bytes(authority.certificate)
    (root / "wrong.pem").write_bytes(Authority("somebody-else").certificate)
    with SecuredKafka(root, listeners) as kafka:
        topologies = load_topologies()
        provision(topologies, Settings(bootstrap=kafka.bootstrap))
        grant(load_services(), kafka.bootstrap)
        create_principals({each.service: password_of(each.service) for each in topologies}, kafka.bootstrap)
        yield Secured(
            kafka.address("SECURE"), kafka.bootstrap, kafka.address("EXPIRED"), root / "ca.pem", root / "wrong.pem"
        )
