"""A worker without positions starts by itself where nothing was written before, and sends and copies nothing twice.

Elsewhere the next version of a service waits for `rebuild`, and one whose positions expired waits for its operator.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from structlog.testing import capture_logs

from shared.domain.row import Row
from shared.engine.processors import AggregateProcessor, Processor, ProjectionProcessor, RekeyProcessor, TimerProcessor
from shared.engine.versions import (
    MixedReleases,
    NotRebuilt,
    PositionsForgotten,
    Superseded,
    TableChanged,
    TopicMadeAgain,
)
from shared.engine.wiring import wired
from shared.kafka.murmur2 import partition_of
from shared.parking.parked import PARKED_CODEC, SUPERSEDED_ID, note_of_successor
from shared.runtime.positions import Place
from shared.topology.projection import Projection
from shared.topology.rekey import Rekey
from shared.topology.timer import Timer
from shared.topology.topics import Table, Topic, Topology
from tests.accounts.domain.decide import DECIDER
from tests.accounts.domain.events import AccountOpened
from tests.accounts.topology import ACCOUNTS, COMMANDS, EVENTS
from tests.engine.assigned import Assigned
from tests.faults.load import command
from tests.faults.simulated import Broker, FakeOffsets, Fault, Slot

pytestmark = pytest.mark.usefixtures("no_waiting", "no_lag")

NEXT = Topology("accounts", (COMMANDS, EVENTS), (ACCOUNTS,), partitions=2, version=2, history=EVENTS)
COPIED = Topic("accounts.copies.v1")
COPYING = Topology("accounts", (COMMANDS, EVENTS, COPIED), (ACCOUNTS,), partitions=2)
TABLELESS = Topology("accounts", (COMMANDS, COPIED), partitions=2)
ROWS_ONLY = replace(NEXT, version=1)
RENAMED = replace(COPYING, tables=(Table("customers", source=COMMANDS),))
OTHER_SOURCE = replace(COPYING, tables=(Table(ACCOUNTS.name, source=COPIED),))
LATER_COMMANDS = Topic("accounts.commands.v2")
OTHER_COMMANDS = replace(
    COPYING, topics=(*COPYING.topics, LATER_COMMANDS), tables=(Table(ACCOUNTS.name, source=LATER_COMMANDS),)
)
OTHERS = Topic("accounts.events.v2")
OTHER_HISTORY = replace(ROWS_ONLY, topics=(COMMANDS, OTHERS), history=OTHERS)
DECLARED = (
    NEXT,
    COPYING,
    TABLELESS,
    ROWS_ONLY,
    RENAMED,
    OTHER_SOURCE,
    OTHER_COMMANDS,
    OTHER_HISTORY,
    replace(COPYING, version=3),
)
TOPICS = sorted({topic.name for each in DECLARED for topic in each.all_topics()})
AGGREGATE = AggregateProcessor(DECIDER, table=ACCOUNTS, events=EVENTS)
REKEY = RekeyProcessor(Rekey({COPIED: lambda event: [event.aggregate_id]}, source=EVENTS, events=[AccountOpened]))
SENDER = TimerProcessor(Timer(source=COMMANDS, target=COPIED, delay_s=0.0))
DECIDES = wired(NEXT, [AGGREGATE])
PROJECTION: Projection[Any, int] = Projection(
    ACCOUNTS, lambda view, *_: view, initial=0, events=(AccountOpened,), state=int
)
VIEW = ProjectionProcessor(PROJECTION)
COPIES = RekeyProcessor(Rekey({COMMANDS: lambda _: []}, source=EVENTS, events=[AccountOpened]))
AFTER_NEXT = replace(NEXT, version=3).group
OPEN = b"a-1", command("a-1", "c1", "account.open", {})


@pytest.fixture
def broker() -> Broker:
    return Broker(TOPICS, NEXT.partitions, random.Random(1), NEXT.group)


class Worker(Assigned):
    """By default of the next version."""

    def __init__(
        self,
        broker: Broker,
        name: str,
        *partitions: int,
        topology: Topology = NEXT,
        processors: Sequence[Processor] = DECIDES,
    ) -> None:
        super().__init__(broker, name, *partitions, topology=topology, processors=processors)


def events(broker: Broker, topic: Topic = EVENTS) -> int:
    return sum(len(list(broker.visible(Place(topic.name, number), 0))) for number in range(NEXT.partitions))


def test_a_next_version_without_a_past_needs_no_rebuild(broker: Broker) -> None:
    async def begin() -> None:
        broker.append(COMMANDS.name, OPEN, None)  # a neighbouring service was faster
        await Worker(broker, "first", 0, 1).work()
        assert events(broker) == 1
        for number in range(NEXT.partitions):  # one partition has no record
            await Worker(broker, f"later-{number}", number).start()

    asyncio.run(begin())


def test_a_first_commit_that_fails_does_not_stop_a_next_version(broker: Broker) -> None:
    async def begin() -> None:
        broker.append(COMMANDS.name, OPEN, None)
        worker = Worker(broker, "first", 0, 1)
        worker.producer.fault = Fault("after_offsets", "refuse")
        await worker.work()

    asyncio.run(begin())
    assert events(broker) == 1


def test_a_worker_that_is_given_records_without_their_rows_stops(broker: Broker) -> None:
    """Faust assigns a new table's changelog apart from its source while workers that don't know it are in the group."""
    worker, changelog = Worker(broker, "new", 0, 1), NEXT.changelog(ACCOUNTS).name
    given = worker.engine.assignment
    assert given is not None
    worker.engine.assignment = replace(given, active=given.active - {Place(changelog, 1)})
    with pytest.raises(
        MixedReleases, match=f"commands.v1/1 was assigned without {changelog}, .* fix: stop all workers"
    ):
        asyncio.run(worker.start())


@pytest.mark.parametrize("number", range(NEXT.partitions))
def test_a_next_version_with_a_past_in_any_partition_waits_for_rebuild(broker: Broker, number: int) -> None:
    broker.append(EVENTS.name, OPEN, None)
    with pytest.raises(NotRebuilt, match="accounts-v2 has no position, and accounts"):
        asyncio.run(Worker(broker, "first", number).start())


def test_a_service_can_add_a_history_without_a_rebuild(broker: Broker) -> None:
    """The history index is read from the start of the log; only aggregates and views need a rebuild."""
    broker.append(EVENTS.name, OPEN, None)
    broker.committed[Place(COMMANDS.name, 0)] = 0
    for number in range(NEXT.partitions):
        asyncio.run(Worker(broker, f"w{number}", number).start())


@pytest.mark.parametrize("processors", [DECIDES, [VIEW, COPIES]])
def test_a_version_does_not_start_after_its_successor_took_over(
    broker: Broker, processors: Sequence[Processor]
) -> None:
    broker.committed[Place(COMMANDS.name, 0)] = 5
    broker.others[AFTER_NEXT] = {Place(COMMANDS.name, 1): 5}
    with pytest.raises(
        Superseded, match=r"accounts-v3 has taken over from accounts-v2.* `version` to 4 .*`rebuild accounts`"
    ):
        asyncio.run(Worker(broker, "late", 0, processors=processors).start())


def test_a_version_does_not_go_on_once_its_rows_say_that_it_was_superseded(broker: Broker) -> None:
    """Brokers forget the positions of a next version that has stopped for a week."""
    note = PARKED_CODEC.encode(Row(1, note_of_successor(0, AFTER_NEXT), {}, 0))
    broker.committed[Place(COMMANDS.name, 0)] = 0
    broker.append(COMMANDS.name, OPEN, None)
    broker.slots[Place(NEXT.changelog(NEXT.parked).name, 0)].append(Slot(SUPERSEDED_ID.encode(), note, None))
    with pytest.raises(Superseded, match="accounts-v3 has taken over from accounts-v2"):
        asyncio.run(Worker(broker, "late", 0).work())
    assert events(broker) == 0
    asyncio.run(Worker(broker, "views", 0, processors=[VIEW]).work())


def test_views_may_start_after_their_next_version_took_over(broker: Broker) -> None:
    broker.committed[Place(COMMANDS.name, 0)] = 0
    broker.others[AFTER_NEXT] = {Place(COMMANDS.name, 1): 5}
    asyncio.run(Worker(broker, "late", 0, processors=[VIEW]).start())


@pytest.mark.parametrize(
    ("version", "topology", "processors", "fix"),
    [
        (2, TABLELESS, [SENDER], "put `version` back to 1: it has no tables"),
        (2, COPYING, [AGGREGATE, SENDER], "`rebuild accounts`, then"),
        (3, COPYING, [AGGREGATE, SENDER], "lower `version` to 2 in its topology.py, then `rebuild accounts`, then"),
    ],
)
def test_a_later_version_without_events_does_not_send_again_what_an_earlier_one_sent(
    broker: Broker, version: int, topology: Topology, processors: Sequence[Processor], fix: str
) -> None:
    broker.append(COMMANDS.name, OPEN, None)
    broker.others["accounts"] = {Place(COMMANDS.name, 1): 1}
    later = replace(topology, version=version)
    with pytest.raises(NotRebuilt, match=f"accounts-v{version} has no position, and accounts has: .* fix: {fix}"):
        asyncio.run(Worker(broker, "w", 0, 1, topology=later, processors=processors).work())
    assert events(broker, COPIED) == 0


def copying(broker: Broker, name: str, *partitions: int) -> Worker:
    return Worker(broker, name, *partitions, topology=COPYING, processors=[AGGREGATE, REKEY])


@pytest.mark.parametrize("number", range(COPYING.partitions))
def test_a_worker_whose_offsets_expired_does_not_copy_again(broker: Broker, number: int) -> None:
    broker.append(COMMANDS.name, OPEN, None)
    asyncio.run(copying(broker, "w", 0, 1).work())
    assert events(broker, COPIED) == 1
    broker.committed.clear()
    with pytest.raises(PositionsForgotten, match=r"offsets\.retention\.minutes; fix: .*kafka-consumer-groups"):
        asyncio.run(copying(broker, "later", number).work())
    assert events(broker, COPIED) == 1


def test_a_worker_that_lost_its_position_in_one_source_alone_does_not_copy_again(broker: Broker) -> None:
    broker.append(COMMANDS.name, OPEN, None)
    asyncio.run(copying(broker, "w", 0, 1).work())
    former = partition_of(OPEN[0] or b"", COPYING.partitions)
    del broker.committed[Place(EVENTS.name, former)]
    for name in ("later", "once more"):
        with pytest.raises(
            PositionsForgotten, match=rf"no position in {EVENTS.name}/{former} any more.*; fix: .*kafka-consumer-groups"
        ):
            asyncio.run(copying(broker, name, 0, 1).work())
    assert events(broker, COPIED) == 1


def test_a_timer_begins_a_topic_that_was_made_again_only_at_its_start(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker.append(COMMANDS.name, OPEN, None)
    asyncio.run(Worker(broker, "w", 0, 1, topology=TABLELESS, processors=[SENDER]).work())
    made_again = {COMMANDS.name: "another id"}
    monkeypatch.setattr(FakeOffsets, "topic_ids", lambda _, topics: dict.fromkeys(topics, "an id") | made_again)
    with pytest.raises(TopicMadeAgain, match=r"has the position of the former one .*; fix: .*--delete-offsets"):
        asyncio.run(Worker(broker, "later", 0, 1, topology=TABLELESS, processors=[SENDER]).work())
    del broker.committed[Place(COMMANDS.name, 0)], broker.committed[Place(COMMANDS.name, 1)]
    for name in ("deleted", "again"):
        asyncio.run(Worker(broker, name, 0, 1, topology=TABLELESS, processors=[SENDER]).work())
    assert events(broker, COPIED) == 2


def test_a_worker_without_tables_whose_offsets_expired_does_not_send_again(broker: Broker) -> None:
    broker.append(COMMANDS.name, OPEN, None)
    asyncio.run(Worker(broker, "w", 0, 1, topology=TABLELESS, processors=[SENDER]).work())
    assert events(broker, COPIED) == 1
    broker.committed.clear()
    with pytest.raises(PositionsForgotten, match=r"before its last worker stopped$"):
        asyncio.run(Worker(broker, "later", 0, 1, topology=TABLELESS, processors=[SENDER]).work())
    timers = TimerProcessor(Timer(source=COMMANDS, target=COPIED, delay_s=9.0))
    with pytest.raises(PositionsForgotten, match=r"worker stopped, of timers earlier by their wait$"):
        asyncio.run(Worker(broker, "later", 0, 1, topology=TABLELESS, processors=[timers]).work())


def test_a_worker_that_only_keeps_rows_rereads_everything_without_effect(broker: Broker) -> None:
    broker.append(COMMANDS.name, OPEN, None)
    asyncio.run(Worker(broker, "w", 0, 1, topology=ROWS_ONLY).work())
    broker.committed.clear()
    asyncio.run(Worker(broker, "later", 0, 1, topology=ROWS_ONLY).work())
    assert events(broker) == 1


def test_a_worker_that_finds_events_but_no_rows_does_not_decide_them_again(broker: Broker) -> None:
    """As on a cluster that another one was mirrored to, if nobody raised the version."""
    for topic in (COMMANDS, EVENTS):
        broker.append(topic.name, OPEN, None)
    with pytest.raises(NotRebuilt, match=r"neither positions nor rows, .* then `rebuild accounts --mirrored`"):
        asyncio.run(Worker(broker, "w", 0, 1, topology=ROWS_ONLY).work())
    assert events(broker) == 1


def test_a_first_batch_that_fails_is_not_taken_for_a_past(broker: Broker) -> None:
    async def begin() -> None:
        broker.append(COMMANDS.name, OPEN, None)
        worker = copying(broker, "w", 0, 1)
        await worker.begin()
        worker.producer.fault = Fault("before_offsets", "refuse")
        await worker.go_on()

    asyncio.run(begin())
    assert events(broker, COPIED) == 1


def test_a_first_batch_of_a_new_table_that_fails_is_not_taken_for_another_source(broker: Broker) -> None:
    async def begin() -> None:
        worker = Worker(broker, "later", 0, 1, topology=ROWS_ONLY)
        await worker.begin()
        worker.producer.fault = Fault("before_offsets", "refuse")
        await worker.go_on()

    broker.append(COMMANDS.name, OPEN, None)
    unindexed = replace(ROWS_ONLY, history=None)
    asyncio.run(Worker(broker, "w", 0, 1, topology=unindexed, processors=[AGGREGATE]).work())
    asyncio.run(begin())
    assert ROWS_ONLY.history_index is not None
    assert events(broker, ROWS_ONLY.changelog(ROWS_ONLY.history_index)) == 1


def test_a_new_source_is_read_from_its_start_beside_the_others(broker: Broker) -> None:
    broker.append(COMMANDS.name, OPEN, None)
    asyncio.run(Worker(broker, "w", 0, 1, topology=COPYING, processors=[AGGREGATE]).work())
    asyncio.run(copying(broker, "next-release", 0, 1).work())
    assert events(broker, COPIED) == 1


@pytest.mark.parametrize(("read", "rows", "warned"), [(5, 0, 1), (0, 0, 0), (5, 1, 0)])
def test_a_view_that_starts_in_the_middle_of_its_source_is_logged(
    broker: Broker, read: int, rows: int, warned: int
) -> None:
    broker.committed[Place(COMMANDS.name, 0)] = read
    for _ in range(5):
        broker.append(COMMANDS.name, (b"b", b"noise"), None)
    for _ in range(rows):
        broker.append(NEXT.changelog(ACCOUNTS).name, (b"b", b"row"), None)
    with capture_logs() as said:
        asyncio.run(Worker(broker, "w", 0, 1, processors=[VIEW]).start())
    assert [line["view"] for line in said if "misses those records" in line["event"]] == ["accounts/accounts"] * warned


def test_a_view_of_new_copies_is_as_late_as_they_are(broker: Broker) -> None:
    broker.append(EVENTS.name, OPEN, None)
    broker.committed[Place(EVENTS.name, 0)] = 1
    topology = replace(COPYING, tables=OTHER_SOURCE.tables)
    view = ProjectionProcessor(replace(PROJECTION, table=OTHER_SOURCE.tables[0]))
    with capture_logs() as said:
        asyncio.run(Worker(broker, "w", 0, 1, topology=topology, processors=[REKEY, view]).start())
    assert [line["source"] for line in said if "misses those records" in line["event"]] == [EVENTS.name]


def reading(topology: Topology) -> AggregateProcessor:
    return AggregateProcessor(DECIDER, table=topology.tables[0], events=EVENTS)


def test_a_worker_whose_table_has_another_name_does_not_begin_its_aggregates_again(broker: Broker) -> None:
    broker.append(COMMANDS.name, OPEN, None)
    asyncio.run(Worker(broker, "w", 0, 1, topology=COPYING, processors=[AGGREGATE]).work())
    broker.append(COMMANDS.name, (OPEN[0], command("a-1", "c2", "account.open", {})), None)
    with pytest.raises(
        TableChanged, match=r"accounts/customers has no rows.* fix: give the table the name that it had"
    ):
        asyncio.run(Worker(broker, "later", 0, 1, topology=RENAMED, processors=[reading(RENAMED)]).work())
    assert events(broker) == 1


def test_no_worker_proposes_to_reprocess_a_view_beside_a_policy(broker: Broker) -> None:
    """`reprocess` refuses that, because the policy would send its commands again."""
    broker.append(COMMANDS.name, OPEN, None)
    asyncio.run(Worker(broker, "w", 0, 1, topology=COPYING, processors=[AGGREGATE]).work())
    view = ProjectionProcessor(replace(PROJECTION, table=OTHER_SOURCE.tables[0]))
    beside = TimerProcessor(Timer(source=COPIED, target=COMMANDS, delay_s=0.0))
    later = Worker(broker, "later", 0, 1, topology=OTHER_SOURCE, processors=[view, beside])
    with pytest.raises(TableChanged, match=r"or raise `version` in its topology\.py, then `rebuild accounts`"):
        asyncio.run(later.start())


def test_rows_of_a_former_topic_of_the_same_name_skip_none_of_the_records_of_its_successor(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker.append(COMMANDS.name, OPEN, None)
    asyncio.run(Worker(broker, "w", 0, 1, topology=COPYING, processors=[AGGREGATE]).work())
    asyncio.run(Worker(broker, "again", 0, 1, topology=COPYING, processors=[AGGREGATE]).work())
    made_again = {COMMANDS.name: "another id"}
    monkeypatch.setattr(FakeOffsets, "topic_ids", lambda _, topics: dict.fromkeys(topics, "an id") | made_again)
    later = Worker(broker, "later", 0, 1, topology=COPYING, processors=[AGGREGATE])
    with pytest.raises(TopicMadeAgain, match=r"accounts/accounts has rows of the former one .* `rebuild accounts`"):
        asyncio.run(later.work())
    noted = {COMMANDS.name: "former"}  # by a view that has no rows, as after `reprocess`
    later.engine._beginning._version.refuse_by_notes(0, noted, made_again, set(), filled=lambda _: False)


def test_a_history_of_another_topic_is_not_continued(broker: Broker) -> None:
    """Its index would refer to offsets of both."""
    broker.append(COMMANDS.name, OPEN, None)
    asyncio.run(Worker(broker, "w", 0, 1, topology=ROWS_ONLY).work())
    processors = wired(OTHER_HISTORY, [AggregateProcessor(DECIDER, table=ACCOUNTS, events=OTHERS)])
    later = Worker(broker, "later", 0, 1, topology=OTHER_HISTORY, processors=processors)
    with pytest.raises(
        TableChanged, match=r"accounts/chapters has rows, .* fix: .* or raise `version` in its topology"
    ):
        asyncio.run(later.start())


def test_a_worker_that_has_read_only_bad_commands_needs_no_rows(broker: Broker) -> None:
    broker.append(COMMANDS.name, (b"a-1", b"noise"), None)
    broker.append(EVENTS.name, (b"a-1", b"never committed"), "aborted")  # by another service, or in an own batch
    for name in ("w", "later"):
        asyncio.run(Worker(broker, name, 0, 1, topology=COPYING, processors=[AGGREGATE]).work())


@pytest.mark.parametrize(
    ("topology", "processor", "fix"),
    [
        (OTHER_COMMANDS, reading(OTHER_COMMANDS), "raise `version` in its topology.py, then `rebuild accounts`"),
        (
            OTHER_SOURCE,
            ProjectionProcessor(replace(PROJECTION, table=OTHER_SOURCE.tables[0])),
            "`reprocess accounts/accounts`",
        ),
    ],
    ids=["aggregate", "view"],
)
def test_a_worker_whose_table_has_another_source_skips_none_of_its_records(
    broker: Broker, monkeypatch: pytest.MonkeyPatch, topology: Topology, processor: Processor, fix: str
) -> None:
    broker.append(COMMANDS.name, OPEN, None)
    asyncio.run(Worker(broker, "w", 0, 1, topology=COPYING, processors=[AGGREGATE]).work())
    broker.append(topology.tables[0].source.name, OPEN, None)
    later = Worker(broker, "later", 0, 1, topology=topology, processors=[processor])
    with pytest.raises(TableChanged, match=rf"accounts/accounts has rows, but .* fix: .* or {fix}"):
        asyncio.run(later.start())
    monkeypatch.setattr(FakeOffsets, "starts", FakeOffsets.ends)  # as `reprocess` leaves the changelog
    asyncio.run(later.start())
