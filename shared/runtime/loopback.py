"""Workers on this machine are called directly, even if the environment names a proxy for everything."""

from __future__ import annotations

from collections.abc import Mapping

DIRECT: Mapping[str, None] = dict.fromkeys(("all://127.0.0.1", "all://localhost", "all://[::1]"))
"""The `mounts` of an httpx client."""
