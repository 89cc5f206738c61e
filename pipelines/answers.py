"""What the service itself answers for a key, over HTTP."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote

import httpx
from pydantic_core import from_json

from pipelines.catalog import Version
from shared.domain.errors import OnefoldError
from shared.domain.personal import SEALED
from shared.runtime.loopback import DIRECT

_AT_ONCE = 16
_TIMEOUT_S = 10.0
_ATTEMPTS = 30
_PAUSE_S = 1.0
_NOT_FOUND = 404
_NOT_ALLOWED = (401, 403)


class ServiceUnavailable(OnefoldError):
    """The service does not answer, or not without a token.

    Operator action: check that --url names a worker that is ready (`GET /readyz` answers 200) and lets anybody read
    (ONEFOLD_ENV=dev, ONEFOLD_AUTH=off). Without --url the check needs no answers.
    """


def ask(url: str, table: str, keys: Sequence[bytes]) -> dict[bytes, bytes]:
    """The body of `GET {url}/…/{table}/{key}` for each key; empty for one that is not found.

    Raises ServiceUnavailable.
    """
    return asyncio.run(_ask(url.rstrip("/"), table, keys))


async def _ask(url: str, table: str, keys: Sequence[bytes]) -> dict[bytes, bytes]:
    waiting = iter(keys)
    bodies: dict[bytes, bytes] = {}

    async with httpx.AsyncClient(mounts=DIRECT, timeout=_TIMEOUT_S) as client:
        prefix = url + _prefix(await _get(client, f"{url}/openapi.json"), table)

        async def work() -> None:
            for key in waiting:
                bodies[key] = await _get(client, prefix + quote(key, safe=""))

        await asyncio.gather(*(work() for _ in range(_AT_ONCE)))  # a TaskGroup would raise a group of errors
    return bodies


def _prefix(openapi: bytes, table: str) -> str:
    """What comes before the key in the path of a row, such as `/sales/skus/`."""
    if not openapi:
        raise ServiceUnavailable("the service has no /openapi.json: it shows its paths only with ONEFOLD_ENV=dev")
    try:
        paths = from_json(openapi)["paths"]
    except (ValueError, LookupError, TypeError):
        raise ServiceUnavailable("its /openapi.json describes no paths: --url names no worker of a service") from None
    for path, methods in paths.items():
        if "get" in methods and (found := re.fullmatch(rf"(.*/{table}/)\{{\w+\}}", path)):
            return found[1]
    raise ServiceUnavailable(f"the service answers no GET for a row of {table}")


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
            if response.status_code in _NOT_ALLOWED:
                raise ServiceUnavailable(f"{url} wants a token, and parity has none: {problem}")
        except (httpx.UnsupportedProtocol, httpx.InvalidURL) as error:
            raise ServiceUnavailable(f"{url} is no URL: {error}; fix: such as --url http://127.0.0.1:8000") from None
        except httpx.HTTPError as error:
            problem = f"{type(error).__name__}: {error}"
        await asyncio.sleep(_PAUSE_S)
    raise ServiceUnavailable(f"{url} does not answer: {problem}")


def difference(body: bytes, versions: Sequence[Version], initial: bytes) -> str | None:
    """Why an answer does not match the fold, one of these versions; None when it does. initial: the initial state.

    An answer is compared in the fields it shares with the state, but for encrypted ones; the others are the service's
    presentation.
    """
    if not body:  # a refusal can be an event of an aggregate that never existed
        is_shown = all(each.state != initial for each in versions)
        return f"HTTP knows nothing of it, there are {versions[0].sequence} events" if is_shown else None
    answer: Mapping[str, Any] = from_json(body)
    if "sequence" in answer:  # the answer may not show it; then any of the states will do
        last = versions[-1].sequence
        versions = [each for each in versions if each.sequence == answer["sequence"]]
        if not versions:
            return f"HTTP answers sequence {answer['sequence']}, its events end at {last}"
    wrong = [_unlike(answer, from_json(each.state)) for each in versions]
    return f"HTTP answers another {', '.join(wrong[-1])} at sequence {versions[-1].sequence}" if all(wrong) else None


def _unlike(answer: Mapping[str, Any], state: Mapping[str, Any] | None) -> list[str]:
    return sorted(name for name in answer if state is None or (name in state and _differ(answer[name], state[name])))


def _differ(shown: Any, kept: Any) -> bool:
    return not (isinstance(kept, str) and kept.startswith(SEALED)) and shown != kept
