"""A policy begins at the present, and its beginning outlives whoever found it."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest

from shared.domain.envelope import EventEnvelope, encode
from shared.domain.row import Row
from shared.engine import batch, pace
from shared.engine.processors import AggregateProcessor, PolicyProcessor, Processor, ProjectionProcessor, RekeyProcessor
from shared.engine.wiring import wired
from shared.operations.reprocess import begin_where_it_stands
from shared.parking.parked import BEGINS_ID, PARKED_CODEC, note_of, noted_in
from shared.runtime.positions import Place
from shared.testing.scenario import happened
from shared.topology.policy import Policy, Send
from shared.topology.projection import Projection
from shared.topology.rekey import Rekey
from shared.topology.replay import Replay
from shared.topology.topics import Table, Topic, Topology, outcomes_of
from tests.accounts.domain.commands import Charge, OpenAccount
from tests.accounts.domain.decide import DECIDER
from tests.accounts.domain.events import AccountClosed, AccountOpened
from tests.accounts.topology import ACCOUNTS, COMMANDS, EVENTS
from tests.engine.assigned import Assigned
from tests.faults.load import command
from tests.faults.simulated import TRANSACTION_STEPS, Broker, Crash, FakeOffsets, Fault, Slot

pytestmark = pytest.mark.usefixtures("no_waiting", "no_lag", "small_batches")

PAST, LIVE = [f"past-{number}" for number in range(40)], [f"live-{number}" for number in range(10)]
SEEN = Table("seen", source=EVENTS)
WATCHING, SENDING = Topology("gifts", (), (SEEN,), partitions=2), Topology("gifts", (), partitions=2)
VIEW = ProjectionProcessor(Projection(SEEN, lambda n, *_: n + 1, initial=0, events=(AccountOpened,), state=int))


def welcome(event: EventEnvelope[AccountOpened]) -> list[Send]:
    return [Send(COMMANDS, event.aggregate_id, OpenAccount())]


def greet(event: EventEnvelope[AccountOpened]) -> list[Send]:
    return [Send(COMMANDS, event.aggregate_id, OpenAccount())]


def policy(react: Any = welcome, **options: Any) -> PolicyProcessor:
    return PolicyProcessor(
        Policy(react, source=EVENTS, events=[AccountOpened], commands={COMMANDS: [OpenAccount]}, **options)
    )


LATE, COPIES = Table("late", source=EVENTS), Topic("gifts.copies.v1")
WITH_LATE = Topology("gifts", (COPIES,), (SEEN, LATE), partitions=2)
LATE_VIEW = ProjectionProcessor(replace(VIEW.projection, table=LATE))
FILL = Replay((LATE,), (EVENTS,), (EVENTS,))
REKEY = RekeyProcessor(Rekey({COPIES: lambda event: [event.aggregate_id]}, source=EVENTS, events=[AccountOpened]))


def charge(event: EventEnvelope[AccountOpened]) -> list[Send]:
    return [Send(COMMANDS, event.aggregate_id, Charge(amount_cents=5))]


BANK = Topology("accounts", (COMMANDS, EVENTS), (ACCOUNTS,), partitions=2, history=EVENTS)
NEXT = replace(BANK, version=2)
AGGREGATE = AggregateProcessor(DECIDER, table=ACCOUNTS, events=EVENTS)
WELCOME = PolicyProcessor(Policy(charge, source=EVENTS, events=[AccountOpened], commands={COMMANDS: [Charge]}))
EARLIER = PolicyProcessor(Policy(charge, source=COPIES, events=[AccountOpened], commands={COMMANDS: [Charge]}))


@pytest.fixture
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pace, "POLL_RECORDS", 3)
    monkeypatch.setattr(batch, "FULL_RECORDS", 3)


@pytest.fixture
def broker() -> Broker:
    topics = {topic.name for each in (WITH_LATE, BANK, NEXT) for topic in each.all_topics()}
    return Broker(sorted(topics), WATCHING.partitions, random.Random(1), WATCHING.group)


def worker(broker: Broker, name: str, processors: Sequence[Processor], *partitions: int) -> Assigned:
    topology = WITH_LATE if LATE_VIEW in processors else WATCHING if VIEW in processors else SENDING
    return Assigned(
        broker, name, *(partitions or (0, 1)), topology=topology, processors=processors, others=[EVENTS.name]
    )


def happen(broker: Broker, names: Sequence[str]) -> None:
    for name in names:
        broker.append(EVENTS.name, (name.encode(), encode(happened(AccountOpened(), aggregate_id=name))), None)


def read(broker: Broker, topic: str) -> Counter[str]:
    """The keys of its records."""
    records = (each for number in range(2) for each in broker.visible(Place(topic, number), 0))
    return Counter((each.key or b"").decode() for each in records)


def answered(broker: Broker) -> Counter[str]:
    return read(broker, COMMANDS.name)


def note_that_these_stand(broker: Broker, topology: Topology, *processors: Processor) -> None:
    """As `rebuild` does, before positions are moved back."""
    for number in (0, 1):
        begins = {each.name: broker.committed[Place(EVENTS.name, number)] for each in processors}
        row = PARKED_CODEC.encode(Row(1, note_of(number, {EVENTS.name: begins}), {}, 0))
        place = Place(topology.changelog(topology.parked).name, number)
        broker.slots[place].append(Slot(BEGINS_ID.encode(), row, None))


def read_again(broker: Broker, replay: Replay, *, copying: bool = False) -> None:
    """As `reprocess` does, in its first step, or if `copying`, in its last."""
    changelog = WITH_LATE.changelog(WITH_LATE.parked).name
    noted = {
        number: noted_in(PARKED_CODEC.decode(row).state)
        for number in (0, 1)
        if (row := broker.latest(Place(changelog, number)).get(BEGINS_ID.encode()))
    }
    for record in begin_where_it_stands(WITH_LATE, replay, dict(broker.committed), noted, copying=copying):
        broker.slots[Place(record.topic, record.partition)].append(Slot(record.key, record.value, None))
    broker.committed |= {Place(EVENTS.name, 0): 0, Place(EVENTS.name, 1): 0}


def charged(broker: Broker) -> Counter[str]:
    """The accounts that the policy has sent a charge to."""
    records = (each for number in (0, 1) for each in broker.visible(Place(COMMANDS.name, number), 0))
    return Counter((each.key or b"").decode() for each in records if b"account.charge" in (each.value or b""))


async def begun(broker: Broker, new: Assigned) -> None:
    await new.start()
    while not {(EVENTS.name, 0), (EVENTS.name, 1)} <= broker.committed.keys():
        await new.engine.step()
        await new.engine._settle()


async def until_it_dies(dying: Assigned) -> None:
    with suppress(Crash):
        await dying.work()


@pytest.mark.parametrize("processors", [[policy()], [policy(), VIEW]], ids=["alone", "beside_a_view"])
def test_a_policy_of_a_new_service_answers_no_event_of_the_past(broker: Broker, processors: list[Processor]) -> None:
    async def run() -> None:
        happen(broker, PAST)
        new = worker(broker, "w", processors)
        await begun(broker, new)
        happen(broker, LIVE)
        await new.go_on()

    asyncio.run(run())
    assert answered(broker) == Counter(LIVE)


@pytest.mark.parametrize("read_before", [0, len(PAST)])
def test_a_policy_that_is_added_to_a_service_goes_on_where_that_stands(broker: Broker, read_before: int) -> None:
    async def run() -> None:
        happen(broker, PAST[:read_before])
        await worker(broker, "before", [VIEW]).work()
        happen(broker, LIVE)
        await worker(broker, "after", [VIEW, policy()]).work()

    asyncio.run(run())
    assert answered(broker) == Counter(LIVE)


def test_a_policy_that_says_so_answers_all_from_the_first_event_on(broker: Broker) -> None:
    happen(broker, PAST)
    asyncio.run(worker(broker, "w", [policy(from_start=True), policy(greet, name="greet"), VIEW]).work())
    assert answered(broker) == Counter(PAST)


async def outlive_two_deaths(
    broker: Broker, processors: Sequence[Processor], step: str, between: Callable[[], Awaitable[None]]
) -> None:
    """Workers die at their first commit, and among the records of the past, then each partition has an owner.

    between: what happens before any of them, and after each death.
    """
    await between()
    happen(broker, PAST)
    first = worker(broker, "first", processors)
    first.producer.fault = Fault(step, "crash")
    await until_it_dies(first)
    await between()
    second = worker(broker, "second", processors)
    await begun(broker, second)
    happen(broker, LIVE[:5])
    second.producer.fault = Fault(step, "crash")
    with suppress(Crash):
        await second.go_on()
    happen(broker, LIVE[5:])
    await between()
    for number in (0, 1):
        await worker(broker, f"owner-{number}", processors, number).work()
    assert answered(broker) == Counter(LIVE)
    if VIEW in processors:
        assert read(broker, WATCHING.changelog(SEEN).name) == Counter([*PAST, *LIVE])


@pytest.mark.parametrize("step", [*TRANSACTION_STEPS, "after_commit"])
@pytest.mark.parametrize("processors", [[policy()], [policy(), VIEW]], ids=["alone", "beside_a_view"])
def test_no_event_of_the_past_is_answered_whoever_dies_and_whoever_takes_over(
    broker: Broker, processors: list[Processor], step: str
) -> None:
    async def take_over() -> None:
        broker.time_out()

    asyncio.run(outlive_two_deaths(broker, processors, step, take_over))


@pytest.mark.parametrize("step", [*TRANSACTION_STEPS, "after_commit"])
@pytest.mark.parametrize("processors", [[policy()], [policy(), VIEW]], ids=["alone", "beside_a_view"])
def test_owners_of_an_earlier_release_change_nothing_of_where_a_policy_begins(
    broker: Broker, processors: list[Processor], step: str
) -> None:
    """They do not know its source."""

    async def own_by_the_earlier() -> None:
        broker.time_out()
        for key in (b"a", b"b", b"c", b"d"):
            broker.append(COPIES.name, (key, encode(happened(AccountClosed(), aggregate_id=key.decode()))), None)
        topics = [COPIES.name]
        await Assigned(broker, "earlier", 0, 1, topology=SENDING, processors=[EARLIER], others=topics).work()

    asyncio.run(outlive_two_deaths(broker, processors, step, own_by_the_earlier))


def test_a_policy_that_comes_while_the_past_is_read_begins_where_the_others_do(broker: Broker) -> None:
    async def run() -> None:
        happen(broker, PAST)
        early = worker(broker, "early", [policy(), VIEW])
        await begun(broker, early)
        assert max(broker.committed[Place(EVENTS.name, number)] for number in (0, 1)) < len(PAST) // 4
        happen(broker, LIVE)
        await worker(broker, "late", [policy(), policy(greet, name="greet"), VIEW]).work()

    asyncio.run(run())
    assert answered(broker) == Counter([*LIVE, *LIVE])


def test_a_policy_may_read_the_history_of_its_service_which_the_next_version_reads_again(broker: Broker) -> None:
    """`rebuild` notes for the next version where the policies of this one stand."""

    def accounts(name: str, version: int) -> Assigned:
        topology = replace(BANK, version=version)
        return Assigned(broker, name, 0, 1, topology=topology, processors=wired(topology, [AGGREGATE, WELCOME]))

    async def run() -> None:
        await accounts("first", 1).work()
        for number, opened in enumerate(PAST[:4]):
            broker.append(COMMANDS.name, (opened.encode(), command(opened, f"c{number}", "account.open", {})), None)
        await accounts("second", 1).work()
        assert charged(broker) == Counter(PAST[:4])
        stands = dict(broker.committed)
        note_that_these_stand(broker, NEXT, WELCOME)
        for number in (0, 1):
            for table in (ACCOUNTS, outcomes_of(ACCOUNTS)):
                rows = broker.slots[Place(BANK.changelog(table).name, number)]
                broker.slots[Place(NEXT.changelog(table).name, number)].extend(rows)
            commands = Place(COMMANDS.name, number)
            broker.committed |= {commands: stands[commands], Place(EVENTS.name, number): 0}
        await accounts("next", 2).work()
        broker.append(COMMANDS.name, (b"live", command("live", "c9", "account.open", {})), None)
        await accounts("last", 2).work()

    asyncio.run(run())
    assert charged(broker) == Counter([*PAST[:4], "live"])


def test_a_new_view_is_filled_beside_others_and_beside_what_sends_and_copies(broker: Broker) -> None:
    """`reprocess` moves the position back, and notes who stands where."""
    beside = [policy(from_start=True), REKEY, VIEW]

    async def run() -> None:
        happen(broker, PAST)
        await worker(broker, "before", beside).work()
        read_again(broker, replace(FILL, passing=tuple((EVENTS, each.name) for each in beside[:2])))
        happen(broker, LIVE)
        after = worker(broker, "after", [*beside, LATE_VIEW])
        await after.work()
        await after.go_on()

    asyncio.run(run())
    everything = Counter([*PAST, *LIVE])
    assert answered(broker) == read(broker, COPIES.name) == everything
    for table in (SEEN, LATE):
        assert read(broker, WITH_LATE.changelog(table).name) == everything


@pytest.mark.parametrize("from_start", [False, True])
def test_a_policy_that_comes_while_a_view_is_filled_begins_where_the_service_stood(
    broker: Broker, from_start: bool
) -> None:
    """Although nothing that acts on the source was there to be noted."""

    async def run() -> None:
        happen(broker, PAST)
        await worker(broker, "before", [VIEW]).work()
        read_again(broker, FILL)
        await begun(broker, worker(broker, "filling", [VIEW, LATE_VIEW]))
        read_again(broker, FILL)  # a second time: the group stands at the start, and stood where it did
        happen(broker, LIVE)
        release = worker(broker, "release", [VIEW, LATE_VIEW, policy(from_start=from_start)])
        await release.work()
        await release.go_on()

    asyncio.run(run())
    assert answered(broker) == Counter(LIVE)
    assert read(broker, WITH_LATE.changelog(LATE).name) == Counter([*PAST, *LIVE])


@pytest.mark.parametrize("has_passed", [False, True])
def test_copies_are_made_again_once_they_are_skipped_and_not_before(broker: Broker, has_passed: bool) -> None:
    """What the Rekey has passed over is noted yet, from the fill of another view. One more comes amid the copying."""
    fill = replace(FILL, passing=((EVENTS, REKEY.name),))
    copies = replace(FILL, makers=((EVENTS, REKEY.name),))
    processors = [REKEY, VIEW, LATE_VIEW]

    async def work(name: str) -> None:
        working = worker(broker, name, processors)
        await working.work()
        for _ in range(2):
            await working.go_on()

    async def run() -> None:
        happen(broker, PAST)
        await work("before")
        if has_passed:
            read_again(broker, fill)
            await work("fill")
        read_again(broker, copies)
        await work("interrupted")
        assert read(broker, COPIES.name) == Counter(PAST)
        read_again(broker, copies)
        read_again(broker, copies, copying=True)
        some = worker(broker, "some", processors)
        await some.start()
        for _ in range(100):
            if sum(read(broker, COPIES.name).values()) > len(PAST):
                break
            await some.engine.step()
            await some.engine._settle()
        assert len(PAST) < sum(read(broker, COPIES.name).values()) < 2 * len(PAST)
        read_again(broker, fill)
        await work("both")

    asyncio.run(run())
    assert read(broker, COPIES.name) == Counter([*PAST, *PAST])


@pytest.mark.parametrize("step", ["before_offsets", "after_commit"])
@pytest.mark.parametrize("processors", [[policy()], [policy(), REKEY]], ids=["alone", "beside_a_rekey"])
def test_a_policy_begins_a_topic_that_was_made_again_at_its_start(
    broker: Broker, monkeypatch: pytest.MonkeyPatch, processors: list[Processor], step: str
) -> None:
    """Brokers forget the positions with the topic, but it is no topic that the service has never read."""

    async def run() -> None:
        happen(broker, PAST)
        before = worker(broker, "before", processors)
        await begun(broker, before)
        happen(broker, LIVE[:5])
        await before.go_on()
        for number in (0, 1):
            broker.slots[Place(EVENTS.name, number)].clear()
            del broker.committed[Place(EVENTS.name, number)]
        ids = FakeOffsets.topic_ids
        made_again = {EVENTS.name: "another id"}
        monkeypatch.setattr(FakeOffsets, "topic_ids", lambda fake, topics: ids(fake, topics) | made_again)
        happen(broker, LIVE[5:])
        dying = worker(broker, "dying", processors)
        dying.producer.fault = Fault(step, "crash")
        await until_it_dies(dying)
        broker.time_out()
        later = worker(broker, "later", processors)
        await later.work()
        await later.go_on()

    asyncio.run(run())
    assert answered(broker) == Counter(LIVE)
