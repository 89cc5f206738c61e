"""How fast the HTTP side is: idle beside a bare endpoint, while its worker folds at full speed, and to decide."""

from __future__ import annotations

import asyncio
import sys
from statistics import median, quantiles

from bench.begin import Begin
from bench.client import Connection, Request, for_seconds, get, latencies, post
from bench.lab import Input, Lab
from bench.race import ENGINE, follow, start
from bench.report import Figure, Report, Result
from bench.speed import DECIDE, Load
from shared.dev.stages import Stage
from shared.dev.worker import Worker

CONNECTIONS = 16
MEASURED_S = 4.0
WARM_UP_S = 1.0
PROBE_EVERY_S = 0.005
COMMAND_EVERY_S = 0.02


def http(lab: Lab, begin: Begin, load: Load) -> Report:
    report = Report()
    for suffix, keys in load.widths:
        idle(lab, begin, load.rounds, lab.events(begin, keys, keys), suffix, report)
        busy(lab, begin, load.rounds, lab.events(begin, load.events, keys), suffix, report)
        commands(lab, begin, load.rounds, lab.commands(begin, keys, keys), suffix, report)
    return report


def idle(lab: Lab, begin: Begin, rounds: int, source: Input, suffix: str, report: Report) -> None:
    """GET by key beside a bare FastAPI endpoint with the same body, alternating. source: each of its keys once."""
    ours: list[float] = []
    theirs: list[float] = []
    with begin("GET, idle") as now:
        worker = start(lab, ENGINE, source)
        follow(lab, ENGINE, worker, source, now)
        worker.await_ready()
        path = f"/sales/{key(0)}"
        _, body = asyncio.run(_one(worker.url, get(path)))
        command = ["/usr/bin/env", f"BENCH_BODY={body.decode()}", sys.executable, "-m", "bench.sides.bare"]
        bare = lab.spawn("bare", command)
        bare.await_ready()
        for _ in range(rounds):
            for url, rates in ((worker.url, ours), (bare.url, theirs)):
                rates.append(_rate(url, source.keys))
        now.done = f"{median(ours):,.0f} requests/s, bare {median(theirs):,.0f}"
        worker.kill()
        bare.kill()
    report.results += [
        Result(f"get_idle{suffix}", {"requests_per_s": median(ours), "connections": CONNECTIONS, "keys": source.keys}),
        Result(f"bare_fastapi{suffix}", {"requests_per_s": median(theirs), "connections": CONNECTIONS}),
    ]
    pairs = zip(ours, theirs, strict=True)
    report.ratios[f"get_vs_bare_fastapi{suffix}"] = median(mine / other for mine, other in pairs)


def busy(lab: Lab, begin: Begin, rounds: int, source: Input, suffix: str, report: Report) -> None:
    """GET by key, one after another, while the worker folds `source` as fast as it can."""
    taken: list[float] = []
    for number in range(1, rounds + 1):
        with begin(f"GET, busy {number}/{rounds}") as now:
            worker = start(lab, ENGINE, source)
            worker.await_ready()
            taken += asyncio.run(_while_folding(lab, worker, source, now))
            worker.kill()
            now.done = f"p99 {_percentiles(taken)['p99_ms']:.1f} ms"
    report.results.append(Result(f"get_busy{suffix}", _percentiles(taken)))


async def _while_folding(lab: Lab, worker: Worker, source: Input, now: Stage) -> list[float]:
    folding = asyncio.create_task(asyncio.to_thread(follow, lab, ENGINE, worker, source, now))
    taken = await latencies(
        worker.url, reads(source.keys), {200, 404}, lambda: not folding.done(), pause_s=PROBE_EVERY_S
    )
    await folding
    return taken


def commands(lab: Lab, begin: Begin, rounds: int, source: Input, suffix: str, report: Report) -> None:
    """POST to 201, one command after another, each decided and committed before the answer.

    source: each of its keys once, so that every key that is written has a row.
    """
    taken: list[float] = []
    with begin("POST, idle") as now:
        worker = start(lab, DECIDE, source)
        follow(lab, DECIDE, worker, source, now)
        worker.await_ready()
        asyncio.run(_decided(worker, source.keys, WARM_UP_S))
        for _ in range(rounds):
            taken += asyncio.run(_decided(worker, source.keys, MEASURED_S))
        worker.kill()
        now.done = f"p50 {_percentiles(taken)['p50_ms']:.1f} ms"
    report.results.append(Result(f"post_to_201{suffix}", _percentiles(taken)))


def key(number: int) -> str:
    return f"customer-{number}"


def reads(keys: int) -> Request:
    return lambda number: get(f"/sales/{key(number % keys)}")


async def _decided(worker: Worker, keys: int, seconds: float) -> list[float]:
    def request(number: int) -> bytes:
        return post(f"/sales/{key(number % keys)}", '{"amount_cents": 1}')

    return await latencies(worker.url, request, {201}, for_seconds(seconds), pause_s=COMMAND_EVERY_S)


async def _one(url: str, request: bytes) -> tuple[int, bytes]:
    return await (await Connection.to(url)).ask(request)


def _rate(url: str, keys: int) -> float:
    def answered(seconds: float) -> int:
        return len(asyncio.run(latencies(url, reads(keys), {200}, for_seconds(seconds), CONNECTIONS)))

    answered(WARM_UP_S)
    return answered(MEASURED_S) / MEASURED_S


def _percentiles(taken: list[float]) -> dict[str, Figure]:
    cuts = quantiles(taken, n=1000, method="inclusive")
    return {
        "p50_ms": round(cuts[499] * 1000, 2),
        "p99_ms": round(cuts[989] * 1000, 2),
        "max_ms": round(max(taken) * 1000, 2),
        "requests": len(taken),
    }
