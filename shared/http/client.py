"""A typed client of any service: it reads its own writes, retries without repeating an effect, and never waits forever.

    with Client("http://127.0.0.1:8000") as shop:
        shop.send("/accounts/ann", OpenAccount())
        shop.send("/accounts/ann/charges", Charge(amount_cents=1250))
        print(shop.read("/accounts/ann", AccountView).body.balance_cents)

`AsyncClient` is the same with `await`. Both run the same calls, written as generators of requests and pauses.
"""

from __future__ import annotations

import asyncio
import random
import time
import uuid
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Generic, Self, TypeVar
from urllib.parse import quote

import httpx
from pydantic import BaseModel

from shared.domain.errors import OnefoldError
from shared.runtime.clients import DIRECT, trusted
from shared.runtime.positions import Place, format_positions, parse_positions

M = TypeVar("M", bound=BaseModel)
T = TypeVar("T")

DEADLINE_S = 30.0
ANSWER_S = 15.0  # on top of the wait that the call asks for
FIRST_PAUSE_S = 0.1
LONGEST_PAUSE_S = 3.0
_NO_WORKER = (502, 503, 504)  # 502 and 504 come from a gateway: the command may have been taken
_UNANSWERED = (429, *_NO_WORKER)
POSITION_CHARS = 2000  # a request's min_position takes no more


class ClientError(OnefoldError):
    """A call did not succeed.

    ClientError
    ├── Refused       the domain or the contract refuses it: a retry is useless
    └── Unavailable   no answer within the deadline; a command may have been taken: send it again with the same key
    """


class Refused(ClientError):
    """code: the problem's stable code; detail: for people."""

    def __init__(self, status: int, code: str, detail: str) -> None:
        super().__init__(f"{status} {code}: {detail}")
        self.status = status
        self.code = code
        self.detail = detail


class Unavailable(ClientError):
    """key: of the command, which may or may not have been taken; None for a read."""

    def __init__(self, last: str, key: str | None) -> None:
        super().__init__(f"no answer in time; the last attempt: {last}")
        self.key = key


@dataclass(frozen=True, slots=True)
class Decided:
    """A command that took effect. sequence: the aggregate's after it."""

    command_id: str
    sequence: int


@dataclass(frozen=True, slots=True)
class Read(Generic[M]):
    """A row. lag: how many records it may be behind. met: whether `until` was met; None without `until`."""

    body: M
    etag: str
    position: str
    lag: int
    met: bool | None


@dataclass(frozen=True, slots=True)
class Listed(Generic[M]):
    """One page. missing: the partitions that it does not cover."""

    items: Sequence[M]
    missing: Sequence[int]


@dataclass(frozen=True, slots=True)
class _Ask:
    """One request, to whichever worker is next."""

    method: str
    path: str
    params: Mapping[str, str | int] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)
    content: bytes | None = None
    wait_s: float = 0.0


@dataclass(frozen=True, slots=True)
class _Pause:
    seconds: float


_Steps = Generator[_Ask | _Pause, "httpx.Response | None", T]
"""A call: yields requests, which get a response, or None when there was none; and pauses."""


def path_of(collection: str, aggregate_id: str) -> str:
    """`/accounts`, `a/b` → `/accounts/a%2Fb`."""
    return f"{collection}/{quote(aggregate_id, safe='')}"


class _Calls:
    """The calls as steps, and the positions that this client has seen, so that no later read is older."""

    def __init__(self, deadline_s: float) -> None:
        self._deadline_s = deadline_s
        self._positions: OrderedDict[Place, int] = OrderedDict()

    @property
    def position(self) -> str:
        """The position of everything seen so far; another client that notes it reads nothing older."""
        return format_positions(self._positions)

    def note(self, position: str) -> None:
        """From now on, read nothing older than `position`."""
        for place, offset in parse_positions(position).items():
            self._positions[place] = max(offset, self._positions.pop(place, -1))
        while len(self.position) > POSITION_CHARS:
            self._positions.popitem(last=False)

    def send_steps(
        self, path: str, command: BaseModel | None, key: str | None, at: datetime | None, if_match: int | str | None
    ) -> _Steps[Decided]:
        key = key or str(uuid.uuid4())
        headers = {"Idempotency-Key": key} | ({"Occurred-At": at.isoformat()} if at else {})
        if if_match is not None:
            headers["If-Match"] = f'"{if_match}"' if isinstance(if_match, int) else if_match
        content = command.model_dump_json().encode() if command is not None else None
        if content is not None:
            headers["Content-Type"] = "application/json"
        ask = _Ask("POST", path, headers=headers, content=content, wait_s=10.0)
        answer = yield from self._answered(ask, key)
        if answer.status_code == httpx.codes.ACCEPTED:
            answer = yield from self._outcome(answer.headers["location"], key)
        self._note(answer)
        _check(answer)
        accepted = answer.json()
        return Decided(accepted["command_id"], accepted["sequence"])

    def read_steps(
        self,
        path: str,
        model: type[M],
        until: str | None,
        wait_s: float,
        max_lag: int | None,
        as_of: int | str | None,
    ) -> _Steps[Read[M]]:
        given: dict[str, str | int | None] = {
            "min_position": self.position or None,
            "until": until,
            "wait": f"{wait_s:g}",
            "max_lag": max_lag,
            "as_of": as_of,
        }
        params = {name: value for name, value in given.items() if value is not None}
        answer = yield from self._answered(_Ask("GET", path, params, wait_s=wait_s))
        self._note(answer)
        _check(answer)
        met = answer.headers.get("onefold-until")
        return Read(
            model.model_validate_json(answer.content),
            answer.headers.get("etag", ""),
            answer.headers.get("onefold-position", ""),
            int(answer.headers.get("onefold-lag", "0")),
            None if met is None else met == "met",
        )

    def page_steps(
        self, path: str, model: type[M], params: Mapping[str, str | int], cursor: str | int | None
    ) -> _Steps[tuple[Listed[M], str | int | None]]:
        query = {**params, **({"cursor": cursor} if cursor else {})}
        answer = yield from self._answered(_Ask("GET", path, query))
        _check(answer)
        page = answer.json()
        missing = [part["partition"] for part in page.get("partitions", ()) if part["status"] == "missing"]
        return Listed([model.model_validate(item) for item in page["items"]], missing), page["cursor"]

    def _outcome(self, location: str, key: str) -> _Steps[httpx.Response]:
        """The outcome of a command that was taken; the service answers 404 until it is decided."""
        deadline = time.monotonic() + self._deadline_s
        while time.monotonic() < deadline:
            yield _Pause(FIRST_PAUSE_S)
            answer = yield from self._answered(_Ask("GET", location), key)
            if answer.status_code != httpx.codes.NOT_FOUND:
                return answer
        raise Unavailable("taken, but not decided", key)

    def _answered(self, ask: _Ask, key: str | None = None) -> _Steps[httpx.Response]:
        """The first answer whose status is not in `_UNANSWERED`; retries with growing pauses until the deadline."""
        deadline = time.monotonic() + self._deadline_s + ask.wait_s
        pause_s = FIRST_PAUSE_S
        while True:
            answer = yield ask
            if answer is not None and answer.status_code not in _UNANSWERED:
                return answer
            wait_s = max(pause_s * random.uniform(0.5, 1.5), float(_retry_after(answer)))
            if time.monotonic() + wait_s > deadline:
                raise Unavailable("no connection" if answer is None else answer.text[:300], key)
            yield _Pause(wait_s)
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)

    def _note(self, answer: httpx.Response) -> None:
        if position := answer.headers.get("onefold-position"):
            self.note(position)


def _retry_after(answer: httpx.Response | None) -> int:
    text = answer.headers.get("retry-after", "0") if answer is not None else "0"
    return int(text) if text.isdigit() else 0


def _check(answer: httpx.Response) -> None:
    """Raises Refused."""
    if answer.is_success:
        return
    try:
        problem = answer.json()
        refusal = Refused(answer.status_code, problem["code"], problem["detail"])
    except (ValueError, KeyError, TypeError):
        refusal = Refused(answer.status_code, "unexpected", answer.text[:300])
    raise refusal


class _Workers:
    """Chooses the worker to ask: the same one as long as it answers."""

    def __init__(self, urls: str | Sequence[str], token: str | Callable[[], str] | None) -> None:
        self._urls = [url.rstrip("/") for url in ([urls] if isinstance(urls, str) else urls)]
        self._token = token
        self._turn = 0

    def heard(self, answer: httpx.Response | None) -> httpx.Response | None:
        """Returns `answer` (None: there was none); after a worker that could not answer, the next one is asked."""
        if answer is None or answer.status_code in _NO_WORKER:
            self._turn += 1
        return answer

    def request(self, http: httpx.Client | httpx.AsyncClient, ask: _Ask) -> httpx.Request:
        headers = dict(ask.headers)
        if self._token is not None:
            headers["Authorization"] = f"Bearer {self._token if isinstance(self._token, str) else self._token()}"
        url = self._urls[self._turn % len(self._urls)] + ask.path
        return http.build_request(
            ask.method,
            url,
            params=ask.params or None,
            headers=headers,
            content=ask.content,
            timeout=httpx.Timeout(ask.wait_s + ANSWER_S, connect=2.0),
        )


class Client(_Calls):
    """urls: of one worker or several; if one does not answer, the next is asked. token: or a function returning it."""

    def __init__(
        self,
        urls: str | Sequence[str],
        *,
        token: str | Callable[[], str] | None = None,
        deadline_s: float = DEADLINE_S,
        http: httpx.Client | None = None,
    ) -> None:
        super().__init__(deadline_s)
        self._workers = _Workers(urls, token)
        self._http = http or httpx.Client(mounts=DIRECT, verify=trusted())

    def send(
        self,
        path: str,
        command: BaseModel | None = None,
        *,
        key: str | None = None,
        at: datetime | None = None,
        if_match: int | str | None = None,
    ) -> Decided:
        """Returns once it is decided. Raises ClientError.

        key: commands with the same key take effect once. if_match: a sequence, or the ETag of a Read; at any other
        sequence the command is Refused.
        """
        return self._run(self.send_steps(path, command, key, at, if_match))

    def read(
        self,
        path: str,
        model: type[M],
        *,
        until: str | None = None,
        wait_s: float = 5.0,
        max_lag: int | None = None,
        as_of: int | str | None = None,
    ) -> Read[M]:
        """The row, never older than what this client has seen. Raises ClientError.

        until: a field:value to wait for. as_of: a sequence, or an instant such as 2026-11-20T10:00:00Z.
        """
        return self._run(self.read_steps(path, model, until, wait_s, max_lag, as_of))

    def pages(self, path: str, model: type[M], **params: str | int) -> Iterator[Listed[M]]:
        """Page after page of a list, or of an aggregate's events. params: limit, and a list's order and filters."""
        cursor: str | int | None = None
        while True:
            page, cursor = self._run(self.page_steps(path, model, params, cursor))
            yield page
            if cursor is None:
                return

    def _run(self, steps: _Steps[T]) -> T:
        answer: httpx.Response | None = None
        while True:
            try:
                step = steps.send(answer)
            except StopIteration as done:
                result: T = done.value
                return result
            answer = self._do(step)

    def _do(self, step: _Ask | _Pause) -> httpx.Response | None:
        if isinstance(step, _Pause):
            time.sleep(step.seconds)
            return None
        try:
            return self._workers.heard(self._http.send(self._workers.request(self._http, step)))
        except httpx.TransportError:
            return self._workers.heard(None)

    def close(self) -> None:
        self._http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class AsyncClient(_Calls):
    """As `Client`."""

    def __init__(
        self,
        urls: str | Sequence[str],
        *,
        token: str | Callable[[], str] | None = None,
        deadline_s: float = DEADLINE_S,
        http: httpx.AsyncClient | None = None,
    ) -> None:
        super().__init__(deadline_s)
        self._workers = _Workers(urls, token)
        self._http = http or httpx.AsyncClient(mounts=DIRECT, verify=trusted())

    async def send(
        self,
        path: str,
        command: BaseModel | None = None,
        *,
        key: str | None = None,
        at: datetime | None = None,
        if_match: int | str | None = None,
    ) -> Decided:
        return await self._run(self.send_steps(path, command, key, at, if_match))

    async def read(
        self,
        path: str,
        model: type[M],
        *,
        until: str | None = None,
        wait_s: float = 5.0,
        max_lag: int | None = None,
        as_of: int | str | None = None,
    ) -> Read[M]:
        return await self._run(self.read_steps(path, model, until, wait_s, max_lag, as_of))

    async def pages(self, path: str, model: type[M], **params: str | int) -> AsyncIterator[Listed[M]]:
        cursor: str | int | None = None
        while True:
            page, cursor = await self._run(self.page_steps(path, model, params, cursor))
            yield page
            if cursor is None:
                return

    async def _run(self, steps: _Steps[T]) -> T:
        answer: httpx.Response | None = None
        while True:
            try:
                step = steps.send(answer)
            except StopIteration as done:
                result: T = done.value
                return result
            answer = await self._do(step)

    async def _do(self, step: _Ask | _Pause) -> httpx.Response | None:
        if isinstance(step, _Pause):
            await asyncio.sleep(step.seconds)
            return None
        try:
            return self._workers.heard(await self._http.send(self._workers.request(self._http, step)))
        except httpx.TransportError:
            return self._workers.heard(None)

    async def close(self) -> None:
        await self._http.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
