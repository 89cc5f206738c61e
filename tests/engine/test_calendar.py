"""What comes at 09:00 of every day comes once for each, whoever takes over, and however long nobody runs.

On a simulated broker, over the weekend on which clocks are put forward.
"""

from __future__ import annotations

import asyncio
import random
from datetime import UTC, datetime, time, timedelta
from typing import Annotated, Literal

import pytest
from pydantic import Field

from shared.domain import Command, Decider, Event, EventEnvelope, Instant, State, every
from shared.engine.wiring import processors_of, wired
from shared.runtime.clock import brokers_clock
from shared.runtime.positions import Place
from shared.testing.conversation import Conversation
from shared.topology import Policy, Send, Service, Table, Timer, Topic, Topology
from tests.engine.assigned import Assigned
from tests.faults import simulated
from tests.faults.load import command
from tests.faults.simulated import CLOCK, Broker

pytestmark = pytest.mark.usefixtures("no_waiting", "no_lag", "clock")

FRIDAY = datetime(2026, 3, 27, 12, tzinfo=UTC)
LOOKS_S = 900.0  # how often what is not due is looked at again
TURN_S = 600.0
NINE, ZONE = time(9), "Europe/Berlin"
COMMANDS, EVENTS, TIMERS = (Topic(f"alarms.{kind}.v1") for kind in ("commands", "events", "timers"))
ALARMS = Table("alarms", source=COMMANDS)
TOPOLOGY = Topology("alarms", topics=(COMMANDS, EVENTS, TIMERS), tables=(ALARMS,), partitions=1)


class SetAlarm(Command):
    TYPE = "alarm.set"

    since: Instant


class RingAlarm(Command):
    TYPE = "alarm.ring"

    due: Instant


class AlarmSet(Event):
    TYPE = "alarm.was_set"

    due: Instant


class AlarmRang(Event):
    TYPE = "alarm.rang"

    due: Instant


class Silent(State):
    phase: Literal["silent"] = "silent"


class Armed(State):
    phase: Literal["armed"] = "armed"
    due: Instant


Alarm = Annotated[Silent | Armed, Field(discriminator="phase")]


def decide(command: SetAlarm | RingAlarm, alarm: Alarm) -> list[AlarmSet | AlarmRang]:
    match command, alarm:
        case SetAlarm(since=since), Silent():
            return [AlarmSet(due=every(since, NINE, ZONE))]
        case RingAlarm(due=due), Armed(due=awaited) if due == awaited:
            return [AlarmRang(due=due), AlarmSet(due=every(due, NINE, ZONE))]
        case _:
            return []


def evolve(alarm: Alarm, event: AlarmSet | AlarmRang) -> Alarm:
    return Armed(due=event.due) if isinstance(event, AlarmSet) else alarm


def set_timer(event: EventEnvelope[AlarmSet]) -> list[Send]:
    return [Send(TIMERS, event.aggregate_id, RingAlarm(due=event.data.due))]


DECIDER: Decider[SetAlarm | RingAlarm, AlarmSet | AlarmRang, Alarm] = Decider(
    decide, evolve, Silent(), (SetAlarm, RingAlarm), (AlarmSet, AlarmRang), Alarm
)
POLICY = Policy(set_timer, source=EVENTS, events=(AlarmSet,), commands={TIMERS: (RingAlarm,)}, from_start=True)
TIMER = Timer(source=TIMERS, target=COMMANDS, delay_s=LOOKS_S, due="due")
SERVICE = Service(TOPOLOGY, decider=DECIDER, policies=[POLICY], timers=[TIMER])


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(simulated, "EPOCH_S", FRIDAY.timestamp())
    monkeypatch.setattr(CLOCK, "now_s", 0.0)
    monkeypatch.setattr(brokers_clock, "now", lambda: FRIDAY.timestamp() + CLOCK.now_s)


@pytest.fixture
def broker() -> Broker:
    broker = Broker([topic.name for topic in TOPOLOGY.all_topics()], 1, random.Random(1), TOPOLOGY.group)
    for each in broker.clocks:
        each.ahead_s = 0.0
    since = {"since": FRIDAY.isoformat()}
    broker.append(COMMANDS.name, (b"a-1", command("a-1", "c-1", "alarm.set", since)), None)
    return broker


def rang(broker: Broker) -> list[tuple[datetime, datetime]]:
    """When each was due, and when it came."""
    found = []
    for read in broker.visible(Place(EVENTS.name, 0), 0):
        event = DECIDER.event_codec.decode(read.value).data
        if isinstance(event, AlarmRang):
            found.append((event.due, datetime.fromtimestamp(read.timestamp / 1000, UTC)))
    return found


async def run(broker: Broker, hours: float, restarts: float, chance: random.Random) -> None:
    """restarts: how likely another worker takes over at each turn."""
    ends, number, worker = CLOCK.now_s + hours * 3600, 0, None
    while CLOCK.now_s < ends:
        if worker is None or chance.random() < restarts:
            number += 1
            worker = Assigned(
                broker,
                f"w-{CLOCK.now_s}-{number}",
                0,
                topology=TOPOLOGY,
                processors=wired(TOPOLOGY, processors_of(SERVICE)),
            )
            await worker.start()
        await worker.go_on()
        CLOCK.now_s += TURN_S


MORNINGS = [datetime(2026, 3, day, hour, tzinfo=UTC) for day, hour in ((28, 8), (29, 7), (30, 7), (31, 7))]


def test_it_comes_once_a_day_in_time_whoever_takes_over(broker: Broker) -> None:
    asyncio.run(run(broker, 96, 0.05, random.Random(2)))
    assert [due for due, _ in rang(broker)] == MORNINGS
    latest = timedelta(seconds=LOOKS_S + 3 * TURN_S)
    assert [came for due, came in rang(broker) if not due <= came <= due + latest] == []


def test_what_was_due_while_nobody_ran_comes_afterwards_each_once_and_in_order(broker: Broker) -> None:
    chance = random.Random(3)
    asyncio.run(run(broker, 1, 0, chance))
    CLOCK.now_s += 72 * 3600
    asyncio.run(run(broker, 23, 0.1, chance))
    assert [due for due, _ in rang(broker)] == MORNINGS


@pytest.mark.parametrize("ahead_s", [-3600.0, 3600.0])
def test_a_clock_that_is_off_for_a_while_leaves_out_none_and_gives_none_twice(broker: Broker, ahead_s: float) -> None:
    chance = random.Random(4)
    for ahead in (0.0, ahead_s, 0.0):
        for each in broker.clocks:
            each.ahead_s = ahead
        asyncio.run(run(broker, 32, 0.1, chance))
    assert [due for due, _ in rang(broker)] == MORNINGS


def test_in_a_conversation_of_tests_each_is_due_at_its_turn() -> None:
    talk = Conversation(processors_of(SERVICE))
    talk.say(COMMANDS, "a-1", command("a-1", "c-1", "alarm.set", {"since": FRIDAY.isoformat()}))
    while len(talk.outcomes) < 3:
        talk.hear(talk.turns()[0])
    row = talk.row(processors_of(SERVICE)[0], "a-1")
    assert row is not None
    assert row.state == Armed(due=MORNINGS[2])
