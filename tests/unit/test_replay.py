"""Which topics are reread for a view, and which are refused because rereading would repeat an effect."""

from dataclasses import replace

import pytest

from shared.engine.processors import AggregateProcessor, PolicyProcessor, ProjectionProcessor, RekeyProcessor
from shared.engine.wiring import by_source
from shared.topology.policy import Policy
from shared.topology.projection import Projection
from shared.topology.rekey import Rekey
from shared.topology.replay import NotReplayable, Replay, replay_of
from shared.topology.topics import Table, Topic, Topology
from tests.accounts.domain.decide import DECIDER
from tests.accounts.domain.events import AccountOpened


def view(table: Table) -> ProjectionProcessor:
    return ProjectionProcessor(Projection(table, lambda view, *_: view, initial=0, events=(AccountOpened,), state=int))


COMMANDS, FACTS = Topic("shop.commands.v1"), Topic("shop.events.v1")
ITEMS, LEVELS = Table("items", source=COMMANDS), Table("levels", source=FACTS)
SHOP = Topology("shop", topics=(COMMANDS, FACTS), tables=(ITEMS, LEVELS))
AGGREGATE = AggregateProcessor(DECIDER, table=ITEMS, events=FACTS)
DECIDES = [AGGREGATE, view(LEVELS)]

RESULTS, COPIES = Topic("trends.results.v1"), (Topic("trends.by-day.v1"), Topic("trends.by-sku.v1"))
DAYS, SKUS = (Table(name, source=copies) for name, copies in zip(("days", "skus"), COPIES, strict=True))
FIGURES, OPENED = Table("figures", source=RESULTS), Table("opened", source=FACTS)
TRENDS = Topology("trends", topics=(*COPIES, RESULTS), tables=(DAYS, SKUS, FIGURES))
REKEY = RekeyProcessor(Rekey(dict.fromkeys(COPIES, lambda _: ()), source=FACTS, events=[AccountOpened]))
MAKERS = ((FACTS, REKEY.name),)
COPYING = [REKEY, *map(view, TRENDS.tables)]
BESIDE = Topology("trends", topics=COPIES, tables=(OPENED,))


def test_a_view_beside_an_aggregate_reads_its_events_again() -> None:
    assert replay_of(SHOP, DECIDES, "levels") == Replay((LEVELS,), (FACTS,), again=(FACTS,))


def test_one_view_reads_the_copies_that_feed_it_again() -> None:
    assert replay_of(TRENDS, COPYING, "skus") == Replay((SKUS,), (SKUS.source,), again=(SKUS.source,))


def test_all_views_reread_the_topics_of_other_services_and_no_copy_twice() -> None:
    sources, again = (*COPIES, RESULTS), (FACTS, RESULTS)
    found = replay_of(TRENDS, COPYING, None)
    assert found == Replay(TRENDS.all_tables(), sources, again=again, skipped=COPIES, makers=MAKERS)


def test_an_aggregate_is_not_decided_again() -> None:
    with pytest.raises(NotReplayable, match=r"shop/items is an aggregate's.*shop.commands.v1 holds commands"):
        replay_of(SHOP, DECIDES, "items")


def test_a_service_that_decides_is_not_repeated_as_a_whole() -> None:
    with pytest.raises(NotReplayable, match=r"name one of its views: shop/levels$"):
        replay_of(SHOP, DECIDES, None)
    with pytest.raises(NotReplayable, match=r"it has no view$"):
        replay_of(SHOP, [AGGREGATE], None)


def test_copies_are_made_again_for_a_table_that_is_named() -> None:
    with pytest.raises(NotReplayable, match=r"`--copies` needs a table: name one, as trends/TABLE"):
        replay_of(TRENDS, COPYING, None, copies=True)


def test_an_unknown_table_is_reported_with_the_existing_ones() -> None:
    with pytest.raises(NotReplayable, match=r"no table level; name one of its views: shop/levels$"):
        replay_of(SHOP, DECIDES, "level")


def test_what_sends_or_copies_beside_the_view_goes_on_where_it_stands() -> None:
    policy = PolicyProcessor(Policy(lambda _: (), source=FACTS, events=(AccountOpened,), commands={}))
    found = replay_of(SHOP, [*DECIDES, policy], "levels")
    assert found == Replay((LEVELS,), (FACTS,), again=(FACTS,), passing=((FACTS, policy.name),))
    readers = [view(OPENED), REKEY]
    assert replay_of(BESIDE, readers, "opened") == Replay(
        (OPENED,), (FACTS,), again=(FACTS,), passing=((FACTS, REKEY.name),)
    )
    assert replay_of(BESIDE, readers, None) == Replay(
        (OPENED, BESIDE.parked), (FACTS,), again=(FACTS,), skipped=COPIES, makers=MAKERS
    )


def test_a_view_of_copies_is_filled_from_what_is_copied_beside_other_copies() -> None:
    regions = Topic("trends.by-region.v1")
    table = Table("regions", source=regions)
    grown = replace(TRENDS, topics=(*TRENDS.topics, regions), tables=(*TRENDS.tables, table))
    own = RekeyProcessor(Rekey({regions: lambda _: ()}, source=FACTS, events=[AccountOpened], name="regions"))
    readers = [*COPYING, own, view(table)]
    by_source(grown, readers)  # they may share a worker
    found = replay_of(grown, readers, "regions", copies=True)
    assert found == Replay((table,), (regions,), (FACTS,), (regions,), passing=MAKERS, makers=((FACTS, own.name),))
    assert replay_of(grown, readers, "skus", copies=True).tables == (DAYS, SKUS)
    with pytest.raises(NotReplayable, match=r"trends copies nothing to trends.results.v1; leave out `--copies`"):
        replay_of(grown, readers, "figures", copies=True)


def test_what_is_joined_with_a_view_of_copies_is_computed_from_its_own_source() -> None:
    both = Table.joined("both", SKUS, FIGURES)
    joining = replace(TRENDS, tables=(*TRENDS.tables, both))
    found = replay_of(joining, COPYING, "skus", copies=True)
    assert found == Replay(joining.tables, (*COPIES, RESULTS), again=(FACTS, RESULTS), skipped=COPIES, makers=MAKERS)


@pytest.mark.parametrize("source", [FACTS, RESULTS])
def test_all_that_copy_beside_each_other_copy_again(source: Topic) -> None:
    """What one of them has copied is skipped, and the view of it emptied."""
    beside = RekeyProcessor(Rekey({SKUS.source: lambda _: ()}, source=source, events=[AccountOpened], name="beside"))
    found = replay_of(TRENDS, [*COPYING, beside], "days", copies=True)
    assert found.tables == (DAYS, SKUS)
    assert found.again == tuple(dict.fromkeys([FACTS, source]))
    assert found.makers == (*MAKERS, (source, beside.name))
    assert not found.passing
