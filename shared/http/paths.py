"""Paths as they were sent: an escaped slash belongs to its segment, and bytes that are not UTF-8 are refused.

Servers pass paths on decoded: `a%2Fb` has become two segments, and `%FE` and `%FF` the same character.
"""

from __future__ import annotations

from typing import Annotated
from urllib.parse import unquote_to_bytes

from fastapi import Path
from pydantic import BeforeValidator
from starlette.types import ASGIApp, Receive, Scope, Send

from shared.domain.ids import AggregateId


class SentPath:
    """ASGI middleware: routes by the escaped path; each path parameter is a `Segment`, a `PathId` or `UNESCAPED`."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            scope = {**scope, "path": scope["raw_path"].decode("ascii")}
        await self.app(scope, receive, send)


def _unescaped(sent: str) -> str:
    try:
        return unquote_to_bytes(sent).decode()
    except UnicodeDecodeError:
        raise ValueError("must be valid UTF-8") from None


UNESCAPED = BeforeValidator(_unescaped)
"""Marks a path parameter of another type, as in `Annotated[Day, UNESCAPED, Path()]`, since paths arrive escaped."""

LEGAL_ID = "1 to 128 bytes of UTF-8 without control characters"

Segment = Annotated[str, UNESCAPED]
PathId = Annotated[AggregateId, UNESCAPED, Path(description=LEGAL_ID)]
"""An aggregate id in a path, where a slash in it is escaped. Requests with one that is not legal are answered 422."""
