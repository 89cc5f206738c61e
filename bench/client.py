"""An HTTP client that costs little beside the server it measures: one GET or POST at a time on each connection."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable
from urllib.parse import urlsplit

from shared.dev.stages import StageFailed

Request = Callable[[int], bytes]
"""The bytes of request `number`."""

_LENGTH = re.compile(rb"content-length: *(\d+)", re.IGNORECASE)
_STATUS = slice(9, 12)


def get(path: str) -> bytes:
    return f"GET {path} HTTP/1.1\r\nHost: bench\r\n\r\n".encode()


def post(path: str, body: str, more: str = "") -> bytes:
    """more: header lines, each with its end."""
    head = f"POST {path} HTTP/1.1\r\nHost: bench\r\nContent-Type: application/json\r\nContent-Length: {len(body)}"
    return f"{head}\r\n{more}\r\n{body}".encode()


class Connection:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def to(cls, url: str) -> Connection:
        place = urlsplit(url)
        return cls(*await asyncio.open_connection(place.hostname, place.port))

    async def ask(self, request: bytes) -> tuple[int, bytes]:
        """The answer's status and body."""
        self._writer.write(request)
        head = await self._reader.readuntil(b"\r\n\r\n")
        length = _LENGTH.search(head)
        return int(head[_STATUS]), await self._reader.readexactly(int(length[1]) if length else 0)

    def close(self) -> None:
        self._writer.close()


def for_seconds(seconds: float) -> Callable[[], bool]:
    """A function that is true until so many seconds have passed."""
    until = time.monotonic() + seconds
    return lambda: time.monotonic() < until


async def latencies(
    url: str,
    request: Request,
    expect: set[int],
    going_on: Callable[[], bool],
    connections: int = 1,
    pause_s: float = 0.0,
) -> list[float]:
    """The seconds that each answer took. expect: the statuses they may have; raises StageFailed for any other."""
    taken: list[float] = []

    async def one(number: int) -> None:
        connection = await Connection.to(url)
        while going_on():
            asked = time.perf_counter()
            status, body = await connection.ask(request(number))
            taken.append(time.perf_counter() - asked)
            if status not in expect:
                raise StageFailed(f"{url} answered {status}: {body[:200]!r}", "see the log of the side")
            number += connections
            await asyncio.sleep(pause_s)
        connection.close()

    await asyncio.gather(*(one(number) for number in range(connections)))
    return taken
