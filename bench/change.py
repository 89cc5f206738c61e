"""What callers notice of a change while commands come in steadily: of a rolling restart, and of a switch to the next
version of a service that decides, and back.

A pause is the longest time between two commands that were answered 201 in one partition, a gap that between two right
answers for one key that is read. `quiet` is both without a change: what the load and the machine do by themselves.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager, closing, suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import cycle
from statistics import median

import httpx

from bench.accounts import NEXT, PARTITIONS, accounts, fill, ids
from bench.begin import Begin
from bench.client import Connection, post
from bench.failover import BACK_WITHIN_S, SETTLED_S, Seen, answered_again, read_on, restarted
from bench.lab import Lab
from bench.report import Figure, Report, Result
from bench.speed import Load
from shared.dev.worker import Worker, app_command
from shared.operations.versions import Step, Versions, VersionsRefused

WORKERS = 2  # of each version
CALLERS = 8  # of each partition: accounts of their own, of which each has one command under way
_PATIENCE_S = 15.0
_PAUSE_S = 0.02

Change = Callable[[], Awaitable[None]]


@dataclass(slots=True)
class Caller:
    """Charges one cent after the other. charged: how many were answered 201. wrong: as no other command's answer is."""

    key: str
    seen: Seen
    charged: int = 0
    wrong: int = 0
    ending: bool = False

    async def charge_on(self, workers: Sequence[Worker], every_s: float) -> None:
        """To one worker, as long as that answers, then to the next; each command until it is decided."""
        due = time.monotonic()
        for worker in cycle(workers):
            with suppress(OSError, EOFError, TimeoutError):  # down: a load balancer asks the next, too
                with closing(await Connection.to(worker.url)) as connection:
                    while not self.ending:
                        await asyncio.sleep(max(0.0, due - time.monotonic()))
                        await self._charge(connection)
                        due += every_s
                return
            await asyncio.sleep(_PAUSE_S)

    async def _charge(self, connection: Connection) -> None:
        number = self.charged + 1
        key = f"Idempotency-Key: {self.key}-{number}\r\n"
        request = post(f"/accounts/{self.key}/charges", '{"amount_cents":1}', key)
        while True:
            async with asyncio.timeout(_PATIENCE_S):
                status, body = await connection.ask(request)
            if status == httpx.codes.CREATED:
                break
            self.wrong += status not in (httpx.codes.ACCEPTED, httpx.codes.SERVICE_UNAVAILABLE)
            await asyncio.sleep(_PAUSE_S)
        self.charged = number
        self.wrong += json.loads(body)["sequence"] != number + 1  # behind that it was opened
        self.seen.right_now()


@dataclass(slots=True)
class Callers:
    """All partitions' callers, and one reader of each, of an account that nobody charges."""

    rate: int
    callers: Sequence[Caller]
    written: Sequence[Seen]
    read: Mapping[str, Seen]
    called_s: float = 0.0

    @property
    def every(self) -> list[Seen]:
        return [*self.written, *self.read.values()]

    @property
    def per_s(self) -> float:
        return sum(each.charged for each in self.callers) / self.called_s

    @classmethod
    def of(cls, worker: Worker, rate: int) -> Callers:
        keys = [ids({number}, CALLERS + 1) for number in range(PARTITIONS)]
        fill(worker, [key for some in keys for key in some])
        written = [Seen(b"") for _ in keys]
        callers = [Caller(key, seen) for some, seen in zip(keys, written, strict=True) for key in some[1:]]
        rows = {some[0]: httpx.get(f"{worker.url}/accounts/{some[0]}", trust_env=False).content for some in keys}
        return cls(rate, callers, written, {key: Seen(row) for key, row in rows.items()})

    @asynccontextmanager
    async def calling(self, workers: Sequence[Worker]) -> AsyncIterator[None]:
        every_s = len(self.callers) / self.rate
        turned = [[*workers[number:], *workers[:number]] for number in range(len(workers))]
        async with httpx.AsyncClient(timeout=_PATIENCE_S, trust_env=False) as http:
            readers = [asyncio.create_task(read_on(http, workers, key, seen)) for key, seen in self.read.items()]
            began, writers = time.monotonic(), []
            for each, some in zip(self.callers, cycle(turned), strict=False):
                each.ending = False
                writers.append(asyncio.create_task(each.charge_on(some, every_s)))
                await asyncio.sleep(1 / self.rate)  # not all at once
            yield
            self.called_s += time.monotonic() - began
            for each in self.callers:
                each.ending = True
            await asyncio.gather(*writers)
            for reader in readers:
                reader.cancel()
            await asyncio.gather(*readers, return_exceptions=True)

    async def notice(self, change: Change, log: object) -> tuple[list[float], list[float], float]:
        """The pauses of partitions and the gaps of keys around one change, and the seconds that it took itself."""
        for each in self.every:
            each.gap_s = 0.0
        began = time.monotonic()
        await change()
        ended = time.monotonic()
        await answered_again(self.every, ended, log)
        return [each.gap_s for each in self.written], [each.gap_s for each in self.read.values()], ended - began


@dataclass(slots=True)
class Noticed:
    """Of one kind of change, in seconds: of each partition, of each key, of each round."""

    pauses: list[float] = field(default_factory=list)
    gaps: list[float] = field(default_factory=list)
    took: list[float] = field(default_factory=list)

    @property
    def figures(self) -> dict[str, Figure]:
        pauses = sorted(self.pauses)
        return {
            "pause_p50_s": round(median(pauses), 3),
            "pause_p99_s": round(pauses[len(pauses) * 99 // 100], 3),
            "pause_max_s": round(pauses[-1], 3),
            "read_gap_p50_s": round(median(self.gaps), 3),
            "read_gap_max_s": round(max(self.gaps), 3),
            "took_p50_s": round(median(self.took), 2),
            "took_max_s": round(max(self.took), 2),
            "rounds": len(self.took),
        }


def change(lab: Lab, begin: Begin, load: Load) -> Report:
    """Of a version that is alone, then of two."""
    report, versions = Report(), Versions(NEXT, lab.settings)
    with ExitStack() as stack:
        workers = stack.enter_context(accounts(lab, WORKERS, standbys=1))
        callers, more = Callers.of(workers[0], load.rate), list[Worker]()

        def deploy() -> None:
            _do(versions.deploy)
            more.extend(stack.enter_context(accounts(lab, WORKERS, next_command, standbys=1)))

        def measure(asked: Sequence[Worker], rounds: int, changes: Mapping[str, Change]) -> None:
            found = asyncio.run(_noticed(begin, callers, asked, rounds, changes))
            report.results.extend(Result(name, noticed.figures) for name, noticed in found.items())

        quiet = partial(asyncio.sleep, SETTLED_S)
        measure(workers, load.rounds, {"quiet": quiet, "rolling_restart": partial(restarted, workers)})
        measure(workers, 1, {"deploy": partial(asyncio.to_thread, deploy)})
        beside: dict[str, Change] = {
            "quiet_beside": quiet,
            "switch": lambda: asyncio.to_thread(_do, lambda: versions.switch("bench", "")),
            "rollback": lambda: asyncio.to_thread(_do, lambda: versions.rollback("bench", "")),
        }
        measure([*workers, *more], load.rounds, beside)
        report.results.append(Result("charges", _counted(callers, workers[0])))
    return report


def next_command(_: str) -> list[str]:
    return app_command("bench.sides.next_accounts")


def _do(plan: Callable[[], Iterable[Step]]) -> None:
    """Again while it is refused, as one does who reads what to do."""
    deadline = time.monotonic() + BACK_WITHIN_S
    while True:
        try:
            for step in plan():
                step.do()
            return
        except VersionsRefused:
            if time.monotonic() > deadline:
                raise


async def _noticed(
    begin: Begin, callers: Callers, workers: Sequence[Worker], rounds: int, changes: Mapping[str, Change]
) -> Mapping[str, Noticed]:
    found = {name: Noticed() for name in changes}
    async with callers.calling(workers):
        await answered_again(callers.every, time.monotonic(), workers[0].log)
        for number in range(1, rounds + 1):
            for name, act in changes.items():
                with begin(f"{name} {number}/{rounds}") as now:
                    pauses, gaps, took_s = await callers.notice(act, workers[0].log)
                    now.done = f"pause {max(pauses):.2f} s, read gap {max(gaps):.2f} s, itself {took_s:.2f} s"
                found[name].pauses += pauses
                found[name].gaps += gaps
                found[name].took.append(took_s)
    return found


def _counted(callers: Callers, worker: Worker) -> dict[str, Figure]:
    """Charges that were answered 201, beside the cents that accounts have got."""
    with httpx.Client(trust_env=False) as http:
        lacking = [
            each.charged - http.get(f"{worker.url}/accounts/{each.key}").json()["balance_cents"]
            for each in callers.callers
        ]
    return {
        "answered": sum(each.charged for each in callers.callers),
        "asked_per_s": callers.rate,
        "answered_per_s": round(callers.per_s, 1),
        "lost": sum(each for each in lacking if each > 0),
        "twice": -sum(each for each in lacking if each < 0),
        "wrong": sum(each.wrong for each in callers.callers) + sum(each.wrong for each in callers.read.values()),
    }
