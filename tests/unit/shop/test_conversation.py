"""The shop's services talk in memory, in every order that topics allow: nothing is lost, kept or charged twice.

A topic keeps the order of one key. Across keys and topics, messages may come in any order, deadlines too.
"""

import json
from collections import Counter
from datetime import UTC, date, datetime
from random import Random
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from services.accounts.domain.commands import AccountCommand, OpenAccount, SetLimits
from services.accounts.domain.decide import DECIDER as ACCOUNT
from services.accounts.domain.state import Open
from services.accounts.topology import ACCOUNTS
from services.accounts.topology import COMMANDS as ACCOUNT_COMMANDS
from services.accounts.topology import EVENTS as ACCOUNT_EVENTS
from services.inventory.domain.commands import DiscontinueItem, InventoryCommand, ReceiveStock
from services.inventory.domain.decide import DECIDER as ITEM
from services.inventory.domain.state import Listed
from services.inventory.topology import COMMANDS as ITEM_COMMANDS
from services.inventory.topology import EVENTS as ITEM_EVENTS
from services.inventory.topology import ITEMS
from services.orders.domain.commands import CancelOrder, LineWish, OrderCommand, PlaceOrder
from services.orders.domain.decide import DECIDER as ORDER
from services.orders.domain.state import Cancelled, Confirmed, Placed, Rejected
from services.orders.service import SERVICE
from services.orders.topology import COMMANDS, EVENTS, PUBLIC, TIMERS
from shared.engine.processors import AggregateProcessor
from shared.engine.wiring import processors_of
from shared.testing.conversation import Conversation, Turn

AT = datetime(1998, 3, 1, 12, tzinfo=UTC)
SKUS = ("abba", "bach", "cure")
CUSTOMERS = ("ann", "bob")

# A fault of the process: it completes something that was never reserved or charged.
MISTAKES = {"inventory.not_reserved", "account.not_charged"}


ITEMS_KEPT = AggregateProcessor(ITEM, table=ITEMS, events=ITEM_EVENTS)
ACCOUNTS_KEPT = AggregateProcessor(ACCOUNT, table=ACCOUNTS, events=ACCOUNT_EVENTS)
ORDERS_KEPT, *PROCESS = processors_of(SERVICE)


class Shop:
    """All services but sales, and their state at the end."""

    def __init__(self) -> None:
        self.talk = Conversation([ITEMS_KEPT, ACCOUNTS_KEPT, ORDERS_KEPT, *PROCESS])
        self._commands = 0

    def ask_item(self, sku: str, command: InventoryCommand) -> None:
        envelope = ITEM.command_codec.wrap(command, command_id=self._id(), aggregate_id=sku, issued_at=AT)
        self.talk.say(ITEM_COMMANDS, sku, ITEM.command_codec.encode(envelope))

    def ask_account(self, customer: str, command: AccountCommand) -> None:
        envelope = ACCOUNT.command_codec.wrap(command, command_id=self._id(), aggregate_id=customer, issued_at=AT)
        self.talk.say(ACCOUNT_COMMANDS, customer, ACCOUNT.command_codec.encode(envelope))

    def ask_order(self, order_id: str, command: OrderCommand) -> None:
        envelope = ORDER.command_codec.wrap(command, command_id=self._id(), aggregate_id=order_id, issued_at=AT)
        self.talk.say(COMMANDS, order_id, ORDER.command_codec.encode(envelope))

    def item(self, sku: str) -> Listed:
        row = self.talk.row(ITEMS_KEPT, sku)
        return row.state if row and isinstance(row.state, Listed) else Listed()

    def account(self, customer: str) -> Open:
        row = self.talk.row(ACCOUNTS_KEPT, customer)
        return row.state if row and isinstance(row.state, Open) else Open()

    def order(self, order_id: str) -> Placed:
        row = self.talk.row(ORDERS_KEPT, order_id)
        assert row is not None
        assert isinstance(row.state, Placed)
        return row.state

    def events(self, topic: str) -> list[dict[str, Any]]:
        return [json.loads(record.value) for record in self.talk.log[topic]]

    def _id(self) -> str:
        self._commands += 1
        return f"command-{self._commands}"


def place(customer: str, *lines: tuple[str, int, int]) -> PlaceOrder:
    wishes = tuple(LineWish(sku=sku, quantity=quantity, amount_cents=cents) for sku, quantity, cents in lines)
    return PlaceOrder(customer_id=customer, lines=wishes, placed_at=AT)


lines = st.lists(
    st.tuples(st.sampled_from(SKUS), st.integers(1, 3), st.integers(0, 50)),
    min_size=1,
    max_size=3,
    unique_by=lambda line: line[0],
)
wishes = st.lists(st.tuples(st.sampled_from(CUSTOMERS), lines, st.booleans()), min_size=1, max_size=6)
limits = st.none() | st.integers(0, 100)
interleavings = st.integers(0, 2**32).map(Random)


def check(shop: Shop, order_ids: list[str], delivered: Counter[str]) -> None:
    """Each order has ended once; stock and money are where the outcomes of the orders put them, and nowhere else."""
    assert not MISTAKES & {outcome.code for _, outcome in shop.talk.outcomes}
    ends = Counter(
        event["aggregate_id"]
        for event in shop.events(EVENTS.name)
        if event["type"] in ("order.confirmed", "order.rejected", "order.cancelled")
    )
    assert ends == Counter(order_ids)
    sold, spent = Counter[str](), Counter[str]()
    for order in map(shop.order, order_ids):
        assert isinstance(order, Confirmed | Rejected | Cancelled)
        if isinstance(order, Confirmed):
            spent[order.customer_id] += order.total_cents
            sold.update({line.sku: line.quantity for line in order.lines})
    for sku in SKUS:
        item = shop.item(sku)
        assert (item.physical, item.reserved, item.reservations) == (delivered[sku] - sold[sku], 0, {})
    for customer in CUSTOMERS:
        account = shop.account(customer)
        assert (account.balance_cents, account.held) == (spent[customer], {})


@given(wishes, limits, limits, st.integers(0, 5), interleavings)
def test_stock_and_money_are_conserved_in_every_order_of_messages(
    wishes: list[tuple[str, list[tuple[str, int, int]], bool]],
    order_limit: int | None,
    credit_limit: int | None,
    stock: int,
    random: Random,
) -> None:
    shop = Shop()
    for sku in SKUS[:2]:
        for _ in range(stock):  # in single pieces, so that an order asked for again may find more
            shop.ask_item(sku, ReceiveStock(quantity=1))
    for customer in CUSTOMERS:
        shop.ask_account(customer, OpenAccount(order_limit_cents=order_limit))
        shop.ask_account(customer, SetLimits(order_limit_cents=order_limit, credit_limit_cents=credit_limit))
    order_ids = [f"order-{number}" for number in range(len(wishes))]
    for order_id, (customer, wish, cancelled) in zip(order_ids, wishes, strict=True):
        shop.ask_order(order_id, place(customer, *wish))
        if cancelled:
            shop.ask_order(order_id, CancelOrder())
    shop.talk.run(random.choice)
    check(shop, order_ids, Counter(dict.fromkeys(SKUS[:2], stock)))


@given(wishes, interleavings)
def test_rules_that_look_at_one_order_alone_decide_the_same_in_every_order_of_messages(
    wishes: list[tuple[str, list[tuple[str, int, int]], bool]], random: Random
) -> None:
    """So the demo can be compared with its file: an item is discontinued, orders are limited, stock suffices."""

    def no_deadline_before_its_time(turns: list[Turn]) -> Turn:
        return random.choice([turn for turn in turns if turn[0] != TIMERS.name] or turns)

    shop = Shop()
    for sku in SKUS:
        shop.ask_item(sku, ReceiveStock(quantity=1000))
    shop.ask_item("cure", DiscontinueItem(since=AT.date()))
    for customer in CUSTOMERS:
        shop.ask_account(customer, OpenAccount(order_limit_cents=60))
    shop.talk.run(random.choice)
    order_ids = [f"order-{number}" for number in range(len(wishes))]
    for order_id, (customer, wish, _) in zip(order_ids, wishes, strict=True):
        shop.ask_order(order_id, place(customer, *wish))
    shop.talk.run(no_deadline_before_its_time)  # type: ignore[arg-type]
    check(shop, order_ids, Counter(dict.fromkeys(SKUS, 1000)))
    for order_id, (_, wish, _) in zip(order_ids, wishes, strict=True):
        order = shop.order(order_id)
        if any(sku == "cure" for sku, _, _ in wish):
            assert isinstance(order, Rejected)
            assert order.code == "inventory.discontinued"
        elif sum(cents for _, _, cents in wish) > 60:
            assert isinstance(order, Rejected)
            assert order.code == "account.order_limit_exceeded"
        else:
            assert isinstance(order, Confirmed)


def test_one_story_has_one_correlation_id_and_every_message_its_cause() -> None:
    shop = Shop()
    shop.ask_item("abba", ReceiveStock(quantity=1))
    shop.ask_account("ann", OpenAccount())
    shop.ask_order("order-1", place("ann", ("abba", 1, 50)))
    shop.talk.run(lambda turns: turns[0])
    assert isinstance(shop.order("order-1"), Confirmed)
    story = [
        message
        for topic in shop.talk.log.keys() - {PUBLIC.name}
        for message in shop.events(topic)
        if message["correlation_id"] == "command-3"
    ]
    types = {message["type"] for message in story}
    assert types >= {"order.placed", "stock.reserved", "account.order_charged", "order.confirmed", "stock.shipped"}
    ids = {message.get("event_id") or message["command_id"] for message in story}
    assert {message["causation_id"] for message in story} <= ids | {None}
    assert [message["type"] for message in story if message["causation_id"] is None] == ["order.place"]


def test_an_order_without_any_answer_is_rejected_after_its_last_attempt() -> None:
    """Only orders runs, so nobody answers. When the other services are back, it takes back what it asked for."""
    shop = Shop()
    shop.ask_item("abba", ReceiveStock(quantity=5))
    shop.ask_order("order-1", place("ann", ("abba", 1, 50)))
    others = {ITEM_COMMANDS.name, ACCOUNT_COMMANDS.name}
    while turns := [turn for turn in shop.talk.turns() if turn[0] not in others]:
        shop.talk.hear(turns[0])
    order = shop.order("order-1")
    assert isinstance(order, Rejected)
    assert order.code == "order.timed_out"
    asked = [record for record in shop.talk.log[ITEM_COMMANDS.name] if b"stock.reserve" in record.value]
    assert len(asked) == 3
    shop.talk.run(lambda turns: turns[0])
    check(shop, ["order-1"], Counter(abba=5))


def test_the_day_of_the_order_counts_not_the_day_it_is_handled() -> None:
    shop = Shop()
    shop.ask_item("abba", ReceiveStock(quantity=5))
    shop.ask_item("abba", DiscontinueItem(since=date(1998, 3, 2)))
    shop.ask_account("ann", OpenAccount())
    shop.ask_order("order-1", place("ann", ("abba", 1, 50)))
    shop.talk.run(lambda turns: turns[0])
    assert isinstance(shop.order("order-1"), Confirmed)
