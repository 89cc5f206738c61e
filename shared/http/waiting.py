"""Waits for an answer only while the caller is still connected."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

from fastapi import Request, Response

from shared.domain.errors import NotReady

MAX_WAIT_S = 30.0  # the longest wait a caller may ask for
CLIENT_GONE = 499  # nobody reads it, but the metrics count it


async def while_connected(
    request: Request, answer: Coroutine[Any, Any, Response], closing: asyncio.Event | None = None
) -> Response:
    """The answer; when the caller hangs up first, the work on it is cancelled.

    Raises NotReady, for another worker to answer, once `closing` is set.
    """
    await request.body()  # after the body, only a disconnect can follow
    answering = asyncio.ensure_future(answer)
    gone = asyncio.ensure_future(_gone(request))
    ends = [gone] if closing is None else [gone, asyncio.ensure_future(closing.wait())]
    try:
        await asyncio.wait((answering, *ends), return_when=asyncio.FIRST_COMPLETED)
        if answering.done():
            return answering.result()
        if gone.done():
            return Response(status_code=CLIENT_GONE)
        raise NotReady("this worker is being stopped")
    finally:
        for task in (answering, *ends):
            task.cancel()


async def _gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
