"""What callers of the API wait for, beside FastAPI with `eventsourcing` and Express with emmett, both on PostgreSQL.

All sides have the same accounts and are asked one after the other, in a closed loop: each connection asks again once it
is answered, for the next account in turn, or all for the same one.
"""

from __future__ import annotations

import asyncio
import shutil
from collections import defaultdict
from collections.abc import Mapping
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import NamedTuple

from bench.accounts import accounts
from bench.begin import Begin
from bench.client import Connection, post
from bench.lab import Lab
from bench.load import MISSING, Work, warm_up, wrk
from bench.peers import PeerMissing, emmett, eventsourced
from bench.report import Report, Result
from bench.speed import Load
from shared.dev.postgres import Postgres, programs
from shared.dev.stages import StageFailed
from shared.dev.worker import app_command

IDS = [f"customer-{number}" for number in range(1_000)]
WARM_UP_S = 1
MEASURED_S = 4
OURS = "onefold"
PEERS = {"eventsourcing": eventsourced, "emmett": emmett}


class Asked(NamedTuple):
    """goals: how many times as fast as each peer it should be."""

    connections: int
    goals: Mapping[str, float]
    charges: bool = True
    keys: int = len(IDS)

    def work(self, url: str) -> Work:
        paths = [f"/accounts/{each}{'/charges' if self.charges else ''}" for each in IDS[: self.keys]]
        return Work(url, paths, '{"amount_cents":1}' if self.charges else None)


STEPS = (
    "append_the_command",
    "fetch_it_and_decide",
    "hand_the_records_over",
    "until_brokers_have_them",
    "send_the_offsets",
    "end_the_transaction",
    "store_the_rows",
    "the_request_and_its_answer",
)
ASKED = {
    "post_1": Asked(1, {}),
    "post_16": Asked(16, {"emmett": 1.0}),
    "post_64": Asked(64, {"emmett": 1.5}),
    "post_256": Asked(256, {"emmett": 2.0}),
    "post_hot_64": Asked(64, {"emmett": 40.0, "eventsourcing": 40.0}, keys=1),
    "get_16": Asked(16, {"emmett": 1.0}, charges=False),
    "get_64": Asked(64, {"emmett": 1.0}, charges=False),
}


def callers(lab: Lab, begin: Begin, load: Load) -> Report:
    """Only what was decided counts: what was refused because somebody else was faster is told apart."""
    report = Report()
    if shutil.which("wrk") is None:
        report.notes.append(MISSING)
        return report
    report.results += _steps(lab, begin)
    with ExitStack() as stack:
        urls = {OURS: stack.enter_context(accounts(lab, 1))[0].url, **_peers(lab, begin, report, stack)}
        with begin("accounts") as now:
            for side in urls.keys() - {OURS}:
                asyncio.run(_open(urls[side]))
            for url in urls.values():
                warm_up(lab.root, url, IDS)
            now.done = f"{len(IDS):,} accounts are open, and warm, at {', '.join(urls)}"
        for name, asked in ASKED.items():
            _measure(lab.root, begin, load.rounds, urls, name, asked, report)
    return report


def _steps(lab: Lab, begin: Begin) -> list[Result]:
    """Where the milliseconds of a POST go that comes alone: the median of each step."""
    told = lab.root / "steps"

    def command(_: str) -> list[str]:
        return ["/usr/bin/env", f"BENCH_STEPS={told}", *app_command("bench.sides.timed_accounts")]

    with begin("steps") as now, accounts(lab, 1, command) as [worker]:
        asyncio.run(_open(worker.url))
        warm_up(lab.root, worker.url, IDS)
        told.write_text("")
        run = wrk(lab.root, ASKED["post_1"].work(worker.url), 1, MEASURED_S)
        lines = [[float(each) for each in line.split()] for line in told.read_text().splitlines()]
        ms = [
            median(after - before for before, after in zip(*each, strict=True)) * 1e3
            for each in pairwise(zip(*lines, strict=True))
        ]
        ms.append(run["p50_ms"] - sum(ms))
        now.done = f"{run['p50_ms']:.1f} ms, in {len(ms)} steps"
    return [Result(f"step_{step}", {"ms": round(took, 2)}) for step, took in zip(STEPS, ms, strict=True)]


def _peers(lab: Lab, begin: Begin, report: Report, stack: ExitStack) -> dict[str, str]:
    """The URL of each that can be built, with a database of its own."""
    urls: dict[str, str] = {}
    for name, command in PEERS.items():
        try:
            if programs() is None:
                raise PeerMissing("there is no PostgreSQL on this machine")
            with begin(name) as now:
                built = command()
                server = stack.enter_context(Postgres.temporary(options=()))
                side = lab.spawn(name, ["/usr/bin/env", f"ONEFOLD_SINK_DATABASE={server.url}", *built])
                side.await_ready()
                stack.callback(side.kill)
                urls[name], now.done = side.url, "ready"
        except PeerMissing as missing:
            report.notes.append(f"{name} is left out: {missing}")
    return urls


async def _open(url: str) -> None:
    """One after the other: emmett refuses some of several that begin at once."""
    connection = await Connection.to(url)
    for each in IDS:
        status, body = await connection.ask(post(f"/accounts/{each}", "{}"))
        if status != 201:
            raise StageFailed(f"{url} answered {status}: {body[:200]!r}", "see the log of the side")
    connection.close()


def _measure(
    root: Path, begin: Begin, rounds: int, urls: Mapping[str, str], name: str, asked: Asked, report: Report
) -> None:
    seen: Mapping[str, list[tuple[float, float, float]]] = defaultdict(list)
    with begin(name) as now:
        for _ in range(rounds):
            for side, url in urls.items():
                for seconds in (WARM_UP_S, MEASURED_S):
                    run = wrk(root, asked.work(url), asked.connections, seconds)
                answered, refused = run["requests"] - run["failed"], run["failed"]
                seen[side].append((answered / run["seconds"], run["p50_ms"], refused / run["seconds"]))
        rates = {side: [rate for rate, _, _ in runs] for side, runs in seen.items()}
        now.done = ", ".join(f"{side} {median(each):,.0f}/s" for side, each in rates.items())
    for side, runs in seen.items():
        figures = {
            "answered_per_s": round(median(rates[side]), 1),
            "p50_ms": round(median(p50 for _, p50, _ in runs), 2),
        }
        figures["refused_per_s"] = round(median(refused for _, _, refused in runs), 1)
        report.results.append(Result(f"{name}_{side}", figures))
    for peer in [side for side in urls if side != OURS]:
        pairs = zip(rates[OURS], rates[peer], strict=True)
        ratio = median(mine / max(other, 1 / MEASURED_S) for mine, other in pairs)  # who answers none had one nearly
        report.ratios[f"{name}_vs_{peer}"] = round(ratio, 3)
        if goal := asked.goals.get(peer):
            report.ratios[f"{name}_vs_{peer}_vs_goal"] = round(ratio / goal, 3)
