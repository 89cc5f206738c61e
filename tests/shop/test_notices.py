"""A partner is told of each order that is confirmed, as docs/outside.md says, and not when events are read again."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Thread

import pytest

from services.orders.topology import EVENTS as ORDERS_EVENTS
from shared.dev.worker import Worker, faust_command
from shared.effects.runner import Calls
from shared.engine.wiring import processors_of
from shared.http.client import AsyncClient
from shared.kafka.murmur2 import partition_of
from shared.kafka.offsets import Offsets
from shared.operations.provision import provision
from shared.operations.reprocess import Reprocessing
from shared.runtime.positions import Place
from shared.topology.replay import replay_of
from tests.effects.partner import Partner
from tests.effects.receiver import SECRET
from tests.patterns.errands.effects import EFFECTS
from tests.shop.market import DEADLINE_S, Market
from tests.shop.notices import CONFIRMED, SERVICE
from tests.waiting import eventually

pytestmark = pytest.mark.broker


def command(service: str) -> list[str]:
    app = f"tests.patterns.{service}.app"
    return ["tests.shop.notices" if part == app else part for part in faust_command(service, "tests.patterns")]


@pytest.fixture
def errands(market: Market) -> Iterator[Worker]:
    stack, topology = market.stack, SERVICE.topology
    provision([topology], stack.settings)
    worker = Worker(topology.service, "1", stack.settings, stack.logs / "errands-1.log", command)
    worker.start(DEADLINE_S)
    yield worker
    worker.stop()


@pytest.fixture
def partner(monkeypatch: pytest.MonkeyPatch) -> Iterator[Partner]:
    with Partner() as server:
        monkeypatch.setenv("ERRANDS_PARTNER_URL", server.url)
        monkeypatch.setenv("ERRANDS_PARTNER_SECRET", SECRET)
        Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


@contextmanager
def runner(url: str) -> Iterator[None]:
    """Calls for what is pending, as `effect run` does."""
    (target,) = EFFECTS.targets()

    async def run() -> None:
        async with AsyncClient(url) as service:
            await Calls(service, EFFECTS.path, target).run()

    loop = asyncio.new_event_loop()
    calls = loop.create_task(run())
    thread = Thread(target=lambda: loop.run_until_complete(asyncio.wait([calls])))
    thread.start()
    try:
        yield
    finally:
        loop.call_soon_threadsafe(calls.cancel)
        thread.join()
        loop.close()


def confirm(market: Market) -> str:
    """An order that is confirmed."""
    sku, customer, order = market.new("sku"), market.new("customer"), market.new("order")
    market.deliver(sku, 1)
    market.open_account(customer)
    market.place(order, customer, (sku, 1, 100))
    assert market.ended(order)["phase"] == "confirmed"
    return order


def reprocess(market: Market) -> None:
    brokers, processors = Reprocessing(market.stack.bootstrap), processors_of(SERVICE)
    brokers.carry_out(brokers.plan(SERVICE.topology, replay_of(SERVICE.topology, processors, CONFIRMED.name)))


def position(market: Market, place: Place) -> int:
    return Offsets(market.stack.bootstrap).committed(SERVICE.topology.group, [place])[place] or 0


def test_a_partner_is_told_once_of_a_confirmed_order_also_where_its_events_are_read_again(
    market: Market, errands: Worker, partner: Partner
) -> None:
    with runner(errands.url):
        first = confirm(market)
        eventually(lambda: len(market.messages(SERVICE.events.name)), (3).__eq__)  # requested, attempted, done
        place = Place(ORDERS_EVENTS.name, partition_of(first.encode(), SERVICE.topology.partitions))
        read = position(market, place)
        errands.stop()
        reprocess(market)
        assert position(market, place) == 0
        errands.start(DEADLINE_S)
        eventually(lambda: position(market, place), read.__eq__)
        second = confirm(market)
        eventually(lambda: len(market.messages(SERVICE.events.name)), (6).__le__)
    assert [json.loads(body)["data"]["order_id"] for _, body in partner.calls] == [first, second]
    assert [key for key, _ in partner.calls] == [f"{order}-confirmed" for order in (first, second)]
