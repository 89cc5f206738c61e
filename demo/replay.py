"""Purchases as commands, and the commands topics they go to."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from demo.cdnow import Purchase
from demo.progress import show
from demo.rules import DELIVERED, DISCONTINUED, DISCONTINUED_FROM, SKUS, order_id, order_limit_cents, sku_of
from services.accounts.domain.commands import OpenAccount
from services.accounts.domain.decide import DECIDER as ACCOUNT
from services.accounts.topology import ACCOUNTS
from services.inventory.domain.commands import DiscontinueItem, ReceiveStock
from services.inventory.domain.decide import DECIDER as ITEM
from services.inventory.topology import ITEMS
from services.orders.domain.commands import LineWish, PlaceOrder
from services.orders.domain.decide import DECIDER as ORDER
from services.orders.topology import ORDERS
from shared.dev.stages import Stage
from shared.domain.decider import Decider
from shared.domain.message import Command
from shared.kafka.producer import CommandProducer
from shared.runtime.positions import Place
from shared.topology.topics import Table

_APPENDED_AT_ONCE = 2_000


@dataclass(frozen=True, slots=True)
class Message:
    """A command to the aggregate `key`, which is a row of `table` once it is decided."""

    table: Table
    key: str
    body: bytes


def openings(purchases: Iterable[Purchase]) -> list[Message]:
    """An account for each customer, opened at the first of these purchases, which are in time order."""
    firsts: dict[str, Purchase] = {}
    for purchase in purchases:
        firsts.setdefault(purchase.customer, purchase)
    return [
        _message(
            ACCOUNTS,
            ACCOUNT,
            customer,
            OpenAccount(order_limit_cents=order_limit_cents(customer)),
            f"cdnow-open-{customer}",
            first.date,
        )
        for customer, first in firsts.items()
    ]


def deliveries(at: datetime) -> list[Message]:
    """The stock of each SKU, and the day from which the discontinued ones are not sold."""
    delivery, end = ReceiveStock(quantity=DELIVERED), DiscontinueItem(since=DISCONTINUED_FROM.date())
    received = [_message(ITEMS, ITEM, sku, delivery, f"cdnow-delivery-{sku}", at) for sku in SKUS]
    gone = [_message(ITEMS, ITEM, sku, end, f"cdnow-end-{sku}", at) for sku in DISCONTINUED]
    return received + gone


def orders(purchases: Iterable[Purchase]) -> list[Message]:
    """An order for each purchase, placed when it happened."""
    return [
        _message(ORDERS, ORDER, order_id(purchase), order_of(purchase), order_id(purchase), purchase.date)
        for purchase in purchases
    ]


def order_of(purchase: Purchase) -> PlaceOrder:
    line = LineWish(sku=sku_of(purchase), quantity=purchase.cds, amount_cents=purchase.amount_cents)
    return PlaceOrder(customer_id=purchase.customer, lines=(line,), placed_at=purchase.date)


def _message(
    table: Table, decider: Decider[Any, Any, Any], key: str, command: Command, command_id: str, at: datetime
) -> Message:
    codec = decider.command_codec
    envelope = codec.wrap(command, command_id=command_id, aggregate_id=key, issued_at=at)
    return Message(table, key, codec.encode(envelope))


class Log:
    """Appends to the commands topics. last: the last command of each partition, decided after all others there."""

    def __init__(self, producer: CommandProducer) -> None:
        self._producer = producer
        self._last: dict[Place, tuple[int, Message]] = {}

    @property
    def last(self) -> list[Message]:
        return [message for _, message in self._last.values()]

    async def append(self, messages: Sequence[Message], now: Stage | None = None) -> None:
        """Returns when the broker has acknowledged all of them."""
        for start in range(0, len(messages), _APPENDED_AT_ONCE):
            part = messages[start : start + _APPENDED_AT_ONCE]
            await asyncio.gather(*map(self._append, part))
            if now:
                show(now, start + len(part), len(messages), "appended")

    async def _append(self, message: Message) -> None:
        topic = message.table.source.name
        partition, offset = await self._producer.send(topic, message.key.encode(), message.body)
        place = Place(topic, partition)
        if offset >= self._last.get(place, (0, message))[0]:
            self._last[place] = offset, message
