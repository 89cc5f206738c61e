"""This checkout's own certificate authority, for development, and the certificates it signs."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)
from cryptography.x509 import load_pem_x509_certificate
from trustme import CA

_YEAR = timedelta(days=365)


class Authority:
    """Signs as long as the object lives; its own key is never written anywhere."""

    def __init__(self, name: str = "onefold-dev") -> None:
        self._ca = CA(path_length=0, organization_name=name)
        self.certificate = self._ca.cert_pem.bytes()

    def issue(self, hosts: Sequence[str], valid: timedelta = _YEAR) -> bytes:
        """PEM of a new key and its certificate for these names and addresses, as Kafka's PEM keystore wants it.

        valid: from now on; negative for one that has expired.
        """
        until = datetime.now(UTC) + valid
        issued = self._ca.issue_cert(*hosts, common_name=hosts[0], not_before=until - 2 * _YEAR, not_after=until)
        key = load_pem_private_key(issued.private_key_pem.bytes(), password=None)
        (certificate,) = issued.cert_chain_pems
        return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()) + certificate.bytes()


def expires(pem: bytes) -> datetime:
    """Until when the first certificate in `pem` is valid. Raises ValueError if there is none."""
    return load_pem_x509_certificate(pem).not_valid_after_utc
