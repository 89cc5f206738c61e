"""Asks one worker of each service for its cluster and its dead letters, and any for what a viewer wants."""

from __future__ import annotations

import asyncio
import math
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Generic, NamedTuple, TypeVar

import aiohttp
from pydantic import BaseModel, ValidationError
from yarl import URL

from shared.console.picture import Declared, Letter, Looks, Picture, Run, Shown, Verb, Versions, letter_in
from shared.domain.errors import OnefoldError
from shared.http import peers
from shared.http.cluster import Cluster
from shared.http.dead_letters import DeadLetter
from shared.http.health import Standing
from shared.stories.tail import Newest, Tail
from shared.topology.topics import Topology

T = TypeVar("T")

Workers = Callable[[], Mapping[str, Sequence[str]]]
"""The URLs of workers that run now, by service, as far as they are known."""

EVERY_S = 0.35  # for news; other figures cost more
COUNTED_EVERY_S = 0.7  # a take-over is seen within a second
_LISTED_EVERY_S = 1.0  # a worker asks all others for that
_EXAMINED_EVERY_S = 15.0  # the doctor, and who looks for versions, ask every broker for much
_ANSWER_S = peers.ANSWER_S + 2.0  # for so long a worker waits for a member that is frozen
_PASSED_S = 12.0  # a story takes eight seconds at most
_POSTED_S = 30.0  # a correction waits ten seconds for its outcome, and may be passed on and read the log before
_TIMEOUT = aiohttp.ClientTimeout(total=_ANSWER_S, sock_connect=peers.CONNECT_S)
_LETTERS = 100
_JSON = ("application/json", "application/problem+json")
_UNHEARD = (aiohttp.ClientError, TimeoutError, ValueError)  # the last: not JSON, or of another release


class Passed(NamedTuple):
    """What a worker answered."""

    status: int
    media_type: str
    body: bytes


class NotPassed(Exception):
    """No worker of the service gives an answer that may be shown."""


class _Letters(BaseModel):
    """The first ones of a service."""

    items: list[DeadLetter]


@dataclass
class _Known:
    """What earlier looks have found of a service. urls: the one that answered last comes first."""

    urls: list[str] = field(default_factory=list)
    looks: Looks = field(default_factory=Looks)
    letters: Sequence[Letter] = ()
    standing: Standing | None = None
    listed_at: float = -math.inf


class News:
    """The newest events, as far as brokers tell in time. tail: blocking, as of `tail_of`."""

    def __init__(self, tail: Callable[[], Newest]) -> None:
        self._tail = tail
        self._reading: asyncio.Future[Newest] | None = None
        self.newest = Newest()

    async def read(self) -> None:
        """Goes on with what was known while brokers are silent."""
        reading = self._reading = self._reading or _in_daemon(self._tail)
        done, _ = await asyncio.wait([reading], timeout=EVERY_S)
        if done:
            failure = reading.exception()
            self.newest = Newest(problem=repr(failure)) if failure else reading.result()
            self._reading = None


class _Asked(Generic[T]):
    """What a blocking question found last. It has a thread of its own, for which the process's end does not wait."""

    def __init__(self, ask: Callable[[], T]) -> None:
        self._ask = ask
        self._asking: threading.Thread | None = None
        self._found_at = self._asked_at = -math.inf
        self.found: T | None = None

    def again(self, since: float = -math.inf) -> None:
        """Asks it once more, if that is due, or something has happened since it was asked. since: monotonic."""
        due = time.monotonic() > self._found_at + _EXAMINED_EVERY_S or since > self._asked_at
        if due and (self._asking is None or not self._asking.is_alive()):
            self._asking = threading.Thread(target=self._find, daemon=True)
            self._asking.start()

    def _find(self) -> None:
        self._asked_at = time.monotonic()
        self.found, self._found_at = self._ask(), time.monotonic()


def tail_of(topologies: Iterable[Topology], bootstrap: str) -> Callable[[], Newest]:
    """Gives the newest events of these services, or the `problem` that keeps it from looking."""
    tail = Tail(bootstrap, [topic.name for each in topologies for topic in each.topics if topic.kind == "events"])

    def newest() -> Newest:
        try:
            return tail.look()
        except OnefoldError as failure:
            return Newest(problem=str(failure))

    return newest


class Watcher:
    """token: of an operator, where workers ask for one. diagnose, tail, versions: blocking; what `doctor --json`
    prints, the newest events of all services, and the versions of each. verbs, runs: what the page may run, and has.
    """

    def __init__(
        self,
        services: Sequence[Declared],
        workers: Workers,
        diagnose: Callable[[], Mapping[str, Any]],
        tail: Callable[[], Newest],
        token: str = "",
        acts: bool = False,
        operator: str | None = None,
        versions: Callable[[], Versions] = dict,
        verbs: Sequence[Verb] = (),
        runs: Callable[[], Sequence[Run]] = tuple,
    ) -> None:
        """acts: whether the page may kill and add workers. operator: as Picture has it."""
        self._services = services
        self._workers = workers
        self._diagnose = diagnose
        self._find_versions = versions
        self._versions = _Asked(self._told_versions)
        self._verbs, self._runs = verbs, runs
        self._ended: set[tuple[str, float]] = set()
        self._ended_at = -math.inf
        self._acts = acts
        self.operator = operator
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}
        self._known = {each.name: _Known() for each in services}
        self._http: aiohttp.ClientSession | None = None
        self._diagnosis = _Asked(self._findings)
        self._news = News(tail)
        self._counted_at = -math.inf
        self._services_shown: Sequence[Shown] = ()
        self._seen: object = None
        self._frame = b""

    async def look(self) -> bytes:
        """A Picture as JSON; the last one where nothing is new. Whatever does not answer is a `problem` in it."""
        self._diagnosis.again()
        runs = self._runs()
        if (ended := {(each.service, each.at) for each in runs if each.exit_code is not None}) - self._ended:
            self._ended, self._ended_at = ended, time.monotonic()
        self._versions.again(since=self._ended_at)
        await asyncio.gather(self._count(), self._news.read())
        seen = self._counted_at, self._news.newest, self._diagnosis.found, self._versions.found, runs
        if seen != self._seen:
            self._seen, self._frame = seen, self._picture(runs).model_dump_json().encode()
        return self._frame

    async def _count(self) -> None:
        """Asks each service again, if that is due."""
        now = time.monotonic()
        if now >= self._counted_at + COUNTED_EVERY_S:
            urls = self._workers()
            asked = [self._shown(each, urls.get(each.name, ())) for each in self._services]
            self._services_shown, self._counted_at = await asyncio.gather(*asked), now

    def _picture(self, runs: Sequence[Run]) -> Picture:
        return Picture(
            at=time.time(),
            services=self._services_shown,
            newest=self._news.newest,
            doctor=self._diagnosis.found,
            acts=self._acts,
            operator=self.operator,
            with_token=bool(self._headers),
            versions=self._versions.found or {},
            verbs=self._verbs,
            runs=runs,
        )

    async def pass_on(self, service: str, target: str, body: Mapping[str, Any] | None = None) -> Passed:
        """What the first worker that answers gives at `target`, a path with its query as they are sent.

        body: what to POST; without it, GET. A worker that did not answer may have taken it, and so may the next.
        Only JSON, as a page of a worker's would act in the console's name. Raises NotPassed.
        """
        why = f"no service is called {service}" if service not in self._known else "none of its workers is known"
        for url in list(self._known[service].urls) if service in self._known else ():
            try:
                return await self._passed(URL(url + target, encoded=True), body)
            except (aiohttp.ClientError, TimeoutError):
                why = f"{url} does not answer"
        raise NotPassed(why)

    async def _passed(self, url: URL, body: Mapping[str, Any] | None) -> Passed:
        method = "GET" if body is None else "POST"
        timeout = aiohttp.ClientTimeout(total=_PASSED_S if body is None else _POSTED_S, sock_connect=peers.CONNECT_S)
        async with self._session.request(
            method, url, json=body, allow_redirects=False, timeout=timeout, raise_for_status=False
        ) as answer:
            if answer.content_type not in _JSON:
                raise NotPassed(f"{url} gives {answer.content_type}, and only JSON is shown")
            return Passed(answer.status, answer.content_type, await answer.read())

    async def close(self) -> None:
        if self._http is not None:
            await self._http.close()

    def _findings(self) -> Mapping[str, Any]:
        try:
            return {**self._diagnose(), "at": time.time()}
        except Exception as failure:  # whatever it is, the page tells it
            return {"problem": f"{type(failure).__name__}: {failure}", "at": time.time()}

    def _told_versions(self) -> Versions:
        try:
            return self._find_versions()
        except Exception as failure:  # as above
            return {each.name: f"{type(failure).__name__}: {failure}" for each in self._services}

    async def _shown(self, declared: Declared, urls: Sequence[str]) -> Shown:
        known = self._known[declared.name]
        known.urls = list(dict.fromkeys([*(each for each in known.urls if each in urls or not urls), *urls]))
        cluster, why = await self._cluster(known)
        if cluster is None:
            return Shown(declared=declared, problem=why)
        now = time.monotonic()
        if now >= known.listed_at + _LISTED_EVERY_S:
            known.listed_at = now
            known.letters = await self._letters(declared.name, known.urls[0])
            known.standing = await self._standing(known.urls[0])
        return known.looks.shown(declared, known.urls[0], cluster, known.letters, now, known.standing)

    async def _cluster(self, known: _Known) -> tuple[Cluster | None, str]:
        """What the first worker that answers says; or why the last one does not."""
        why = "none of its workers is known"
        for url in list(known.urls):
            try:
                return Cluster.model_validate_json(await self._ask(f"{url}/cluster")), ""
            except _UNHEARD as failure:
                why = f"{url} {_said(failure)}"
                known.urls.append(known.urls.pop(known.urls.index(url)))
        return None, why

    async def _letters(self, service: str, url: str) -> Sequence[Letter]:
        """The first ones, as far as that worker knows."""
        try:
            page = _Letters.model_validate_json(await self._ask(f"{url}/dead-letters?limit={_LETTERS}"))
        except _UNHEARD:
            return ()
        return [letter_in(service, url, each) for each in page.items]

    async def _standing(self, url: str) -> Standing | None:
        try:
            return Standing.model_validate_json(await self._ask(f"{url}/versions"))
        except _UNHEARD:
            return None

    async def _ask(self, url: str) -> bytes:
        """Raises one of _UNHEARD."""
        async with self._session.get(url, allow_redirects=False) as answer:
            return await answer.read()

    @property
    def _session(self) -> aiohttp.ClientSession:
        if self._http is None:
            self._http = aiohttp.ClientSession(headers=self._headers, timeout=_TIMEOUT, raise_for_status=True)
        return self._http


def _in_daemon(call: Callable[[], T]) -> asyncio.Future[T]:
    """In a thread that nobody waits for at the end: silent brokers take a minute."""
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[T] = loop.create_future()

    def run() -> None:
        try:
            found = call()
        except Exception as failure:
            tell = partial(answer.set_exception, failure)
        else:
            tell = partial(answer.set_result, found)
        with suppress(RuntimeError):  # the loop has ended
            loop.call_soon_threadsafe(tell)

    threading.Thread(target=run, name="tail", daemon=True).start()
    return answer


def _said(failure: Exception) -> str:
    if isinstance(failure, aiohttp.ClientResponseError):
        fix = "; fix: set ONEFOLD_TOKEN to an operator's bearer token" if failure.status in (401, 403) else ""
        return f"answers {failure.status} {failure.message}{fix}"
    if isinstance(failure, ValidationError):
        return "answers what this release does not understand"
    return "does not answer"
