"""The loss of a region: the first cluster is killed under load, and the shop goes on at the second by the runbook."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import asdict
from typing import Annotated

import typer

from demo import successor
from demo.books import expected_books
from demo.cdnow import Purchase
from demo.progress import for_each, show
from demo.replay import Log, deliveries, openings
from demo.shop import Shop
from demo.staging import Begin, ignore_signals, purchases_until, staged
from demo.story import check
from demo.verdict import Verdict, judge
from services.accounts.topology import EVENTS
from shared.dev.stack import Stack
from shared.dev.stages import StageFailed
from shared.dev.worker import faust_command
from shared.kafka.brokers import Brokers, BrokersUnavailable
from shared.kafka.producer import CommandProducer
from shared.operations.mirror import Mirror, mirror_properties, mirrored_topics
from shared.operations.provision import load_topologies
from shared.runtime.checkout import CHECKOUT

ROOT = CHECKOUT / ".onefold" / "drill"
STAGES = 13
REBUILT = ("accounts", "inventory", "pickups", "orders")
"""The services with an aggregate; the last has policies, which send commands to the others."""

_TICK_S = 0.05

cli = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@cli.command()
def main(
    purchases: Annotated[int, typer.Option(min=10, help="The first so many of 69,659, by date.")] = 2_000,
) -> None:
    """Lose a cluster under real purchases, go on at a second one, count the lost orders, and compare the books."""
    verdict = run(purchases)
    print(verdict.line)
    sys.exit(0 if verdict.agrees else 1)


def run(limit: int) -> Verdict:
    """Leaves no process behind, and its data and logs in ROOT."""
    return staged(ROOT, STAGES, lambda begin: Drill(limit, begin).run())


class Drill:
    """Two clusters, and the five services, first at one and then at the other."""

    def __init__(self, limit: int, begin: Begin) -> None:
        self._begin = begin
        self._purchases = purchases_until(limit, begin)
        self._expected = expected_books(self._purchases, "pending")  # nobody calls for them
        self._topologies = load_topologies()
        raised = [each.next_version if each.service in REBUILT else each for each in self._topologies]
        self._first = Stack(ROOT / "first", topologies=self._topologies)
        self._second = Stack(ROOT / "second", topologies=raised, command=_command_there)
        self._answered: dict[Purchase, float] = {}
        self._ended_at = 0.0

    def run(self) -> Verdict:
        try:
            self._start()
            topics = mirrored_topics(self._topologies)
            properties = mirror_properties(topics, self._first.bootstrap, self._second.bootstrap, 1)
            with Mirror(properties, ROOT / "mirror") as mirror:
                asyncio.run(self._lose(mirror))
            self._rebuild()
            return asyncio.run(self._go_on())
        finally:
            ignore_signals()
            self._first.stop()
            self._second.stop()

    def _start(self) -> None:
        with self._begin("clusters") as now:
            self._first.start_brokers()
            self._second.start_brokers()
            now.done = f"{self._first.bootstrap} and, with nothing in it, {self._second.bootstrap}"
        with self._begin("workers") as now:
            self._first.provision()
            self._first.start_workers(lambda ready, total: now.progress(ready, total, "ready,"))
            now.done = f"{len(self._first.workers)} at the first cluster"

    async def _lose(self, mirror: Mirror) -> None:
        async with Shop(self._first) as shop:
            with self._begin("opening") as now:
                log = Log(CommandProducer(self._first.bootstrap, self._topologies))
                await log.append(openings(self._purchases) + deliveries(self._purchases[0].date), now)
                accounts = len(self._expected.accounts)
                while not await shop.has_decided(log.last) or await asyncio.to_thread(self._mirrored) < accounts:
                    check(self._first)
                    mirror.check()
                    await asyncio.sleep(_TICK_S)
                now.done = f"{accounts:,} accounts are open, and known at the second cluster"
            with self._begin("loss") as now:
                placing = asyncio.gather(*(self._place(shop, purchase) for purchase in self._purchases))
                while len(self._answered) < len(self._purchases) // 2:
                    check(self._first)
                    mirror.check()
                    if placing.done():
                        placing.result()
                    show(now, len(self._answered), len(self._purchases), "orders answered")
                    await asyncio.sleep(_TICK_S)
                self._kill_the_first()
                placing.cancel()
                with suppress(asyncio.CancelledError):
                    await placing
                now.done = f"SIGKILL to the first cluster when {len(self._answered):,} orders were answered"

    def _mirrored(self) -> int:
        """How many accounts the second cluster knows of; anything else that takes offsets there is counted, too."""
        with suppress(BrokersUnavailable):  # the mirror has not made the topic yet
            return sum(Brokers(self._second.bootstrap).settled_ends(EVENTS.name).values())
        return 0

    async def _place(self, shop: Shop, purchase: Purchase) -> None:
        await shop.place(purchase)
        self._answered[purchase] = time.monotonic()

    def _kill_the_first(self) -> None:
        self._first.kafka.kill(1)
        self._ended_at = time.monotonic()
        for worker in self._first.workers:
            worker.kill()

    def _rebuild(self) -> None:
        verb = [sys.executable, "-P", "-m", "shared.dev.cli", "rebuild", "--mirrored", "--version", "2"]
        where = ["--bootstrap", self._second.bootstrap, "--work", str(ROOT / "work")]
        for service in REBUILT:
            log = ROOT / f"rebuild-{service}.log"
            with self._begin("rebuild") as now, log.open("w+") as said:
                done = subprocess.run([*verb, service, *where], stdout=said, stderr=subprocess.STDOUT)
                if done.returncode:
                    raise StageFailed(f"{service} was not rebuilt", "resolve what its log says", log)
                now.done = log.read_text().splitlines()[-1]

    async def _go_on(self) -> Verdict:
        with self._begin("second") as now:
            self._second.provision()
            self._second.start_workers(lambda ready, total: now.progress(ready, total, "ready,"))
            now.done = f"{len(self._second.workers)} workers at the second cluster"
        async with Shop(self._second) as shop:
            lost = await self._lost(shop)
            with self._begin("again") as now:
                await for_each(shop.place, self._purchases, now, "answered")
                while await shop.has_orders_under_way():
                    check(self._second)
                    await asyncio.sleep(_TICK_S)
                now.done = f"all {len(self._purchases):,} orders sent once more, and ended"
            with self._begin("compare") as now:
                found = await shop.found_as(self._expected)
                now.done = "orders, accounts, items and days read at the second cluster"
        verdict = judge(asdict(self._expected), asdict(found.books), found.unequal)
        return Verdict(verdict.agrees, f"{verdict.line}; {lost} until sent again")

    async def _lost(self, shop: Shop) -> str:
        """How many answered orders are unknown here once all that was mirrored is decided."""
        with self._begin("lost") as now:
            while await shop.orders_waiting():
                check(self._second)
                await asyncio.sleep(_TICK_S)
            known = await for_each(shop.has, list(self._answered), now, "asked for")
            lost = [at for at, there in zip(self._answered.values(), known, strict=True) if not there]
            age = f" (answered in its last {(self._ended_at - min(lost)) * 1000:.0f} ms)" if lost else ""
            now.done = f"{len(lost):,} of {len(known):,} answered orders were lost{age}"
        return now.done


def _command_there(service: str) -> list[str]:
    return successor.command(service) if service in REBUILT else faust_command(service)


if __name__ == "__main__":
    cli(prog_name="python3 dev.py failover-drill")
