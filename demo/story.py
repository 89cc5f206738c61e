"""What the demo does to the running shop, one method per stage, and what it finds."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from demo.books import CONFIRMED, Books
from demo.cdnow import Purchase
from demo.progress import for_each, rate, show
from demo.replay import Log, deliveries, openings, orders
from demo.rules import DISCONTINUED, DISCONTINUED_FROM, ORDER_LIMIT_CENTS, SKUS, order_id
from demo.shop import Found, Shop, Sold
from services.orders.topology import COMMANDS, TOPOLOGY
from shared.dev.stack import Stack
from shared.dev.stages import Stage, StageFailed
from shared.kafka.producer import CommandProducer

OVER_HTTP = 1_000
UNDER_WAY = 5_000  # orders at once: an item's row grows with every order that has pieces reserved
STALLED_S = 60.0
_PLACED_AT_ONCE = 500
_INTO_THE_LOAD_S = 0.5
_TICK_S = 0.1
_LOOK_S = 0.5


@dataclass(frozen=True, slots=True)
class Findings:
    """seconds: from the first order to the end of the last."""

    seconds: float
    found: Found


class Story:
    """The purchases, in time order: some over HTTP, a quarter of the others before a crash, the rest through it."""

    def __init__(
        self, purchases: Sequence[Purchase], expected: Books, stack: Stack, shop: Shop, producer: CommandProducer
    ) -> None:
        posted = min(OVER_HTTP, len(purchases) // 2)
        middle = posted + (len(purchases) - posted) // 4
        self._purchases = purchases
        self._posted, self._before, self._after = purchases[:posted], purchases[posted:middle], purchases[middle:]
        self._expected = expected
        self._stack = stack
        self._victim = stack.workers_of(TOPOLOGY.service)[0]
        self._shop = shop
        self._log = Log(producer)
        self._rest: asyncio.Task[None] | None = None
        self._to_sell = self._confirmed(self._posted)
        self._sold = Sold(0, 0)
        self._sold_at = self._began = 0.0
        self._seconds = 0.0
        self._found: Found | None = None

    async def open(self, now: Stage) -> str:
        accounts, stock = openings(self._purchases), deliveries(self._purchases[0].date)
        await self._log.append(accounts + stock, now)
        while not await self._shop.has_decided(self._log.last):
            check(self._stack)
            await asyncio.sleep(_TICK_S)
        return (
            f"{len(accounts):,} accounts, 1 in 5 limited to ${ORDER_LIMIT_CENTS // 100} an order; {len(SKUS)} items, "
            f"{len(DISCONTINUED)} of them not sold from {DISCONTINUED_FROM:%Y-%m-%d} on"
        )

    async def post_first(self, now: Stage) -> str:
        self._began = time.monotonic()
        answers = await for_each(self._shop.place, self._posted, now, "answered")
        seconds = sorted(answer.seconds for answer in answers) or [0.0]
        half, most = (seconds[int(share * (len(seconds) - 1))] * 1000 for share in (0.5, 0.99))
        return f"{len(answers):,} orders posted, {rate(len(answers), now)}, 50% in {half:.0f} ms, 99% in {most:.0f} ms"

    async def replay(self, now: Stage) -> str:
        self._sold_at = time.monotonic()
        await self._place(self._before, now)
        return f"{len(self._before):,} orders placed through {COMMANDS.name}, {rate(len(self._before), now)}"

    async def crash(self, now: Stage) -> str:
        """In the middle of the load: orders are being placed before, during and after it."""
        self._rest = asyncio.create_task(self._place(self._after))
        await asyncio.wait([self._rest], timeout=_INTO_THE_LOAD_S)
        sold, pid = await self._look(), self._victim.pid
        self._victim.kill()
        return f"SIGKILL to {self._victim.name} (process {pid}) when {sold.orders:,} orders are sold"

    async def recover(self, now: Stage) -> str:
        self._victim.spawn()
        while not await asyncio.to_thread(self._victim.is_ready):
            check(self._stack)
            await asyncio.sleep(_TICK_S)
        return f"{self._victim.name} is back, as process {self._victim.pid}"

    async def flow(self, now: Stage) -> str:
        """Returns when the last order has ended and sales counts no more."""
        assert self._rest
        before, total = self._sold, self._confirmed(self._purchases)
        sold, start = await self._look(), before.orders
        while not (self._rest.done() and sold == before and await self._are_over()):
            await asyncio.sleep(_LOOK_S)
            before, sold = sold, await self._look()
            show(now, sold.orders, total, f"sold for ${sold.cents // 100:,}", start)
        await self._rest
        count, self._seconds = len(self._purchases), time.monotonic() - self._began
        return f"all {count:,} orders have ended, {count / self._seconds:,.0f}/s since the first"

    async def compare(self, now: Stage) -> str:
        self._found = found = await self._shop.found_as(self._expected)
        rows = sum(map(len, asdict(found.books).values()))
        return f"{rows:,} rows read over HTTP, {rate(rows, now)}: orders, accounts, items, days, pickups"

    def findings(self) -> Findings:
        assert self._found
        return Findings(self._seconds, self._found)

    async def _place(self, purchases: Sequence[Purchase], now: Stage | None = None) -> None:
        """As fast as orders are sold, at most UNDER_WAY ahead."""
        for start in range(0, len(purchases), _PLACED_AT_ONCE):
            part = purchases[start : start + _PLACED_AT_ONCE]
            await self._log.append(orders(part))
            self._to_sell += self._confirmed(part)
            while self._to_sell - self._sold.orders > UNDER_WAY:
                await asyncio.sleep(_TICK_S)
                await self._look()
            if now:
                show(now, start + len(part), len(purchases), f"placed, ${self._sold.cents // 100:,} sold")

    async def _look(self) -> Sold:
        """What is sold by now. Raises StageFailed when a process ended by itself, or nothing was sold for STALLED_S."""
        check(self._stack)
        sold, now = await self._shop.sold(), time.monotonic()
        if sold != self._sold:
            self._sold, self._sold_at = sold, now
        elif now - self._sold_at > STALLED_S:
            problem = f"nothing was sold for {STALLED_S:.0f} s, after {sold.orders:,} orders"
            raise StageFailed(problem, "read the workers' logs", self._stack.logs)
        return sold

    def _confirmed(self, purchases: Sequence[Purchase]) -> int:
        """How many of them must be confirmed, according to the file."""
        return sum(self._expected.orders[order_id(purchase)] == CONFIRMED for purchase in purchases)

    async def _are_over(self) -> bool:
        return await self._shop.has_decided(self._log.last) and not await self._shop.has_orders_under_way()


def check(stack: Stack) -> None:
    """Raises when a broker, a worker or a runner ended by itself."""
    stack.kafka.check()
    for each in (*stack.workers, *stack.runners):
        if each.exit_code is not None:
            raise StageFailed(f"{each.name} ended with {each.exit_code}", "resolve what its log says", each.log)
