"""Certificates by which this process knows brokers and the issuer of tokens: read where they are shown, and checked."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit

from cryptography.x509 import load_der_x509_certificate

from shared.doctor.finding import Finding, Severity, dev
from shared.doctor.snapshot import Snapshot, Validity
from shared.runtime.checkout import CHECKOUT
from shared.runtime.settings import Settings

_ANSWER_S = 2.0
_DAY_S = 86_400.0
_DUE_S = 30 * _DAY_S  # `secrets` makes anew what ends sooner
_DUE = 5  # or in such a part of its life: some are made for a day, and renewed in time
_SOON_S = 3 * _DAY_S
_STARTED_AGAIN = "docker compose -f docker-compose.yml -f compose.secure.yml up -d --wait --force-recreate"


def read_certificates(settings: Settings, brokers: Iterable[str]) -> dict[str, Validity]:
    """By whose each is. brokers: their addresses. One that does not answer in time is left out."""
    found: dict[str, Validity] = {}
    servers: dict[str, str] = {}
    if (principal := settings.principal) is not None:
        found = {f"the authority in {principal.ca}": each for each in _lasting(principal.ca)}
        servers = {f"the broker at {each}": each for each in brokers}
    for issuer in (urlsplit(settings.auth_jwks or ""), urlsplit(settings.kafka_token_url or "")):
        if issuer.scheme == "https":
            servers[f"the issuer at {issuer.netloc}"] = f"{issuer.hostname}:{issuer.port or 443}"
    with ThreadPoolExecutor() as pool:
        shown = dict(zip(servers, pool.map(_shown, servers.values()), strict=True))
    return found | {name: validity for name, validity in shown.items() if validity is not None}


def _lasting(ca: Path) -> list[Validity]:
    """The authority that lasts longest: of a system's file some have always expired, or one takes another's place."""
    authorities = ssl.create_default_context(cafile=ca).get_ca_certs()
    found = [[ssl.cert_time_to_seconds(str(each[at])) for at in ("notBefore", "notAfter")] for each in authorities]
    return [Validity(*max(found, key=lambda each: each[1]))] if found else []


def _shown(address: str) -> Validity | None:
    """What the server shows, trusted or not: it is only looked at."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    host, _, port = address.rpartition(":")
    with (
        suppress(OSError),
        socket.create_connection((host, int(port)), _ANSWER_S) as plain,
        context.wrap_socket(plain, server_hostname=host) as secured,
    ):
        shown = load_der_x509_certificate(secured.getpeercert(binary_form=True) or b"")
        return Validity(shown.not_valid_before_utc.timestamp(), shown.not_valid_after_utc.timestamp())
    return None


def check_certificates(seen: Snapshot) -> Iterator[Finding]:
    for name, (begins, ends) in seen.certificates.items():
        left_s = ends - seen.now
        if left_s < min(_DUE_S, (ends - begins) / _DUE):
            yield Finding(
                Severity.URGENT if left_s < _SOON_S else Severity.WARNING,
                "certificate.due",
                f"the certificate of {name} {'expires' if left_s > 0 else 'has expired'}",
                f"in {left_s / _DAY_S:,.1f} days" if left_s > 0 else f"{-left_s / _DAY_S:,.1f} days ago",
                "from then on no connection that asks for it is made, and those that are lost stay lost",
                _renewed(name, seen.settings),
            )


def _renewed(name: str, settings: Settings) -> str:
    ca = settings.kafka_ca
    if ca is not None and not name.startswith("the issuer"):
        here = ca.resolve().parent == CHECKOUT / ".onefold" / "secrets"
        if here or (ca.parent / "broker.pem").exists():
            return f"{dev('secrets', *([] if here else [str(ca.parent)]))} && {_STARTED_AGAIN}"
    return f"have the certificate of {name} renewed by whoever signed it, and start again what has it"
