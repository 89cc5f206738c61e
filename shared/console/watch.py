"""Asks one worker of each service for its cluster, and every worker for its counts."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import aiohttp
from pydantic import BaseModel, ValidationError

from shared.console.picture import (
    Counts,
    Declared,
    Letter,
    Paces,
    Picture,
    Shown,
    counts_in,
    letter_in,
    places_in,
    positions_in,
    sources_in,
)
from shared.http import peers
from shared.http.cluster import Cluster
from shared.http.dead_letters import DeadLetter
from shared.http.lists import Covered

Workers = Callable[[], Mapping[str, Sequence[str]]]
"""The URLs of workers that run now, by service, as far as they are known."""

EVERY_S = 0.5
_COUNTED_EVERY_S = 1.0  # a worker writes all of its metrics for that
_DIAGNOSED_EVERY_S = 15.0  # the doctor asks every broker for much
_ANSWER_S = peers.ANSWER_S + 2.0  # for so long a worker waits for a member that is frozen
_TIMEOUT = aiohttp.ClientTimeout(total=_ANSWER_S, sock_connect=peers.CONNECT_S)
_LETTERS = 100
_UNHEARD = (aiohttp.ClientError, TimeoutError, ValueError)  # the last: not JSON, or of another release


class _Letters(BaseModel):
    """The first ones of a service."""

    items: list[DeadLetter]
    cursor: str | None
    partitions: list[Covered]


@dataclass
class _Known:
    """What earlier looks have found of a service. urls: the one that answered last comes first."""

    urls: list[str] = field(default_factory=list)
    advances: Paces = field(default_factory=Paces)
    handling: Paces = field(default_factory=Paces)
    counts: Mapping[str, Counts] = field(default_factory=dict)
    parked: int | None = None
    letters: Sequence[Letter] = ()
    counted_at: float = 0.0


class Watcher:
    """token: of an operator, where workers ask for one. diagnose: blocking; what `doctor --json` prints."""

    def __init__(
        self,
        services: Sequence[Declared],
        workers: Workers,
        diagnose: Callable[[], Mapping[str, Any]],
        token: str = "",
        acts: bool = False,
    ) -> None:
        """acts: whether the page may kill and add workers."""
        self._services = services
        self._workers = workers
        self._diagnose = diagnose
        self._acts = acts
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}
        self._known = {each.name: _Known() for each in services}
        self._http: aiohttp.ClientSession | None = None
        self._diagnosis: Mapping[str, Any] | None = None
        self._diagnosed_at = 0.0
        self._diagnosing: threading.Thread | None = None

    async def look(self) -> bytes:
        """A Picture as JSON. Whatever does not answer is a `problem` in it."""
        self._ask_the_doctor()
        urls = self._workers()
        shown = await asyncio.gather(*(self._shown(each, urls.get(each.name, ())) for each in self._services))
        return (
            Picture(at=time.time(), services=shown, doctor=self._diagnosis, acts=self._acts).model_dump_json().encode()
        )

    async def close(self) -> None:
        if self._http is not None:
            await self._http.close()

    def _ask_the_doctor(self) -> None:
        due = time.monotonic() > self._diagnosed_at + _DIAGNOSED_EVERY_S or self._diagnosis is None
        if due and (self._diagnosing is None or not self._diagnosing.is_alive()):
            # not one of the loop's threads, for which the end of the process would wait
            self._diagnosing = threading.Thread(target=self._keep_diagnosis, daemon=True)
            self._diagnosing.start()

    def _keep_diagnosis(self) -> None:
        found: Mapping[str, Any]
        try:
            found = self._diagnose()
        except Exception as failure:  # whatever it is, the page tells it
            found = {"problem": f"{type(failure).__name__}: {failure}"}
        self._diagnosis, self._diagnosed_at = {**found, "at": time.time()}, time.monotonic()

    async def _shown(self, declared: Declared, urls: Sequence[str]) -> Shown:
        known = self._known[declared.name]
        known.urls = list(dict.fromkeys([*(each for each in known.urls if each in urls or not urls), *urls]))
        cluster, why = await self._cluster(known)
        if cluster is None:
            return Shown(declared=declared, problem=why)
        now = time.monotonic()
        known.advances.note(now, positions_in(cluster))
        if now >= known.counted_at + _COUNTED_EVERY_S:
            known.counted_at = now
            await self._count(declared.name, known, [each.url for each in cluster.members if each.reachable], now)
        return Shown(
            declared=declared,
            url=known.urls[0],
            members=cluster.members,
            places=places_in(cluster, declared),
            sources=sources_in(cluster, known.advances),
            handled_per_s=known.handling.of(known.counts),
            parked=known.parked,
            letters=known.letters,
        )

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

    async def _count(self, service: str, known: _Known, urls: Sequence[str], now: float) -> None:
        found = dict(zip(urls, await asyncio.gather(*map(self._counts, urls)), strict=True))
        known.counts = {url: each for url, each in found.items() if each is not None}
        known.handling.note(now, {url: each.handled for url, each in known.counts.items()})
        page = await self._letters(known.urls[0])
        known.letters = [letter_in(service, known.urls[0], each) for each in page.items] if page else ()
        known.parked = _parked(page, found.values())

    async def _counts(self, url: str) -> Counts | None:
        try:
            return counts_in((await self._ask(f"{url}/metrics")).decode())
        except _UNHEARD:
            return None

    async def _letters(self, url: str) -> _Letters | None:
        try:
            return _Letters.model_validate_json(await self._ask(f"{url}/dead-letters?limit={_LETTERS}"))
        except _UNHEARD:
            return None

    async def _ask(self, url: str) -> bytes:
        """Raises one of _UNHEARD."""
        if self._http is None:
            self._http = aiohttp.ClientSession(headers=self._headers, timeout=_TIMEOUT, raise_for_status=True)
        async with self._http.get(url, allow_redirects=False) as answer:
            return await answer.read()


def _parked(page: _Letters | None, counts: Collection[Counts | None]) -> int | None:
    """None where a worker, or a partition, told nothing."""
    if page is None or any(each.status == "missing" for each in page.partitions):
        return None
    if page.cursor is None:
        return len(page.items)
    counted = [each.parked for each in counts if each is not None]
    return sum(counted) if len(counted) == len(counts) else None


def _said(failure: Exception) -> str:
    if isinstance(failure, aiohttp.ClientResponseError):
        fix = "; fix: set ONEFOLD_TOKEN to an operator's bearer token" if failure.status in (401, 403) else ""
        return f"answers {failure.status} {failure.message}{fix}"
    if isinstance(failure, ValidationError):
        return "answers what this release does not understand"
    return "does not answer"
