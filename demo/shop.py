"""The five services, as the demo uses them over HTTP."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass
from http import HTTPStatus
from typing import Any, Self

from demo.books import CONFIRMED, Books
from demo.cdnow import Purchase
from demo.client import Answer, Client
from demo.ordering import is_placed, place
from demo.replay import Message
from services.orders.topology import COMMANDS
from shared.dev.stack import Stack

SERVICES = ("accounts", "inventory", "orders", "pickups", "sales")
_UNDER_WAY = ("reserving", "charging")
_SAMPLED = 100
_SETTLED_S = 15.0  # after its end, an order is still shipped, settled and counted


@dataclass(frozen=True, slots=True)
class Sold:
    """What the views of sales have counted so far."""

    orders: int
    cents: int


@dataclass(frozen=True, slots=True)
class Found:
    """What the services answer. events: of accounts, items and orders.

    unequal: accounts that differ from their listing.
    """

    books: Books
    events: int
    unequal: Sequence[str]


class Shop:
    """Inside `async with`."""

    def __init__(self, stack: Stack) -> None:
        self._each = {name: Client(stack.urls(name)) for name in SERVICES}
        self._accounts, self._inventory, self._orders, self._pickups, self._sales = self._each.values()
        self._clients = {"accounts": self._accounts, "items": self._inventory, "orders": self._orders}
        self._open = AsyncExitStack()

    async def __aenter__(self) -> Self:
        for client in self._each.values():
            await self._open.enter_async_context(client)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._open.aclose()

    async def place(self, purchase: Purchase) -> Answer:
        return await place(self._orders, purchase)

    async def has_decided(self, messages: Sequence[Message]) -> bool:
        paths = [(message.table.name, f"/{message.table.name}/{message.key}") for message in messages]
        answers = await asyncio.gather(*(self._clients[table].get(path) for table, path in paths))
        return all(answer.status == HTTPStatus.OK for answer in answers)

    async def has_orders_under_way(self) -> bool:
        paths = [f"/orders?order=phase&phase={phase}&limit=1&complete=true" for phase in _UNDER_WAY]
        return any([(await self._orders.get(path)).body["items"] for path in paths])

    async def sold(self) -> Sold:
        hours = (await self._sales.get("/sales/hours?limit=168&complete=true")).body["items"]
        return Sold(sum(hour["orders"] for hour in hours), sum(hour["revenue_cents"] for hour in hours))

    async def has(self, purchase: Purchase) -> bool:
        return await is_placed(self._orders, purchase)

    async def orders_waiting(self) -> int:
        """Commands to orders that are not decided yet."""
        sources = (await self._orders.get("/cluster")).body["topics"]
        return sum(partition["lag_records"] for partition in sources[COMMANDS.name])

    async def found_as(self, expected: Books) -> Found:
        """What the services answer once it is as expected, or once nothing can be under way any more."""
        deadline = time.monotonic() + _SETTLED_S
        while True:
            found = await self.found()
            if asdict(found.books) == asdict(expected) or time.monotonic() > deadline:
                return found

    async def found(self) -> Found:
        accounts, items, orders, days, pickups = await asyncio.gather(
            self._accounts.all_of("/accounts"),
            self._inventory.all_of("/items"),
            self._orders.all_of("/orders"),
            self._sales.all_of("/sales/days"),
            self._pickups.all_of("/pickups"),
        )
        books = Books(
            orders={each["order_id"]: _end_of(each) for each in orders},
            accounts={each["account_id"]: each["balance_cents"] for each in accounts},
            items={each["sku"]: each["physical"] for each in items},
            days={each["day"]: each["revenue_cents"] for each in days},
            pickups={each["effect_id"].removeprefix("orders:"): each["phase"] for each in pickups},
        )
        events = sum(each["sequence"] for each in (*accounts, *items, *orders))
        sample = accounts[:: len(accounts) // _SAMPLED + 1]
        rows = await asyncio.gather(*(self._accounts.get(f"/accounts/{each['account_id']}") for each in sample))
        pairs = zip(sample, (row.body for row in rows), strict=True)
        return Found(books, events, [f"{each} is listed, but {row} by its id" for each, row in pairs if row != each])


def _end_of(order: dict[str, Any]) -> str:
    return CONFIRMED if order["phase"] == "confirmed" else order["code"] or order["phase"]
