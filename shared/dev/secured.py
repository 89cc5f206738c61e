"""What compose.secure.yml gives its containers: a broker's key, the authority that signed it, and workers' secrets."""

from __future__ import annotations

import secrets
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path

from shared.dev.authority import Authority, expires

_HOSTS = ("broker", "localhost")
_EARLY = timedelta(days=30)


def make_secrets(folder: Path, services: Iterable[str]) -> list[Path]:
    """Fills `folder` with ca.pem, broker.pem, peers and passwords/SERVICE. Returns the new ones.

    Existing files stay, but certificates that expire within a month.
    """
    passwords = folder / "passwords"
    passwords.mkdir(parents=True, exist_ok=True)
    folder.chmod(0o700)  # a container's user, unknown here, gets its files by a mount
    passwords.chmod(0o755)
    new = {file: secrets.token_urlsafe(32) for name in services if not (file := passwords / name).exists()}
    if not (peers := folder / "peers").exists():
        new[peers] = secrets.token_urlsafe(32)
    broker, ca = folder / "broker.pem", folder / "ca.pem"
    # the key that signed one is gone: only both together are of use
    if not (broker.exists() and ca.exists()) or expires(broker.read_bytes()) < datetime.now(UTC) + _EARLY:
        authority = Authority()
        ca.unlink(missing_ok=True)  # written last: what is cut off here is done again
        new |= {broker: authority.issue(_HOSTS).decode(), ca: authority.certificate.decode()}
    for file, text in new.items():
        draft = file.with_suffix(".new")  # a half-written file would stay
        draft.write_text(text)
        draft.chmod(0o644)
        draft.replace(file)
    return list(new)
