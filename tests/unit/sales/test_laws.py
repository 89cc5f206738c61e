"""What holds for all views, whatever is sold and in whatever order it becomes known."""

import json
from collections import Counter
from datetime import UTC, datetime, timedelta
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from services.sales.contracts.inventory import StockReceived, StockShipped
from services.sales.contracts.orders import Line, OrderConfirmed
from services.sales.projections import PROJECTIONS
from services.sales.service import SERVICE
from services.sales.topology import (
    AVAILABLE,
    CUSTOMERS,
    DAYS,
    HOURS,
    INVENTORY_EVENTS,
    ORDERS_EVENTS,
    SKUS,
    STOCK,
    TOPOLOGY,
)
from shared.engine.wiring import processors_of
from shared.testing.conversation import Conversation

CODEC = next(projection.event_codec for projection in PROJECTIONS if OrderConfirmed in projection.events)
MOVED = next(projection.event_codec for projection in PROJECTIONS if projection.table == STOCK)
START = datetime(1997, 1, 1, tzinfo=UTC)

lines = st.lists(
    st.builds(Line, sku=st.sampled_from("abc"), quantity=st.integers(1, 3), amount_cents=st.integers(0, 99)),
    min_size=1,
    max_size=3,
    unique_by=lambda line: line.sku,
).map(tuple)
orders = st.builds(
    OrderConfirmed,
    customer_id=st.sampled_from(["ann", "bob"]),
    lines=lines,
    placed_at=st.integers(0, 20 * 24).map(lambda hours: START + timedelta(hours=hours)),
)
delays = st.integers(0, 8).map(lambda days: timedelta(days=days))
histories = st.lists(st.tuples(orders, delays), max_size=12)
History = list[tuple[OrderConfirmed, timedelta]]


def happened(number: int, order: OrderConfirmed, delay: timedelta) -> bytes:
    return CODEC.write(
        order,
        event_id=f"e-{number}",
        aggregate_id=f"o-{number}",
        sequence=3,
        occurred_at=order.placed_at + delay,
        correlation_id=f"c-{number}",
    )


def told(history: History, random: Random) -> Conversation:
    """All of `history`, re-keyed and projected in an order that only respects the order of each key."""
    talk = Conversation(processors_of(SERVICE))
    for number, (order, delay) in enumerate(history):
        talk.say(ORDERS_EVENTS, f"o-{number}", happened(number, order, delay))
    talk.run(random.choice)
    return talk


def states(talk: Conversation) -> dict[str, dict[str, str]]:
    """By table and key, as stored."""
    return {
        table.name: {key: json.dumps(json.loads(row)["state"]) for key, row in talk.rows(table).items()}
        for table in TOPOLOGY.tables
    }


@given(histories, st.integers(), st.integers())
def test_the_same_orders_give_the_same_bytes_in_any_order(history: History, one: int, other: int) -> None:
    first = told(history, Random(one))
    shuffled = Random(other).sample(list(enumerate(history)), len(history))
    second = Conversation(processors_of(SERVICE))
    for number, (order, delay) in shuffled:
        second.say(ORDERS_EVENTS, f"o-{number}", happened(number, order, delay))
    second.run(Random(other).choice)
    assert states(first) == states(second)


@given(histories, st.integers())
def test_a_replay_of_the_re_keyed_topics_gives_the_same_rows_byte_by_byte(history: History, seed: int) -> None:
    first = told(history, Random(seed))
    again = Conversation(processors_of(SERVICE))
    for source in dict.fromkeys(table.source for table in TOPOLOGY.tables):
        for said in first.log[source.name]:
            again.say(said.topic, said.key.decode(), said.value)
    again.run(Random(seed + 1).choice)
    assert [first.rows(table) for table in TOPOLOGY.tables] == [again.rows(table) for table in TOPOLOGY.tables]


@given(histories, st.integers())
def test_every_view_adds_up_to_what_was_sold(history: History, seed: int) -> None:
    talk = told(history, Random(seed))
    rows = {
        table: [json.loads(row)["state"] for row in talk.rows(table).values()]
        for table in (SKUS, DAYS, HOURS, CUSTOMERS)
    }
    sold = Counter[str]()
    for order, _ in history:
        sold.update(orders=1, units=order.units, revenue_cents=order.total_cents)

    def total(views: list[dict[str, int]], *fields: str) -> Counter[str]:
        return Counter({field: sum(view[field] for view in views) for field in fields})

    everything = ("orders", "units", "revenue_cents")
    days = rows[DAYS]
    assert total(rows[HOURS], *everything) == sold
    assert total(days, *everything) + total([day["late"] for day in days], *everything) == sold
    assert total(rows[SKUS], "units", "revenue_cents") == Counter({**sold, "orders": 0})
    assert total(rows[CUSTOMERS], "orders", "total_cents") == Counter(
        orders=sold["orders"], total_cents=sold["revenue_cents"]
    )


movements = st.lists(
    st.tuples(st.sampled_from("abc"), st.sampled_from([StockReceived, StockShipped]), st.integers(1, 9)), max_size=12
)


@given(histories, movements, st.randoms(use_true_random=False))
def test_what_is_left_follows_from_stock_and_orders_whichever_is_read_first(
    history: History, moved: list[tuple[str, type[StockReceived | StockShipped], int]], random: Random
) -> None:
    talk = Conversation(processors_of(SERVICE))
    for number, (order, delay) in enumerate(history):
        talk.say(ORDERS_EVENTS, f"o-{number}", happened(number, order, delay))
    pieces = {kind: Counter[str]() for kind in (StockReceived, StockShipped)}
    for number, (sku, kind, quantity) in enumerate(moved):
        pieces[kind][sku] += quantity
        told_of = {"event_id": f"m-{number}", "aggregate_id": sku, "correlation_id": "c"}
        value = MOVED.write(kind(quantity=quantity), **told_of, sequence=number + 1, occurred_at=START)
        talk.say(INVENTORY_EVENTS, sku, value)
    talk.run(random.choice)
    sold = Counter[str]()
    for order, _ in history:
        sold.update({line.sku: line.quantity for line in order.lines})
    received, shipped = pieces.values()
    assert states(talk)[AVAILABLE.name] == {
        sku: json.dumps(
            {
                "on_hand": received[sku] - shipped[sku],
                "owed": sold[sku] - shipped[sku],
                "to_promise": received[sku] - sold[sku],
            }
        )
        for sku in sorted({*received, *shipped, *sold})
    }
