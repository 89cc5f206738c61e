"""What the service itself answers for a key, over HTTP."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence, Set
from contextlib import asynccontextmanager, suppress
from typing import Any, NamedTuple, TypeVar
from urllib.parse import quote

import httpx
from pydantic_core import from_json

from pipelines.catalog import Version
from shared.domain.errors import OnefoldError
from shared.domain.personal import SEALED
from shared.runtime.clients import DIRECT, trusted
from shared.runtime.settings import TOKEN_VARIABLE, operators_token

_AT_ONCE = 16
_TIMEOUT_S = 10.0
_ATTEMPTS = 30
_PAUSE_S = 1.0
_NOT_FOUND = 404
_NOT_ALLOWED = (401, 403)
_NO_LIST = frozenset({404, 405, 422})

K = TypeVar("K")
V = TypeVar("V")
Query = Mapping[str, str | float]


class ServiceUnavailable(OnefoldError):
    """The service does not answer, or not with this token.

    Operator action: check that --url names a worker that is ready (`GET /readyz` answers 200), that ONEFOLD_TOKEN may
    read its rows, and that --path is that of a row. Without --url the check needs no answers.
    """


class NotServed(ServiceUnavailable):
    """The service has no route for rows of the table.

    Operator action: check that --url names a worker of the service; compare this table without --url.
    """


class Paths(NamedTuple):
    """row: what comes before the key of a row, such as `/sales/skus/`. The others: whether there are such routes."""

    row: str
    history: bool = True
    outcomes: bool = True

    @property
    def list(self) -> str:
        return self.row.removesuffix("/")


class Worker:
    """Asks one worker of a service for what it has of `table`, with the operator's token if there is one."""

    def __init__(self, client: httpx.AsyncClient, url: str, paths: Paths) -> None:
        self._client = client
        self.url = url
        self.paths = paths

    async def row(self, key: bytes, **query: str | float) -> bytes:
        """Its body; empty if it is not found."""
        return (await self._get(self.paths.row + quote(key, safe=""), query, {_NOT_FOUND})).content

    async def of_row(self, key: bytes, path: str, other: Set[int], **query: str | float) -> httpx.Response:
        """What is below the row. other: what it may say instead."""
        return await self._get(f"{self.paths.row}{quote(key, safe='')}/{path}", query, other)

    async def rows(self, **query: str | float) -> Mapping[str, Any] | None:
        """A page of the list; None if there is none, or none with these parameters."""
        found = await self._get(self.paths.list, query, _NO_LIST)
        return from_json(found.content) if found.is_success else None

    async def _get(self, path: str, query: Query, other: Set[int]) -> httpx.Response:
        found = await _get(self._client, self.url + path, query, other)
        return found if found.is_success else httpx.Response(found.status_code)


@asynccontextmanager
async def worker_at(url: str, table: str, path: str | None) -> AsyncIterator[Worker]:
    """path: of a row, such as `/accounts/{account_id}`; by default the worker's OpenAPI document tells it.

    Raises ServiceUnavailable.
    """
    url, token = url.rstrip("/"), operators_token()
    try:
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        client = httpx.AsyncClient(mounts=DIRECT, verify=trusted(), timeout=_TIMEOUT_S, headers=headers)
    except ValueError as error:  # a token that no header can hold
        raise ServiceUnavailable(f"{TOKEN_VARIABLE} is no token: {error}") from None
    async with client:
        if path is not None:
            yield Worker(client, url, Paths(_before_the_key(path)))
            return
        openapi = await _get(client, f"{url}/openapi.json", {}, {_NOT_FOUND})
        yield Worker(client, url, _paths(openapi.content if openapi.is_success else b"", table))


def served(url: str, tables: Sequence[str]) -> set[str]:
    """The tables of whose rows the worker's OpenAPI document tells the path. Raises ServiceUnavailable, NotServed for
    none.
    """

    async def look() -> set[str]:
        found = set[str]()
        for table in tables:
            with suppress(NotServed):
                async with worker_at(url, table, None):
                    found.add(table)
        return found

    if not (found := asyncio.run(look())):
        raise NotServed(f"{url} answers no GET for a row of {', '.join(tables)}")
    return found


def ask(url: str, table: str, keys: Sequence[bytes], path: str | None = None) -> dict[bytes, bytes]:
    """The body of the row of each key; empty for one that is not found. Raises ServiceUnavailable."""

    async def rows() -> dict[bytes, bytes]:
        async with worker_at(url, table, path) as worker:
            return dict(zip(keys, await at_once(worker.row, keys), strict=True))

    return asyncio.run(rows())


async def at_once(answer: Callable[[K], Awaitable[V]], questions: Iterable[K]) -> list[V]:
    """What is answered to each, several at a time."""
    waiting, found = iter(enumerate(questions)), dict[int, V]()

    async def work() -> None:
        for number, question in waiting:
            found[number] = await answer(question)

    await asyncio.gather(*(work() for _ in range(_AT_ONCE)))  # a TaskGroup would raise a group of errors
    return [found[number] for number in sorted(found)]


def _before_the_key(path: str) -> str:
    if not (found := re.fullmatch(r"(/.*/)\{\w+\}", path)):
        raise ServiceUnavailable(f"--path {path} does not end with the key; fix: such as '/accounts/{{account_id}}'")
    return found[1]


def _paths(openapi: bytes, table: str) -> Paths:
    if not openapi:
        fix = "name the path of a row, --path '/accounts/{account_id}'"
        raise ServiceUnavailable(
            f"the service has no /openapi.json: it shows its paths only with ONEFOLD_ENV=dev; fix: {fix}"
        )
    try:
        paths = from_json(openapi)["paths"]
    except (ValueError, LookupError, TypeError):
        raise ServiceUnavailable("its /openapi.json describes no paths: --url names no worker of a service") from None
    for path, methods in paths.items():
        if "get" in methods and (found := re.fullmatch(rf"(.*/{table}/)\{{\w+\}}", path)):
            return Paths(found[1], f"{path}/events" in paths, f"{path}/commands/{{command_id}}" in paths)
    raise NotServed(f"the service answers no GET for a row of {table}")


async def _get(client: httpx.AsyncClient, url: str, query: Query, other: Set[int]) -> httpx.Response:
    """A success, or one of the `other` statuses."""
    problem = ""
    for _ in range(_ATTEMPTS):
        try:
            response = await client.get(url, params=query)
            if response.is_success or response.status_code in other:
                return response
            problem = f"{response.status_code} {response.text[:200]}"
            if response.status_code in _NOT_ALLOWED:
                fix = f"set {TOKEN_VARIABLE} to a bearer token that may read what is asked"
                raise ServiceUnavailable(f"{url} refuses the token, or wants one: {problem}; fix: {fix}")
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
    return sorted(name for name in answer if state is None or (name in state and differ(answer[name], state[name])))


def differ(shown: Any, kept: Any) -> bool:
    """Whether they are not the same JSON, but for texts that are kept encrypted."""
    if isinstance(kept, dict) and isinstance(shown, dict):
        return shown.keys() != kept.keys() or any(differ(shown[name], kept[name]) for name in kept)
    if isinstance(kept, list) and isinstance(shown, list):
        return len(shown) != len(kept) or any(map(differ, shown, kept))
    return not (isinstance(kept, str) and kept.startswith(SEALED)) and shown != kept
