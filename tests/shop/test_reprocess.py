"""Reprocessing on real brokers: the view is right again, the log is unchanged, and nothing is sent twice."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient

from services.inventory import topology as inventory
from services.inventory.domain.views import Level
from services.orders import topology as orders
from services.sales import topology as sales
from shared.dev.stages import StageFailed
from shared.domain.row import Row, RowCodec
from shared.kafka.brokers import Brokers
from shared.kafka.murmur2 import partition_of
from shared.kafka.offsets import Offsets
from shared.kafka.producer import producer_config
from shared.operations.provision import load_topologies
from shared.runtime.positions import Place
from shared.testing.conversation import MemoryRecord
from shared.topology.topics import Topic
from tests.shop.market import Market, read_from
from tests.waiting import eventually

pytestmark = pytest.mark.broker

LEVELS = inventory.TOPOLOGY.changelog(inventory.LEVELS).name
COPIES = {sales.BY_SKU, sales.BY_DAY, sales.BY_HOUR, sales.BY_CUSTOMER, sales.BY_LINE, sales.NAMES}


class State(NamedTuple):
    """Everything a dry run leaves alone."""

    committed: dict[Place, int | None]
    starts: dict[Place, int]
    ends: dict[Place, int]
    stores: set[Path]


def partitions() -> list[Place]:
    return [
        Place(topic.name, partition)
        for topology in load_topologies()
        for topic in topology.all_topics()
        for partition in range(topology.partitions)
    ]


def under_way(market: Market) -> set[Place]:
    """Partitions with records that a group has not read; transaction markers and aborted records do not count."""
    offsets = Offsets(market.stack.bootstrap)
    unread: set[Place] = set()
    for topology in load_topologies():
        committed = offsets.committed(topology.service, partitions())
        places = {place: offset for place, offset in committed.items() if offset is not None}
        if topology is orders.TOPOLOGY:
            places |= {place: offset or 0 for place, offset in committed.items() if place.topic == orders.TIMERS.name}
        unread |= {Place(said.topic, said.partition) for said in read_from(market.stack.bootstrap, places)}
    return unread


def state(market: Market, service: str) -> State:
    offsets = Offsets(market.stack.bootstrap)
    stores = set(market.stack.settings.data_dir.glob(f"{service}-*/*"))
    return State(
        offsets.committed(service, partitions()), offsets.starts(partitions()), offsets.ends(partitions()), stores
    )


def log(market: Market, but: set[Topic] | None = None) -> dict[str, list[MemoryRecord]]:
    """Every record of every declared topic except changelogs, with its place."""
    topics = {topic for each in load_topologies() for topic in (*each.topics, each.dead_letters)} - (but or set())
    return {topic.name: market.records(topic.name) for topic in topics}


def reprocess(market: Market, *arguments: str, **settings: object) -> subprocess.CompletedProcess[str]:
    environment = market.stack.settings.model_copy(update=settings).environment()
    command = [sys.executable, "-m", "shared.dev.cli", "reprocess", *arguments]
    return subprocess.run(command, env=os.environ | environment, capture_output=True, text=True)


def said(market: Market, *arguments: str, **settings: object) -> list[str]:
    done = reprocess(market, *arguments, **settings)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.fixture
def sold(market: Market) -> str:
    """A SKU of which 2 of 3 pieces were sold, once nothing is under way."""
    sku, customer, order = market.new("sku"), market.new("customer"), market.new("order")
    market.deliver(sku, 3)
    market.open_account(customer)
    market.place(order, customer, (sku, 2, 2000))
    assert market.ended(order)["phase"] == "confirmed"
    eventually(lambda: level(market, sku), lambda found: found.get("shipped") == 2)
    eventually(lambda: market.get("sales", f"/sales/skus/{sku}"), lambda found: found.get("units") == 2)
    eventually(lambda: under_way(market), lambda found: not found)
    return sku


def level(market: Market, sku: str) -> dict[str, Any]:
    return market.get("inventory", f"/levels/{sku}")


def changes(market: Market, sku: str, after: str = "", until: str = "") -> tuple[str, str]:
    """Follows a level's changes until they contain `until`: (id of the first event, text so far)."""
    (url,) = market.stack.urls("inventory")
    headers = {"Last-Event-ID": after} if after else {}
    with httpx.stream("GET", f"{url}/changes/levels?key={sku}", headers=headers, timeout=60.0) as stream:
        told = ""
        for text in stream.iter_text():
            told += text
            if (found := re.search(r"^id: (.+)$", told, re.MULTILINE)) and until in told:
                return found[1], told
    raise AssertionError(f"the stream has ended: {told}")


def miscount(market: Market, sku: str) -> None:
    """Writes a wrong row, as a faulty fold would, without a transaction, so that no marker follows it."""
    key = sku.encode()
    codec: RowCodec[Level] = RowCodec(Level)
    row = codec.encode(Row(9, Level(received=3, shipped=4, physical=-1), {}, 10**9))
    producer = Producer(producer_config(market.stack.bootstrap))
    producer.produce(LEVELS, row, key, partition_of(key, inventory.TOPOLOGY.partitions))
    assert producer.flush(30.0) == 0


def test_reprocess_refuses_while_a_worker_runs_and_names_it(market: Market, sold: str) -> None:
    done = reprocess(market, "inventory/levels")
    assert done.returncode == 1
    assert done.stdout == ""
    assert "inventory-1 on 127.0.0.1 in the group inventory: stop every worker" in done.stderr


@pytest.mark.long  # in short, what it says and then does
def test_a_dry_run_says_everything_and_changes_nothing(market: Market, sold: str) -> None:
    with market.without("inventory"):
        before = state(market, "inventory")
        lines = said(market, "inventory/levels", "--dry-run")
        assert state(market, "inventory") == before
    partition = partition_of(sold.encode(), inventory.TOPOLOGY.partitions)
    read = before.committed[Place("inventory.events.v1", partition)]
    assert lines[0] == "group   inventory: no members"
    assert f"offset  inventory.events.v1/{partition}: {read} → 0" in lines
    end = before.ends[Place(LEVELS, partition)]
    assert f"rows    {LEVELS}/{partition}: offsets 0 to {end - 1} are removed" in lines
    folder = market.stack.settings.data_dir / "inventory-1" / f"levels-{partition}"
    assert f"folder  {folder} is removed" in lines
    assert lines[-1] == "dry run: nothing was changed"
    assert not [line for line in lines if re.search(r"commands|items", line)]


@pytest.mark.long  # in short, tests/kafka/test_reprocess.py
@pytest.mark.parametrize(
    "here",
    [pytest.param(True, id="stores-here"), pytest.param(False, id="stores-elsewhere", marks=pytest.mark.long)],
)
def test_a_wrong_view_is_right_again_and_the_log_is_unchanged(
    market: Market, sold: str, here: bool, tmp_path: Path
) -> None:
    with market.without("inventory"):
        miscount(market, sold)
    place, _ = changes(market, sold)
    assert level(market, sold) == {"sku": sold, "received": 3, "shipped": 4, "physical": -1}
    with market.without("inventory"):
        before, records = state(market, "inventory"), log(market)
        lines = said(market, "inventory/levels", **({} if here else {"data_dir": tmp_path}))
        after = state(market, "inventory")
        assert any(line.startswith("folder") for line in lines) == here
        assert (before.stores == after.stores) == (not here)
        assert after.ends == before.ends | noted(before.ends) | stood(before)
        assert after.starts == before.starts | {at: end for at, end in before.ends.items() if at.topic == LEVELS}
        assert changed(before.committed, after.committed) <= {("inventory.events.v1", p) for p in range(8)}
    right = {"sku": sold, "received": 3, "shipped": 2, "physical": 1}
    eventually(lambda: level(market, sold), lambda found: found == right)
    read_again = before.committed | noted(before.ends)
    eventually(lambda: state(market, "inventory").committed, lambda found: found == read_again)
    assert log(market) == records
    _, told = changes(market, sold, after=place, until='shipped":2')
    assert 'shipped":4' not in told
    assert market.get("inventory", "/levels?physical_max=-1&complete=true")["items"] == []


@pytest.mark.long  # in short, one of them, above
def test_all_views_of_sales_are_recounted_exactly_once(market: Market, sold: str) -> None:
    paths = ("/sales/skus", "/sales/days", "/sales/hours", "/sales/customers", "/sales/available")
    counted = {path: everything(market, path) for path in paths}
    records = log(market, but=COPIES)
    with market.without("sales"):
        before = state(market, "sales")
        said(market, "sales")
        after = state(market, "sales")
    assert {at for at, read in after.committed.items() if at.topic == sales.ORDERS_EVENTS.name and read} == set()
    for place in (Place(copy.name, number) for copy in COPIES for number in range(8)):
        assert after.committed[place] == before.ends[place]
    eventually(lambda: {path: everything(market, path) for path in paths}, lambda found: found == counted)
    assert log(market, but=COPIES) == records


@pytest.mark.long  # in short, a view with its positions, above
def test_sales_with_expired_offsets_does_not_count_twice(market: Market, sold: str) -> None:
    counted = everything(market, "/sales/skus")
    (worker,) = market.workers("sales")
    admin = AdminClient({"bootstrap.servers": market.stack.bootstrap})
    with market.without("sales"):
        admin.delete_consumer_groups(["sales"])["sales"].result()
        with pytest.raises(
            StageFailed, match=r"deleted its positions, .* offsets\.retention\.minutes; fix: `reprocess sales`"
        ):
            worker.start()
        eventually(lambda: Brokers(market.stack.bootstrap).members("sales"), lambda members: not members)
        said(market, "sales")
    eventually(lambda: everything(market, "/sales/skus"), lambda found: found == counted)


def noted(ends: dict[Place, int]) -> dict[Place, int]:
    """Where the parking topic ends afterwards: after a note in each partition and its transaction's marker."""
    return {place: end + 2 for place, end in ends.items() if place.topic == inventory.TOPOLOGY.parking.name}


def stood(before: State) -> dict[Place, int]:
    """Where the changelog of what is parked ends afterwards: it notes where the group stood."""
    parked = inventory.TOPOLOGY.changelog(inventory.TOPOLOGY.parked).name
    stands = [number for number in range(8) if before.committed[Place(inventory.EVENTS.name, number)] is not None]
    return {place: before.ends[place] + 2 for place in (Place(parked, number) for number in stands)}


def changed(before: dict[Place, int | None], after: dict[Place, int | None]) -> set[Place]:
    return {place for place in before if (before[place] or 0) != (after[place] or 0)}


def everything(market: Market, path: str) -> list[dict[str, Any]]:
    page = market.get("sales", f"{path}?limit=500&complete=true")
    assert page["cursor"] is None
    items: list[dict[str, Any]] = page["items"]
    return items
