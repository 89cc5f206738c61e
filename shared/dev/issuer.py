"""An issuer of bearer tokens for development: a key of this checkout, and what a worker needs to trust it."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jwt
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, load_pem_private_key
from jwt.algorithms import ECAlgorithm

from shared.runtime.checkout import CHECKOUT
from shared.runtime.settings import DEV_ISSUER, PREFIX

KEY_ID = "dev-1"
_FOLDER = CHECKOUT / ".onefold" / "issuer"


class DevIssuer:
    """Its key is made with its first token and kept in `folder`, readable by this user only."""

    def __init__(self, folder: Path = _FOLDER) -> None:
        self.key_set = folder / "jwks.json"
        self._folder = folder
        self._key_file = folder / "key.pem"

    def token(self, audience: str, scopes: Sequence[str], subject: str, lasts_s: float = 3600.0, **claims: Any) -> str:
        """claims: additional ones, or replacements of these."""
        now = time.time()
        body = {"iss": DEV_ISSUER, "aud": audience, "sub": subject, "scope": " ".join(scopes)}
        times = {"iat": int(now), "nbf": int(now), "exp": int(now + lasts_s)}
        return jwt.encode(body | times | claims, self.key(), "ES256", headers={"kid": KEY_ID})

    def environment(self, audience: str) -> dict[str, str]:
        """The variables that make a worker require tokens of this issuer."""
        self.key()
        wanted = {
            "auth": "on",
            "auth_issuer": DEV_ISSUER,
            "auth_audience": audience,
            "auth_jwks": str(self.key_set.resolve()),
        }
        return {f"{PREFIX}{name.upper()}": value for name, value in wanted.items()}

    def key(self) -> ec.EllipticCurvePrivateKey:
        """The private key; made and published if there is none yet."""
        if not self._key_file.exists():
            self._make()
        key = load_pem_private_key(self._key_file.read_bytes(), None)
        assert isinstance(key, ec.EllipticCurvePrivateKey)
        return key

    def _make(self) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        key = ec.generate_private_key(ec.SECP256R1())
        public = ECAlgorithm.to_jwk(key.public_key(), as_dict=True) | {"kid": KEY_ID, "use": "sig", "alg": "ES256"}
        self.key_set.write_text(json.dumps({"keys": [public]}))
        draft = self._key_file.with_suffix(f".{os.getpid()}")
        with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
            file.write(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
        draft.replace(self._key_file)
