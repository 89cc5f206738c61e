"""What verbs ask workers over HTTP, with the operator's bearer token where workers require one."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, TypeVar

import httpx

from shared.dev.stages import StageFailed
from shared.runtime.clients import DIRECT, trusted
from shared.runtime.settings import TOKEN_VARIABLE, operators_token

_TIMEOUT_S = 30.0
_PATIENCE_S = 60.0  # with a worker that answers 429

_TOO_MANY = httpx.codes.TOO_MANY_REQUESTS

T = TypeVar("T")


class Silent(StageFailed):
    """This worker does not answer; another of its service may."""


def ask(url: str, method: str = "GET", body: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The JSON object in the worker's answer. Raises StageFailed, and Silent when it does not answer."""
    token = operators_token()
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    give_up = time.monotonic() + _PATIENCE_S
    try:
        with httpx.Client(mounts=DIRECT, verify=trusted(), timeout=_TIMEOUT_S) as http:
            while (answer := http.request(method, url, json=body, headers=headers)).status_code == _TOO_MANY:
                wait_s = float(answer.headers.get("Retry-After", 1))
                if time.monotonic() + wait_s > give_up:
                    break
                time.sleep(wait_s)
    except (httpx.UnsupportedProtocol, httpx.InvalidURL, ImportError, ValueError) as error:  # the third: SOCKS
        fix = f"correct the URL, {TOKEN_VARIABLE}, or the proxy in ALL_PROXY or HTTP_PROXY"
        raise StageFailed(f"{url} cannot be asked: {error}", fix) from error
    except httpx.TransportError as error:
        raise Silent(f"{url} does not answer: {error}", "check that the worker runs, or name another") from error
    found = _object(answer)
    if answer.is_success and found is not None:
        return found
    told = (found or {}).get("detail") or f"{answer.status_code} {answer.reason_phrase}, which is not a worker's answer"
    raise StageFailed(f"{url} says: {told}", _fix(answer.status_code))


def first_answer(urls: Sequence[str], question: Callable[[str], T]) -> T:
    """What the first worker that answers says. Raises StageFailed, as `ask` does."""
    *others, last = urls
    for url in others:
        with suppress(Silent):
            return question(url)
    return question(last)


def _object(answer: httpx.Response) -> dict[str, Any] | None:
    with suppress(ValueError):
        found = answer.json()
        return found if isinstance(found, dict) else None
    return None


def _fix(status: int) -> str:
    if status in (httpx.codes.UNAUTHORIZED, httpx.codes.FORBIDDEN):
        return (
            f"set {TOKEN_VARIABLE} to a bearer token with operations:read, and operations:write to change something; "
            "its `aud` must hold the ONEFOLD_AUTH_AUDIENCE of every service that is asked"
        )
    if status == _TOO_MANY:
        return "try again later, or raise the service's ONEFOLD_RATE_LIMIT"
    if status in (httpx.codes.CONFLICT, httpx.codes.UNPROCESSABLE_ENTITY):
        return "correct what it names"
    if status < httpx.codes.INTERNAL_SERVER_ERROR:
        return "name an id that `dead-letters list` shows, and a worker of this checkout's release"
    return "try again when the service is ready; the worker's log has more"
