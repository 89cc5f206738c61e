"""The attack that began with a chosen Idempotency-Key, and ended with goods that nobody owed."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pytest

from services.accounts.domain.commands import OpenAccount
from services.accounts.domain.decide import DECIDER as ACCOUNT
from services.accounts.topology import ACCOUNTS
from services.accounts.topology import COMMANDS as ACCOUNT_COMMANDS
from services.accounts.topology import EVENTS as ACCOUNT_EVENTS
from services.inventory.domain.commands import ReceiveStock
from services.inventory.domain.decide import DECIDER as ITEM
from services.inventory.topology import COMMANDS as ITEM_COMMANDS
from services.inventory.topology import EVENTS as ITEM_EVENTS
from services.inventory.topology import ITEMS
from services.orders.domain.commands import LineWish, PlaceOrder
from services.orders.domain.decide import DECIDER as ORDER
from services.orders.service import SERVICE
from services.orders.topology import COMMANDS, TIMERS
from shared.domain.envelope import CommandCodec
from shared.domain.ids import callers_id
from shared.engine.processors import AggregateProcessor
from shared.engine.wiring import processors_of
from shared.testing.conversation import Conversation
from tests.shop.market import Market, story_of
from tests.waiting import eventually

pytestmark = pytest.mark.broker

LONG_AGO = datetime(1997, 1, 18, 12, tzinfo=UTC)


def test_whoever_occupies_the_id_of_what_will_settle_its_order_still_owes_it(market: Market) -> None:
    sku, customer, order = market.new("sku"), market.new("customer"), market.new("order")
    market.deliver(sku, 5)
    market.open_account(customer, order_limit_cents=5000)
    settlement = _foreseen(sku, customer, order)["account.settle_order"]
    paid = market.try_to_post("accounts", f"/accounts/{customer}/payments", {"amount_cents": 1}, key=settlement)
    assert paid.json()["code"] == "account.overpaid"
    market.place(order, customer, (sku, 2, 2000))
    assert market.ended(order)["phase"] == "confirmed"
    eventually(
        lambda: market.account(customer), lambda found: (found["balance_cents"], found["held_cents"]) == (2000, 0)
    )
    sent = {each["command_id"] for each in market.messages(ACCOUNT_COMMANDS.name) if each["causation_id"]}
    assert settlement in sent, "it foresaw what was not sent"


def _foreseen(sku: str, customer: str, order: str) -> dict[str, str]:
    """The ids of the commands that policies will send to the account, by type, from the code of the services alone."""
    talk = Conversation(
        [
            AggregateProcessor(ITEM, table=ITEMS, events=ITEM_EVENTS),
            AggregateProcessor(ACCOUNT, table=ACCOUNTS, events=ACCOUNT_EVENTS),
            *processors_of(SERVICE),
        ]
    )
    placed = PlaceOrder(
        customer_id=customer, lines=(LineWish(sku=sku, quantity=2, amount_cents=2000),), placed_at=LONG_AGO
    )
    for decider, topic, aggregate, command in (
        (ITEM, ITEM_COMMANDS, sku, ReceiveStock(quantity=5)),
        (ACCOUNT, ACCOUNT_COMMANDS, customer, OpenAccount(order_limit_cents=5000)),
        (ORDER, COMMANDS, order, placed),
    ):
        codec: CommandCodec[Any] = decider.command_codec
        key = callers_id("", story_of(order))
        sent = codec.wrap(command, command_id=key, aggregate_id=aggregate, issued_at=LONG_AGO)
        talk.say(topic, aggregate, codec.encode(sent))
    talk.run(lambda turns: min(turns, key=lambda turn: turn[0] == TIMERS.name))
    sent_to_account = [json.loads(said.value) for said in talk.log[ACCOUNT_COMMANDS.name]]
    return {each["type"]: each["command_id"] for each in sent_to_account if each["causation_id"]}
