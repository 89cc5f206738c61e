"""Which topics are reread for a view, and which are refused because rereading would repeat an effect."""

import pytest

from services.inventory import topology as inventory
from services.inventory.domain.events import StockReceived
from services.inventory.processors import PROCESSORS as INVENTORY
from services.orders import topology as orders
from services.orders.processors import processors as orders_processors
from services.sales import topology as sales
from services.sales.processors import PROCESSORS as SALES
from shared.policy import Reaction
from shared.read_model import ReadModel
from shared.replay import NotReplayable, Replay, replay_of
from shared.streams.processors import Policy, Projection, Rekey
from shared.topology import Table, Topic, Topology

COPIES = (sales.BY_SKU, sales.BY_DAY, sales.BY_HOUR, sales.BY_CUSTOMER)
FACTS, COPY = Topic("shop.events.v1"), Topic("shop.by-day.v1")
VIEW = Table("view", source=FACTS)
SHOP = Topology("shop", topics=(FACTS, COPY), tables=(VIEW,))
PROJECTION = Projection(ReadModel(VIEW, lambda view, *_: view, initial=0, events=(StockReceived,), state=int))


def test_a_view_beside_an_aggregate_reads_its_events_again() -> None:
    found = replay_of(inventory.TOPOLOGY, INVENTORY, "levels")
    assert found == Replay((inventory.LEVELS,), (inventory.EVENTS,), again=(inventory.EVENTS,))


def test_one_view_reads_the_copies_that_feed_it_again() -> None:
    assert replay_of(sales.TOPOLOGY, SALES, "skus") == Replay((sales.SKUS,), (sales.BY_SKU,), again=(sales.BY_SKU,))


def test_all_views_reread_the_topics_of_other_services_and_no_copy_twice() -> None:
    foreign = (sales.ORDERS_EVENTS, sales.INSIGHTS_RESULTS)
    sources = (*COPIES, sales.INSIGHTS_RESULTS)
    found = replay_of(sales.TOPOLOGY, SALES, None)
    assert found == Replay(sales.TOPOLOGY.all_tables(), sources, again=foreign, skipped=COPIES)


def test_an_aggregate_is_not_decided_again() -> None:
    with pytest.raises(NotReplayable, match=r"inventory/items is an aggregate's.*inventory.commands.v1 holds commands"):
        replay_of(inventory.TOPOLOGY, INVENTORY, "items")


def test_a_service_that_decides_is_not_repeated_as_a_whole() -> None:
    with pytest.raises(NotReplayable, match=r"name one of its views: inventory/levels$"):
        replay_of(inventory.TOPOLOGY, INVENTORY, None)
    with pytest.raises(NotReplayable, match=r"it has no view$"):
        replay_of(orders.TOPOLOGY, orders_processors(deadline_s=1.0), None)


def test_an_unknown_table_is_reported_with_the_existing_ones() -> None:
    with pytest.raises(NotReplayable, match=r"no table level; name one of its views: inventory/levels$"):
        replay_of(inventory.TOPOLOGY, INVENTORY, "level")


def test_a_policy_beside_the_view_would_send_again() -> None:
    policy = Policy(Reaction(lambda _: (), source=FACTS, events=(StockReceived,), commands={}))
    with pytest.raises(NotReplayable, match=r"shop.events.v1 is also read by a policy"):
        replay_of(SHOP, [PROJECTION, policy], "view")


def test_a_copy_beside_the_view_would_be_made_again() -> None:
    rekey = Rekey({COPY: lambda _: ()}, source=FACTS, events=(StockReceived,))
    with pytest.raises(NotReplayable, match=r"also copied to shop.by-day.v1.* Name shop instead,"):
        replay_of(SHOP, [PROJECTION, rekey], "view")
    assert replay_of(SHOP, [PROJECTION, rekey], None) == Replay(
        (VIEW, SHOP.parked), (FACTS,), again=(FACTS,), skipped=(COPY,)
    )
