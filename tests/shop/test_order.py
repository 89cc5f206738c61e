"""An aggregate's messages are handled in the order of their offsets, whatever their timestamps and senders."""

from __future__ import annotations

import asyncio
import random
from datetime import UTC, datetime

import pytest

from services.inventory.domain.commands import ReceiveStock
from services.inventory.domain.decide import DECIDER
from services.inventory.topology import COMMANDS, EVENTS, TOPOLOGY
from shared.kafka.producer import CommandProducer
from tests.shop.market import Market
from tests.waiting import eventually

pytestmark = pytest.mark.broker

QUANTITIES = range(1, 21)


def deliveries(market: Market, sku: str) -> list[tuple[int, int, str]]:
    """Sequence, quantity and time of the item's events, by offset."""
    found = [each for each in market.messages(EVENTS.name) if each["aggregate_id"] == sku]
    return [(each["sequence"], each["data"]["quantity"], each["occurred_at"]) for each in found]


def test_decreasing_timestamps_do_not_change_the_order(market: Market) -> None:
    sku = market.new("sku")
    for quantity in QUANTITIES:
        market.deliver(sku, quantity, told_at=f"1997-01-{31 - quantity}T00:00:00Z")
    assert [(sequence, quantity) for sequence, quantity, _ in deliveries(market, sku)] == [
        (quantity, quantity) for quantity in QUANTITIES
    ]
    times = [time for _, _, time in deliveries(market, sku)]
    assert times == sorted(times, reverse=True)
    assert market.item(sku)["physical"] == sum(QUANTITIES)


def test_commands_of_many_producers_are_handled_in_log_order(market: Market) -> None:
    sku = market.new("sku")
    asyncio.run(send_shuffled(market.stack.bootstrap, sku))
    eventually(lambda: market.item(sku), lambda item: item.get("physical") == sum(QUANTITIES))
    asked = [each["data"]["quantity"] for each in market.messages(COMMANDS.name) if each["aggregate_id"] == sku]
    assert sorted(asked) == list(QUANTITIES)
    assert [quantity for _, quantity, _ in deliveries(market, sku)] == asked
    assert [sequence for sequence, _, _ in deliveries(market, sku)] == list(QUANTITIES)


async def send_shuffled(bootstrap: str, sku: str) -> None:
    producers = [CommandProducer(bootstrap, [TOPOLOGY]) for _ in range(4)]
    shuffled = random.sample(QUANTITIES, len(QUANTITIES))
    bodies = [
        DECIDER.command_codec.encode(
            DECIDER.command_codec.wrap(
                ReceiveStock(quantity=quantity),
                command_id=f"{sku}-{quantity}",
                aggregate_id=sku,
                issued_at=datetime(1997, 1, quantity, tzinfo=UTC),
            )
        )
        for quantity in shuffled
    ]
    await asyncio.gather(*(random.choice(producers).send(COMMANDS.name, sku.encode(), body) for body in bodies))
