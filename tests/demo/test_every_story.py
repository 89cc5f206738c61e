"""The story of every purchase that the demo sells, through its crash: against the log, and the books from the file.

Each story is sought as for an operator, but in a copy of the log: of a log that grew so fast, each look-up would read
what came in the minute after the order, which some do for comparison.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set

import httpx
import pytest

from demo.books import CONFIRMED, Books, expected_books
from demo.cdnow import Purchase, first_purchases
from demo.courier import Courier
from demo.rules import order_id
from demo.shop import SERVICES, Shop
from demo.story import Story as Run
from shared.dev.stack import Stack
from shared.dev.stages import stage
from shared.domain.envelope import identity_in
from shared.kafka.brokers import Bounds
from shared.kafka.producer import CommandProducer
from shared.kafka.reader import ReadRecord
from shared.kafka.search import LogSearch
from shared.kafka.spans import Span
from shared.runtime.positions import Place
from shared.stories import search
from shared.stories.search import find_story
from shared.stories.story import Story
from tests.faults.log import read_all, with_open_transactions
from tests.shop.books import TOPOLOGIES
from tests.shop.test_every_story import TOPICS, check
from tests.waiting import eventually

pytestmark = [pytest.mark.broker, pytest.mark.long, pytest.mark.timeout(3600)]  # in short, tests/shop has twenty orders

PURCHASES: int | None = None  # all 69,659
DEADLINE_S = 240  # of an order, whose timer has to come due before its story is whole
COMPARED = 10
LOGGED = {
    Place(topic, partition): 0
    for each in TOPOLOGIES
    for topic in (each.dead_letters.name, *(topic.name for topic in each.topics))
    for partition in range(each.partitions)
}
RESERVED = {"order.placed", "stock.reserved", "order.line_reserved"}
BY_THE_BOOKS = {
    CONFIRMED: RESERVED | {"account.order_charged", "order.confirmed", "stock.shipped", "account.order_settled"},
    "account.order_limit_exceeded": RESERVED | {"account.charge_refused", "order.rejected", "stock.released"},
    "inventory.discontinued": {"order.placed", "stock.reservation_refused", "order.rejected"},
}
"""The events of an order, by its end. Where one waited long it was asked again, and a refusal may come again."""
CALLED = "pickup.requested"  # what the runner then says of its calls are stories of their own
OVERDUE = {"order.reservation_overdue", "order.charge_overdue"}


class Copy(LogSearch):
    """Of a log, as of its end: every record by its story, and each partition's times."""

    def __init__(self, bootstrap: str) -> None:
        self.refused: set[str] = set()
        self.read = 0
        self.of_story: dict[str, list[ReadRecord]] = defaultdict(list)
        self._offsets: dict[Place, list[int]] = {}
        self._times: dict[Place, list[int]] = {}
        for place, reads in read_all(bootstrap, LOGGED).items():
            self._offsets[place] = [each.offset for each in reads]
            self._times[place] = [each.timestamp for each in reads]
            for each in reads:
                found = identity_in(each.value) if place.topic in TOPICS else None
                if found is not None:
                    self.of_story[found.correlation_id].append(
                        ReadRecord(*place, each.offset, each.key, each.value, each.timestamp)
                    )
        self._bounds = {place: Bounds(0, end, end) for place, end in self._ends().items()}

    def __enter__(self) -> Copy:
        self.read = 0
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def _ends(self) -> dict[Place, int]:
        return {place: found[-1] + 1 if found else 0 for place, found in self._offsets.items()}

    def bounds(self, topics: Set[str]) -> Mapping[Place, Bounds]:
        return {place: found for place, found in self._bounds.items() if place.topic in topics}

    def offsets_at(self, ends: Mapping[Place, int], at_ms: int) -> dict[Place, int]:
        found = {}
        for place, end in ends.items():
            first = bisect_left(self._times[place], at_ms)
            found[place] = min(end, self._offsets[place][first]) if first < len(self._offsets[place]) else end
        return found

    def records_with(self, spans: Iterable[Span], texts: Sequence[bytes]) -> Iterator[ReadRecord | None]:
        wanted = {span.place: span for span in spans}
        self.read += sum(span.end - span.start for span in wanted.values())  # and markers of transactions
        for each in self.of_story[texts[0].decode()]:
            within = wanted.get(Place(each.topic, each.partition))
            if within and within.start <= each.offset < within.end:
                yield each
        yield None


@pytest.fixture(scope="module")
def purchases() -> Sequence[Purchase]:
    return first_purchases(PURCHASES)


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory, purchases: Sequence[Purchase]) -> Iterator[Stack]:
    """Which has sold what the file says, and in which nothing waits any more."""
    with pytest.MonkeyPatch.context() as environment, Courier() as courier:
        for name, value in {"ORDERS_DEADLINE_S": str(DEADLINE_S), **courier.variables}.items():
            environment.setenv(name, value)
        workers = dict.fromkeys(SERVICES, 1) | {"orders": 2}
        with Stack(tmp_path_factory.mktemp("shop"), workers, topologies=TOPOLOGIES) as stack:
            stack.spawn_runners()
            asyncio.run(sold(stack, purchases, expected_books(purchases)))
            # twice: what one service has sent after another was asked
            eventually(lambda: waiting(stack) + waiting(stack), lambda left: not left, 900.0)
            yield stack


async def sold(stack: Stack, purchases: Sequence[Purchase], expected: Books) -> None:
    async with Shop(stack) as shop:
        run = Run(purchases, expected, stack, shop, CommandProducer(stack.bootstrap, TOPOLOGIES))
        for tell in (run.open, run.post_first, run.replay, run.crash, run.recover, run.flow, run.compare):
            with stage("[shop]", tell.__name__, sys.stdout) as now:
                now.done = await tell(now)
        assert run.findings().found.books == expected


def waiting(stack: Stack) -> int:
    """Records, timers among them; and partitions with a transaction that is open, after which more may come."""
    found = [httpx.get(f"{stack.urls(name)[0]}/cluster", timeout=30, trust_env=False).json() for name in SERVICES]
    lags: list[int] = [part["lag_records"] for each in found for parts in each["topics"].values() for part in parts]
    return sum(lags) + len(with_open_transactions(stack.bootstrap, LOGGED))


def test_the_story_of_every_purchase_is_complete(
    shop: Stack, purchases: Sequence[Purchase], monkeypatch: pytest.MonkeyPatch
) -> None:
    with stage("[log]", "copy", sys.stdout) as now:
        copy = Copy(shop.bootstrap)
        now.done = f"{sum(map(len, copy.of_story.values())):,} records of {len(copy.of_story):,} stories"
    now_ms = 1 + max(each.timestamp for some in copy.of_story.values() for each in some)
    expected, wrong, read = expected_books(purchases), dict[str, str](), 0
    with monkeypatch.context() as patch, stage("[log]", "stories", sys.stdout) as now:
        patch.setattr(search, "LogSearch", lambda _: copy)
        for purchase in purchases:
            order = order_id(purchase)
            found = find_story("", TOPOLOGIES, order, now_ms=now_ms)
            read += found.records_read
            events = BY_THE_BOOKS[expected.orders[order]] | ({CALLED} if order in expected.pickups else set())
            if why := problem(found, copy.of_story[order], events):
                wrong[order] = why
        now.done = (
            f"{len(purchases) - len(wrong):,} of {len(purchases):,} are complete; "
            f"in the log itself, each would read {read // len(purchases):,} records"
        )
        sample = [order_id(each) for each in random.Random(1).sample(purchases, COMPARED)]
        copied = [find_story("", TOPOLOGIES, order, now_ms=now_ms) for order in sample]
    assert not wrong
    places = [f"{first.topic}/{first.partition}/{first.offset}" for first in (each.steps[0] for each in copied)]
    with stage("[log]", "look-ups", sys.stdout) as now:
        looked_up = [find_story(shop.bootstrap, TOPOLOGIES, place, now_ms=now_ms) for place in places]
        read = sum(each.records_read for each in looked_up)
        now.done = f"{COMPARED} by place: {read / COMPARED:,.0f} records each, {read / now.seconds:,.0f} a second"
    assert [each.steps for each in looked_up] == [each.steps for each in copied]
    assert all(each.whole for each in looked_up)


def problem(found: Story, records: Sequence[ReadRecord], events: Set[str]) -> str:
    """What it lacks: a record of the log, its place in the tree, or one of the events that follow by the books."""
    try:
        bodies = {f"{each.topic}/{each.partition}/{each.offset}": json.loads(each.value or b"") for each in records}
        check({**found.model_dump(), "unread": list(found.unread)}, bodies)
    except AssertionError as failure:
        return f"not as in the log: {failure}"
    types = {each.type for each in found.steps if each.kind == "events"} - OVERDUE
    return "" if types == events else f"its events are {sorted(types)} where the books have {sorted(events)}"
