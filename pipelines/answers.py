"""What the service itself answers for a key, over HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote

import httpx
from pydantic_core import from_json

from shared.es.errors import OnefoldError

AT_ONCE = 16
_TIMEOUT_S = 10.0
_ATTEMPTS = 30
_PAUSE_S = 1.0
_NOT_FOUND = 404


class ServiceUnavailable(OnefoldError):
    """The service does not answer.

    Operator action: see that --url names a worker that is ready (`GET /readyz` answers 200).
    """


def ask(url: str, table: str, keys: Sequence[bytes]) -> dict[bytes, bytes]:
    """The body of `GET {url}/{table}/{key}` for each key; empty for one that is not found.

    Raises ServiceUnavailable.
    """
    return asyncio.run(_ask(f"{url.rstrip('/')}/{table}/", keys))


async def _ask(prefix: str, keys: Sequence[bytes]) -> dict[bytes, bytes]:
    waiting = iter(keys)
    bodies: dict[bytes, bytes] = {}

    async def work(client: httpx.AsyncClient) -> None:
        for key in waiting:
            bodies[key] = await _get(client, prefix + quote(key, safe=""))

    async with httpx.AsyncClient(timeout=_TIMEOUT_S) as client, asyncio.TaskGroup() as tasks:
        for _ in range(AT_ONCE):
            tasks.create_task(work(client))
    return bodies


async def _get(client: httpx.AsyncClient, url: str) -> bytes:
    problem = ""
    for _ in range(_ATTEMPTS):
        try:
            response = await client.get(url)
            if response.is_success:
                return response.content
            if response.status_code == _NOT_FOUND:
                return b""
            problem = f"{response.status_code} {response.text[:200]}"
        except httpx.HTTPError as error:
            problem = f"{type(error).__name__}: {error}"
        await asyncio.sleep(_PAUSE_S)
    raise ServiceUnavailable(f"{url} does not answer: {problem}")


def difference(body: bytes, first: int, states: Sequence[bytes]) -> str | None:
    """Why an answer is not of the fold; None when it is. states: after event `first`, and on.

    An answer is compared in the fields it shares with the state; the others are the service's presentation.
    """
    if not body:
        return None if first == 0 else f"HTTP knows nothing of it, there are {first} events"
    answer: Mapping[str, Any] = from_json(body)
    sequence = answer.get("sequence")
    if not isinstance(sequence, int) or not first <= sequence < first + len(states):
        return f"HTTP answers sequence {sequence}, its events end at {first + len(states) - 1}"
    state = from_json(states[sequence - first])
    wrong = sorted(name for name in answer.keys() & state.keys() if answer[name] != state[name])
    return f"HTTP answers another {', '.join(wrong)} at sequence {sequence}" if wrong else None
