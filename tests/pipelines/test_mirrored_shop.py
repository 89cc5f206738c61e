"""Orders that were under way between services when the first cluster was lost come to their end at the second."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from typer.testing import CliRunner

from pipelines.catalog import tables
from pipelines.cli import cli
from pipelines.mirrored import MirroredRebuild
from services.accounts.topology import TOPOLOGY as ACCOUNTS
from services.inventory.domain.decide import DECIDER as ITEMS
from services.inventory.domain.events import StockReserved
from services.inventory.topology import TOPOLOGY as INVENTORY
from services.orders.domain.decide import DECIDER
from services.orders.domain.events import Line, OrderPlaced
from services.orders.policies import REACTIONS
from services.orders.topology import TOPOLOGY as ORDERS
from shared.dev.stack import Stack
from shared.es.message import Event
from shared.kafka.embedded import EmbeddedKafka
from shared.kafka.history import History
from shared.kafka.mirror import Mirror, mirror_properties, mirrored_topics
from shared.kafka.producer import producer_config
from shared.kafka.provision import provision
from shared.settings import Settings
from tests.pipelines.conftest import read_records
from tests.pipelines.test_mirrored import await_events, next_version
from tests.shop.market import Market, eventually

SHOP = (ACCOUNTS, INVENTORY, ORDERS)
"""Those that have policies come last."""

NEXT = [replace(topology, version=2) for topology in SHOP]
WORKERS = dict.fromkeys(("accounts", "inventory", "orders"), 1)
CUSTOMERS = 10
HALF, ALL = range(2 * CUSTOMERS), range(4 * CUSTOMERS)
MIRRORED_BEFORE_THE_END = 3 * len(HALF)
DELIVERED = 100
CENTS = 100
AT = datetime(1997, 1, 18, tzinfo=UTC)


def put(bootstrap: str, *records: tuple[str, str, bytes]) -> None:
    """Topic, key, value."""
    producer = Producer(producer_config(bootstrap))
    for topic, key, value in records:
        producer.produce(topic, value, key.encode())
    assert producer.flush(30) == 0


def event_of(codec: Any, event: Event, aggregate_id: str, causation_id: str | None = None) -> bytes:
    envelope = codec.wrap(
        event,
        event_id=f"{event.TYPE} {aggregate_id}",
        aggregate_id=aggregate_id,
        sequence=1,
        occurred_at=AT,
        correlation_id="c",
        causation_id=causation_id,
    )
    encoded: bytes = codec.encode(envelope)
    return encoded


def test_what_did_not_arrive_is_sent_and_nothing_else(spark: Any, tmp_path: Path) -> None:
    lines = tuple(Line(sku=sku, quantity=1, amount_cents=CENTS) for sku in ("arrived", "decided", "lost"))
    placed = event_of(DECIDER.event_codec, OrderPlaced(customer_id="ann", lines=lines, placed_at=AT), "o-1")
    arrived, decided, lost, timer = REACTIONS[0].to(placed)
    reserved = event_of(
        ITEMS.event_codec, StockReserved(order_id="orders:o-1", quantity=1), "decided", decided.command_id
    )
    with EmbeddedKafka(tmp_path / "kafka", tmp_path / "logs") as kafka:
        history = History(kafka.bootstrap)
        build = MirroredRebuild(spark, history, tables("orders"), 2, tmp_path / "work")
        provision([*SHOP, build.topology], Settings(bootstrap=kafka.bootstrap))
        put(kafka.bootstrap, ("orders.events.v1", "o-1", placed), ("inventory.events.v1", "decided", reserved))
        put(kafka.bootstrap, (arrived.topic, "arrived", arrived.body))
        assert build.run(lambda *_: None) == 1
        sent = Counter(each.value for each in read_records(kafka.bootstrap, "inventory.commands.v1"))
        assert sent == {arrived.body: 1, lost.body: 1}
        assert [each.value for each in read_records(kafka.bootstrap, "orders.timers.v1")] == [timer.body]
        (answer,) = read_records(kafka.bootstrap, "orders.commands.v1")
        assert b"order.record_reservation" in (answer.value or b"")
        positions = history.positions("orders-v2")
        assert positions["orders.events.v1"] == history.settled_ends("orders.events.v1")
        assert set(positions["orders.timers.v1"].values()) == {0}


@pytest.mark.timeout(900)
def test_an_order_under_way_goes_on_at_the_second_cluster(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ORDERS_DEADLINE_S", "3600")  # no timer helps an order whose step was lost
    settings = Settings(session_timeout_s=6, log_format="json")
    first = Stack(tmp_path / "first", WORKERS, settings=settings, topologies=SHOP)
    second = Stack(tmp_path / "second", WORKERS, settings=settings, topologies=NEXT, command=next_version)
    with ExitStack() as ends:
        ends.callback(second.stop)
        second.start_brokers()
        lose_the_first(ends.enter_context(first), second.bootstrap, tmp_path)

        options = ["--mirrored", "--version", "2", "--bootstrap", second.bootstrap, "--work", str(tmp_path / "work")]
        for topology in SHOP:
            CliRunner().invoke(cli, ["rebuild", topology.service, *options], catch_exceptions=False)
        second.start_workers()
        with Market(second) as market:
            place(market, ALL)  # whoever has no answer, or misses an order, sends it again
            assert Counter(market.ended(f"o-{number}")["phase"] for number in ALL) == {"confirmed": len(ALL)}
            each = len(ALL) // CUSTOMERS
            for number in range(CUSTOMERS):
                item = eventually(partial(market.item, f"sku-{number}"), lambda found: not found["reserved"])
                assert item["physical"] == DELIVERED - each
                account = eventually(partial(market.account, f"c-{number}"), lambda found: not found["held_cents"])
                assert account["balance_cents"] == each * CENTS


def lose_the_first(first: Stack, second: str, folder: Path) -> None:
    """While half of the orders wait for what inventory says."""
    properties = mirror_properties(mirrored_topics(SHOP), first.bootstrap, second, 1)
    with Market(first) as market, Mirror(properties, folder / "mirror"):
        for number in range(CUSTOMERS):
            market.deliver(f"sku-{number}", DELIVERED)
            market.open_account(f"c-{number}")
        place(market, HALF)
        for number in HALF:
            market.ended(f"o-{number}")
        first.workers_of("inventory")[0].kill()
        place(market, ALL)
        await_events(second, MIRRORED_BEFORE_THE_END, "orders.events.v1")
        first.kafka.kill(1)
        for worker in first.workers:
            worker.kill()


def place(market: Market, orders: Iterable[int]) -> None:
    for number in orders:
        market.place(f"o-{number}", f"c-{number % CUSTOMERS}", (f"sku-{number % CUSTOMERS}", 1, CENTS))
