"""Certificates that expire are told in time, as they are shown by a server or in a file."""

from __future__ import annotations

import os
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from threading import Thread

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding

from shared.dev.authority import Authority
from shared.dev.secured import make_secrets
from shared.doctor.certificates import _STARTED_AGAIN, read_certificates
from shared.doctor.examine import examine
from shared.doctor.finding import Severity
from shared.doctor.snapshot import Snapshot, Validity
from shared.runtime.checkout import CHECKOUT
from shared.runtime.settings import Settings
from tests.unit.doctor.healthy import HEALTHY, NOW, only

DAY_S = 86_400.0


@contextmanager
def server(certificate: Path) -> Iterator[str]:
    """The address of one that shows this certificate, as a broker and an issuer do."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def answer() -> None:
            with suppress(OSError):
                while True:
                    connection, _ = listening.accept()
                    with suppress(OSError), context.wrap_socket(connection, server_side=True) as secured:
                        secured.recv(1)

        Thread(target=answer, daemon=True).start()
        yield f"127.0.0.1:{listening.getsockname()[1]}"
        listening.shutdown(socket.SHUT_RDWR)


def secured(folder: Path, days: int) -> Settings:
    authority = Authority()
    (folder / "ca.pem").write_bytes(authority.certificate)
    (folder / "server.pem").write_bytes(authority.issue(["127.0.0.1"], valid=timedelta(days=days)))
    return Settings(kafka_user="me", kafka_password="secret", kafka_ca=folder / "ca.pem")


@pytest.mark.parametrize(("days", "severity"), [(40, None), (29, "WARNING"), (2, "URGENT"), (-1, "URGENT")])
def test_what_a_broker_shows_is_told_as_long_as_it_can_be_renewed(
    days: int, severity: str | None, tmp_path: Path
) -> None:
    settings = secured(tmp_path, days)
    with server(tmp_path / "server.pem") as address:
        found = read_certificates(settings, [address, "127.0.0.1:1"])
    assert found.keys() > {f"the broker at {address}"}
    findings = examine(replace(HEALTHY, now=time.time(), certificates=found))
    assert [(each.code, each.severity.name) for each in findings] == (
        [("certificate.due", severity)] if severity else []
    )
    assert all(f"the broker at {address}" in each.what for each in findings)


def test_the_issuers_are_looked_at_too_and_without_tls_none(tmp_path: Path) -> None:
    by_token = secured(tmp_path, 29).model_copy(update={"kafka_mechanism": "OAUTHBEARER"})
    with server(tmp_path / "server.pem") as address:
        found = read_certificates(Settings(auth_jwks=f"https://{address}/keys"), ["127.0.0.1:1"])
        tokens = {"kafka_token_url": f"https://{address}/token"}
        assert read_certificates(by_token.model_copy(update=tokens), []).keys() > {f"the issuer at {address}"}
    assert found.keys() == {f"the issuer at {address}"}
    assert read_certificates(Settings(), ["127.0.0.1:1"]) == {}


def test_of_a_file_of_authorities_the_one_that_lasts_longest_counts(tmp_path: Path) -> None:
    """As in a system's own file, in which some have always expired, and while one authority takes another's place."""
    settings = secured(tmp_path, 40)
    ended = tmp_path / "ended.pem"
    ended.write_bytes(own_authority(timedelta(days=-1)))
    assert urgent(read_certificates(settings.model_copy(update={"kafka_ca": ended}), [])) == [
        f"the authority in {ended}"
    ]
    (tmp_path / "ca.pem").write_bytes((tmp_path / "ca.pem").read_bytes() + ended.read_bytes())
    assert urgent(read_certificates(settings, [])) == []


def urgent(found: dict[str, Validity]) -> list[str]:
    findings = examine(replace(HEALTHY, now=time.time(), certificates=found))
    assert {each.severity for each in findings} <= {Severity.URGENT}
    return [name for each in findings for name in found if name in each.what]


def own_authority(valid: timedelta) -> bytes:
    """PEM of an authority's certificate that is valid until so long from now."""
    key, name = ec.generate_private_key(ec.SECP256R1()), x509.Name([])
    until = datetime.now(UTC) + valid
    made = x509.CertificateBuilder(name, name, key.public_key(), 1, until - timedelta(days=3650), until)
    return made.add_extension(x509.BasicConstraints(True, None), True).sign(key, SHA256()).public_bytes(Encoding.PEM)


def of_authority(left_days: float, life_days: float = 3650) -> Snapshot:
    ends = NOW + left_days * DAY_S
    return replace(HEALTHY, certificates={"CN=us in ca.pem": Validity(ends - life_days * DAY_S, ends)})


def test_what_lives_for_a_day_is_renewed_in_a_day() -> None:
    assert examine(of_authority(31)) == []
    assert examine(of_authority(0.3, life_days=1)) == []
    assert only(of_authority(0.1, life_days=1)).severity == Severity.URGENT
    finding = only(of_authority(29))
    assert (finding.evidence, finding.severity) == ("in 29.0 days", Severity.WARNING)
    assert finding.cure.startswith("have the certificate of CN=us in ca.pem renewed")


def test_those_that_secrets_has_made_are_made_anew_by_the_cure(tmp_path: Path) -> None:
    """As no container runs here, that brokers are to start again is told by what was typed."""
    own = HEALTHY.settings.model_copy(update={"kafka_ca": CHECKOUT / ".onefold" / "secrets" / "ca.pem"})
    assert only(replace(of_authority(29), settings=own)).cure == f"python3 dev.py secrets && {_STARTED_AGAIN}"
    folder, docker = tmp_path / "secrets", tmp_path / "bin" / "docker"
    make_secrets(folder, ["accounts"])
    (folder / "broker.pem").write_bytes(Authority().issue(["broker"], valid=timedelta(days=10)))
    docker.parent.mkdir()
    docker.write_text(f'#!/bin/sh\necho docker "$@" > {tmp_path}/typed\n')
    docker.chmod(0o755)
    finding = only(shown_by(folder))
    assert (finding.code, finding.evidence) == ("certificate.due", "in 10.0 days")
    path = os.pathsep.join([str(docker.parent), str(Path(sys.executable).parent), os.environ["PATH"]])
    subprocess.run(finding.cure, shell=True, cwd=CHECKOUT, env={**os.environ, "PATH": path}, check=True)
    assert (tmp_path / "typed").read_text().strip() == _STARTED_AGAIN
    assert examine(shown_by(folder)) == []


def shown_by(secrets: Path) -> Snapshot:
    """What a broker with these shows that was started just now."""
    settings = Settings(kafka_user="me", kafka_password="secret", kafka_ca=secrets / "ca.pem")
    with server(secrets / "broker.pem") as address:
        found = read_certificates(settings, [address])
    assert len(found) == 2
    return replace(
        HEALTHY,
        settings=HEALTHY.settings.model_copy(update={"kafka_ca": settings.kafka_ca}),
        now=time.time(),
        certificates=found,
    )
