"""Errors that only the HTTP side raises; problems.py gives each its status.

OnefoldError
├── Unauthenticated    no token, or an invalid one
├── Forbidden          a valid token that does not allow this
├── Archived           removed from the log, but perhaps in the archive
└── TooMany            the client exceeds its rate limit
"""

from __future__ import annotations

from shared.domain.errors import OnefoldError


class Unauthenticated(OnefoldError):
    """The reason never quotes the token."""


class Forbidden(OnefoldError):
    """code: stable, for programs."""

    def __init__(self, code: str, detail: str) -> None:
        super().__init__(detail)
        self.code = code


class Archived(OnefoldError):
    """Retention has removed the requested events from the log.

    Operator action: read it from the archive; a topic with `retention_ms=KEPT_FOR_EVER` needs none.
    """


class TooMany(OnefoldError):
    """wait_s: seconds until the next request may pass."""

    def __init__(self, wait_s: float, detail: str = "this client makes too many requests") -> None:
        super().__init__(detail)
        self.wait_s = wait_s
