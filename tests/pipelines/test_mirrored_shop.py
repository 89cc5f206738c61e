"""Commands of policies that did not reach the second cluster before the first was lost are sent again there."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from confluent_kafka import Producer

from pipelines.catalog import tables
from pipelines.mirrored import MirroredRebuild
from services.accounts.topology import TOPOLOGY as ACCOUNTS
from services.inventory.domain.decide import DECIDER as ITEMS
from services.inventory.domain.events import StockReserved, StockShipped
from services.inventory.topology import TOPOLOGY as INVENTORY
from services.orders.domain.decide import DECIDER
from services.orders.domain.events import Line, OrderConfirmed, OrderPlaced
from services.orders.policies import POLICIES
from services.orders.topology import TOPOLOGY as ORDERS
from services.pickups.service import SERVICE as PICKUPS
from shared.dev.embedded import EmbeddedKafka
from shared.domain.message import Event
from shared.kafka.brokers import Brokers
from shared.kafka.producer import producer_config
from shared.operations.provision import provision
from shared.runtime.settings import Settings
from tests.pipelines.conftest import read_records

SHOP = (ACCOUNTS, INVENTORY, ORDERS, PICKUPS.topology)
CENTS = 100
AT = datetime(1997, 1, 18, tzinfo=UTC)


def put(bootstrap: str, *records: tuple[str, str, bytes]) -> None:
    """Topic, key, value."""
    producer = Producer(producer_config(bootstrap))
    for topic, key, value in records:
        producer.produce(topic, value, key.encode())
    assert producer.flush(30) == 0


def event_of(codec: Any, event: Event, aggregate_id: str, causation_id: str | None = None, sequence: int = 1) -> bytes:
    written: bytes = codec.write(
        event,
        event_id=f"{event.TYPE} {aggregate_id}",
        aggregate_id=aggregate_id,
        sequence=sequence,
        occurred_at=AT,
        correlation_id="c",
        causation_id=causation_id,
    )
    return written


def test_commands_that_did_not_arrive_are_sent_and_no_others(spark: Any, tmp_path: Path) -> None:
    lines = tuple(Line(sku=sku, quantity=1, amount_cents=CENTS) for sku in ("arrived", "decided", "lost"))
    placed = event_of(DECIDER.event_codec, OrderPlaced(customer_id="ann", lines=lines, placed_at=AT), "o-1")
    arrived, decided, lost, timer = POLICIES[0].sends(placed)
    reserved = event_of(
        ITEMS.event_codec, StockReserved(order_id="orders:o-1", quantity=1), "decided", decided.command_id
    )
    old = event_of(DECIDER.event_codec, OrderPlaced(customer_id="ann", lines=lines[:1], placed_at=AT), "o-0")
    confirmed = OrderConfirmed(customer_id="ann", lines=lines[:1], placed_at=AT)
    ended = event_of(DECIDER.event_codec, confirmed, "o-0", sequence=2)
    _, old_timer = POLICIES[0].sends(old)
    ship, settle = POLICIES[0].sends(ended)
    shipped = event_of(ITEMS.event_codec, StockShipped(order_id="orders:o-0", quantity=1), "arrived", ship.command_id)
    with EmbeddedKafka(tmp_path / "kafka", tmp_path / "logs") as kafka:
        brokers = Brokers(kafka.bootstrap)
        build = MirroredRebuild(spark, brokers, tables("orders"), 2, tmp_path / "work")
        provision([*SHOP, build.topology], Settings(bootstrap=kafka.bootstrap))
        put(kafka.bootstrap, ("orders.events.v1", "o-1", placed), ("inventory.events.v1", "decided", reserved))
        put(kafka.bootstrap, (arrived.topic, "arrived", arrived.body))
        # retention has removed the reservation of the older order, and what it led to
        put(kafka.bootstrap, *(("orders.events.v1", "o-0", each) for each in (old, ended)))
        put(kafka.bootstrap, ("inventory.events.v1", "arrived", shipped))
        assert build.run(lambda *_: None) == 3  # two orders, of which one is open
        sent = Counter(each.value for each in read_records(kafka.bootstrap, "inventory.commands.v1"))
        assert sent == {arrived.body: 1, lost.body: 1}
        timers = {each.value for each in read_records(kafka.bootstrap, "orders.timers.v1")}
        assert timers == {timer.body, old_timer.body}
        assert [each.value for each in read_records(kafka.bootstrap, "accounts.commands.v1")] == [settle.body]
        (answer,) = read_records(kafka.bootstrap, "orders.commands.v1")
        assert b"order.record_reservation" in (answer.value or b"")
        positions = brokers.positions("orders-v2")
        assert positions["orders.events.v1"] == brokers.settled_ends("orders.events.v1")
        assert set(positions["orders.timers.v1"].values()) == {0}
