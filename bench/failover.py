"""How long a key cannot be read when its owner goes: what a client sees that asks every worker in turn.

A gap is the longest time between two right answers for one key. An answer is right, refused (503) or wrong; of the
times they took, only the longest is reported. Where nobody listens there is no answer.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import cycle
from statistics import median

import httpx

from bench.accounts import PARTITIONS, accounts, fill, ids, owners
from bench.begin import Begin
from bench.lab import Lab
from bench.report import Report, Result
from shared.dev.stages import StageFailed
from shared.dev.worker import Worker

WORKERS = 3
SETTLED_S = 2.0
BACK_WITHIN_S = 60.0
_PAUSE_S = 0.01
_MAX_LAG = 1_000

Fault = Callable[[Sequence[Worker]], Awaitable[None]]


@dataclass(slots=True)
class Seen:
    """The answers to the reader of one key. row: the only right answer, because nobody writes."""

    row: bytes
    last_right: float = field(default_factory=time.monotonic)
    gap_s: float = 0.0
    slowest_s: float = 0.0
    right: int = 0
    refused: int = 0
    wrong: int = 0

    def note(self, answer: httpx.Response, began: float) -> None:
        self.slowest_s = max(self.slowest_s, time.monotonic() - began)
        if answer.status_code == httpx.codes.OK and answer.content == self.row:
            self.right_now()
        elif answer.status_code == httpx.codes.SERVICE_UNAVAILABLE:
            self.refused += 1
        else:
            self.wrong += 1

    def right_now(self) -> None:
        now = time.monotonic()
        self.gap_s = max(self.gap_s, now - self.last_right)
        self.last_right = now
        self.right += 1


async def killed(workers: Sequence[Worker]) -> None:
    await asyncio.to_thread(workers[0].kill)


async def stopped(workers: Sequence[Worker]) -> None:
    await asyncio.to_thread(workers[0].stop)


async def restarted(workers: Sequence[Worker]) -> None:
    """One after the other, each waited for."""
    for worker in workers:
        await asyncio.to_thread(worker.stop)
        await asyncio.to_thread(worker.start)


FAULTS: dict[str, Fault] = {"killed": killed, "stopped": stopped, "rolling_restart": restarted}


def failover(lab: Lab, begin: Begin, _: object) -> Report:
    """Each fault without a standby, and with one and reads that allow a lag."""
    report = Report()
    for standbys, suffix in ((0, ""), (1, "_with_standby")):
        for name, fault in FAULTS.items():
            with begin(f"{name}{suffix}") as now:
                result = measure(lab, name + suffix, fault, standbys)
                now.done = f"longest gap {result.figures['longest_gap_s']} s"
            report.results.append(result)
    return report


def measure(lab: Lab, name: str, fault: Fault, standbys: int) -> Result:
    with accounts(lab, WORKERS, standbys=standbys) as workers:
        owned = owners(workers)
        keys = [ids({partition}, 1)[0] for partition in range(PARTITIONS)]
        fill(workers[0], keys)
        seen = asyncio.run(_watched(workers, keys, fault, {"max_lag": _MAX_LAG} if standbys else {}))
    hit = set(owned) if fault is restarted else {p for p, owner in owned.items() if owner is workers[0]}
    lost, kept = ([seen[key] for p, key in enumerate(keys) if (p in hit) is struck] for struck in (True, False))
    every = list(seen.values())
    return Result(
        name,
        {
            "longest_gap_s": round(max(each.gap_s for each in lost), 2),
            "median_gap_s": round(median(each.gap_s for each in lost), 2),
            "others_longest_gap_s": round(max((each.gap_s for each in kept), default=0.0), 2),
            "right": sum(each.right for each in every),
            "refused": sum(each.refused for each in every),
            "wrong": sum(each.wrong for each in every),
            "slowest_answer_s": round(max(each.slowest_s for each in every), 2),
            "session_timeout_s": lab.settings.session_timeout_s,
        },
    )


async def _watched(
    workers: Sequence[Worker], keys: Sequence[str], fault: Fault, query: dict[str, int]
) -> dict[str, Seen]:
    """Reads every key without a pause from before the fault until all are answered again."""
    async with httpx.AsyncClient(timeout=30, params=query, trust_env=False) as http:
        seen = {key: Seen((await http.get(f"{workers[0].url}/accounts/{key}")).content) for key in keys}
        readers = [asyncio.ensure_future(read_on(http, workers, key, seen[key])) for key in keys]
        await asyncio.sleep(SETTLED_S)
        await fault(workers)
        await answered_again(list(seen.values()), time.monotonic(), workers[0].log)
        for reader in readers:
            reader.cancel()
        await asyncio.gather(*readers, return_exceptions=True)
    return seen


async def answered_again(seen: Sequence[Seen], healed: float, log: object) -> None:
    """Returns when all have been right a while after `healed`. Raises StageFailed."""
    while min(each.last_right for each in seen) < healed + SETTLED_S:
        if time.monotonic() > healed + BACK_WITHIN_S:
            raise StageFailed(f"keys stay unanswered: {seen}", "see the log", log)
        await asyncio.sleep(0.1)


async def read_on(http: httpx.AsyncClient, workers: Sequence[Worker], key: str, seen: Seen) -> None:
    for worker in cycle(workers):
        began = time.monotonic()
        with suppress(httpx.NetworkError, httpx.RemoteProtocolError):  # down: a load balancer asks the next, too
            seen.note(await http.get(f"{worker.url}/accounts/{key}"), began)
        await asyncio.sleep(_PAUSE_S)
