"""What all httpx clients of workers share."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from ssl import SSLContext

import httpx

DIRECT: Mapping[str, None] = dict.fromkeys(("all://127.0.0.1", "all://localhost", "all://[::1]"))
"""The `mounts` of a client: workers on this machine are called directly, even if the environment names a proxy."""


@cache
def trusted() -> SSLContext:
    """The `verify` of a client: the usual authorities. A client of its own reads them for 20 ms of CPU, each time."""
    return httpx.create_ssl_context()
