"""This checkout's own certificate authority, for development, and the certificates it signs."""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

_YEAR = timedelta(days=365)
_SIGNS = x509.KeyUsage(
    key_cert_sign=True,
    crl_sign=True,
    digital_signature=False,
    content_commitment=False,
    key_encipherment=False,
    data_encipherment=False,
    key_agreement=False,
    encipher_only=False,
    decipher_only=False,
)


class Authority:
    """Signs as long as the object lives; its own key is never written anywhere."""

    def __init__(self, name: str = "onefold-dev") -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _named(name)
        identifier = x509.SubjectKeyIdentifier.from_public_key(self._key.public_key())
        self._signer = x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(identifier)
        unsigned = _certificate(self._name, self._key.public_key(), self._name, _YEAR)
        unsigned = unsigned.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        unsigned = unsigned.add_extension(_SIGNS, critical=True).add_extension(identifier, critical=False)
        self.certificate = _pem(unsigned.sign(self._key, hashes.SHA256()))

    def issue(self, hosts: Sequence[str], valid: timedelta = _YEAR) -> bytes:
        """PEM of a new key and its certificate for these names and addresses, as Kafka's PEM keystore wants it.

        valid: from now on; negative for one that has expired.
        """
        key = ec.generate_private_key(ec.SECP256R1())
        names = x509.SubjectAlternativeName([_host(host) for host in hosts])
        unsigned = _certificate(_named(hosts[0]), key.public_key(), self._name, valid)
        unsigned = unsigned.add_extension(names, critical=False).add_extension(self._signer, critical=False)
        signed = unsigned.sign(self._key, hashes.SHA256())
        private = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        return private + _pem(signed)


def expires(pem: bytes) -> datetime:
    """Until when the first certificate in `pem` is valid. Raises ValueError if there is none."""
    return x509.load_pem_x509_certificate(pem).not_valid_after_utc


def _named(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _certificate(
    subject: x509.Name, key: ec.EllipticCurvePublicKey, issuer: x509.Name, valid: timedelta
) -> x509.CertificateBuilder:
    until = datetime.now(UTC) + valid
    builder = x509.CertificateBuilder().subject_name(subject).issuer_name(issuer).public_key(key)
    builder = builder.serial_number(x509.random_serial_number())
    return builder.not_valid_before(until - 2 * _YEAR).not_valid_after(until)


def _host(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)
