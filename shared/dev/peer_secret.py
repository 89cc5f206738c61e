"""The secret by which the workers of this checkout know each other, for development.

Standard library only: `dev.py` uses it on the interpreter that runs `dev.py`.
"""

from __future__ import annotations

import os
import secrets
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

_VARIABLES = {"ONEFOLD_PEER_SECRET", "ONEFOLD_PEER_SECRET_FILE"}


def with_peer_secret(environment: Mapping[str, str], state: Path) -> dict[str, str]:
    """The environment, which names the file with this checkout's secret unless it has another. state: `.onefold`."""
    if _VARIABLES & {name.upper() for name in environment}:
        return dict(environment)
    return {**environment, "ONEFOLD_PEER_SECRET_FILE": str(_file_in(state))}


def _file_in(state: Path) -> Path:
    """Readable by this user only. Any number of processes may make it at once: all get the one that was first."""
    file = state / "peer-secret"
    if not file.exists():
        state.mkdir(exist_ok=True)
        handle, draft = tempfile.mkstemp(dir=state)  # mode 0600
        with os.fdopen(handle, "w") as out:
            out.write(secrets.token_urlsafe(32))
        with suppress(FileExistsError):
            os.link(draft, file)  # a rename would replace the one that another process uses by now
        Path(draft).unlink()
    return file
