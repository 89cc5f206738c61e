"""A command of a policy takes effect once, and is not mistaken for that of another policy."""

import asyncio
import json
import re
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from typing import Any, get_args

import pytest
import structlog

from shared.domain.decider import Decider
from shared.domain.envelope import CommandCodec, EventCodec
from shared.domain.message import Command, Event
from shared.engine import processors
from shared.engine.processors import AggregateProcessor, PolicyProcessor, Processor, RekeyProcessor, TimerProcessor
from shared.engine.wiring import by_source
from shared.runtime.positions import Place
from shared.testing.conversation import Conversation
from shared.testing.node import MemoryNode
from shared.topology.policy import Policy, Send
from shared.topology.rekey import Rekey
from shared.topology.timer import Timer
from shared.topology.topics import Table, Topic, Topology
from tests.accounts.domain.commands import AccountCommand, Charge, OpenAccount, Pay
from tests.accounts.domain.decide import DECIDER
from tests.accounts.domain.events import AccountOpened
from tests.accounts.domain.state import Open
from tests.accounts.topology import ACCOUNTS, COMMANDS, EVENTS, TOPOLOGY

FACTS, STALL, TIMERS = Topic("shop.events.v1"), Topic("stall.events.v1"), Topic("shop.timers.v1")
SHOP = Topology("shop", topics=(FACTS,))


class Received(Event):
    TYPE = "shop.received"


class Reserved(Event):
    TYPE = "shop.reserved"


RECEIVED = EventCodec([Received]).write(
    Received(),
    event_id="e-1",
    aggregate_id="abba",
    sequence=1,
    occurred_at=datetime(1998, 3, 1, tzinfo=UTC),
    correlation_id="story-1",
)


class Refund(Command):
    TYPE = "account.refund"
    VERSION = 2

    cents: int


HISTORICAL = RECEIVED.replace(b'"data":', b'"historical":true,"data":')


def refund(_: object) -> list[Send]:
    return [Send(COMMANDS, "ann", Refund(cents=5))]


def answering(command: AccountCommand, name: str = "", event: type[Event] = Received, source: Topic = FACTS) -> Policy:
    return Policy(
        lambda _: [Send(COMMANDS, "ann", command)],
        source=source,
        events=[event],
        commands={COMMANDS: [type(command)]},
        name=name,
    )


def answered(*policies: Policy) -> list[str]:
    """The types of the events that accounts writes."""
    return [
        DECIDER.event_codec.decode(record.value).data.TYPE for record in conversation_of(*policies).log[EVENTS.name]
    ]


def conversation_of(*policies: Policy) -> Conversation:
    talk = Conversation([AggregateProcessor(DECIDER, table=ACCOUNTS, events=EVENTS), *map(PolicyProcessor, policies)])
    for source in dict.fromkeys(policy.source for policy in policies):
        talk.say(source, "abba", RECEIVED)
    talk.run(lambda turns: turns[0])
    return talk


def test_two_commands_for_one_event_both_take_effect_when_one_policy_has_a_name() -> None:
    assert answered(answering(OpenAccount()), answering(Charge(amount_cents=5), name="bonus")) == [
        "account.opened",
        "account.charged",
    ]


def test_events_of_two_services_with_one_id_are_both_answered() -> None:
    assert answered(answering(OpenAccount()), answering(Charge(amount_cents=5), source=STALL)) == [
        "account.opened",
        "account.charged",
    ]


def test_a_policy_passes_over_a_historical_event_also_over_a_copy_of_it() -> None:
    policies = answering(OpenAccount()), answering(OpenAccount(), source=STALL)
    copying = Rekey({STALL: lambda _: ["bob"]}, source=FACTS, events=[Received])
    talk = Conversation([RekeyProcessor(copying), *map(PolicyProcessor, policies)])
    talk.say(FACTS, "abba", HISTORICAL)
    talk.run(lambda turns: turns[0])
    assert [record.value for record in talk.log[STALL.name]] == [HISTORICAL]
    assert talk.log[COMMANDS.name] == []


def test_a_policy_that_asks_for_historical_events_answers_them_as_others() -> None:
    policy = Policy(refund, source=FACTS, events=[Received], commands={COMMANDS: [Refund]}, historical=True)
    assert [*policy.sends(HISTORICAL)] == [*policy.sends(RECEIVED)] != []


def test_the_id_of_a_policys_command_is_the_same_in_every_release() -> None:
    (sent,) = answering(OpenAccount()).sends(RECEIVED)
    assert sent.command_id == "4fdba011-ac72-5a46-89fd-f994fc85c0ee"


def test_a_command_that_is_lost_to_an_equal_id_is_logged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processors, "log", structlog.get_logger())  # one that was used before can't be captured
    with structlog.testing.capture_logs() as lines:
        assert answered(answering(OpenAccount()), answering(Charge(amount_cents=5))) == ["account.opened"]
    (line,) = lines
    assert line["log_level"] == "warning"
    assert "its id is that of an earlier one" in line["event"]
    assert (line["type"], line["causation_id"], line["earlier"]) == ("account.charge", "e-1", "sequence 1, accepted")


def test_a_command_that_is_lost_to_an_equal_id_is_a_dead_letter() -> None:
    talk = conversation_of(answering(OpenAccount()), answering(Charge(amount_cents=5)))
    (letter,) = (json.loads(record.value) for record in talk.log["dead-letters"])
    lost = talk.log[COMMANDS.name][letter["offset"]]
    assert json.loads(lost.value)["type"] == "account.charge"
    assert (letter["topic"], letter["code"]) == (COMMANDS.name, "command.id_reused")
    assert letter["reason"] == "its id is that of an earlier one with another body: sequence 1, accepted"


def test_a_policy_in_memory_answers_an_event_once_its_row_is_there() -> None:
    def welcome(_: object) -> list[Send]:
        return [Send(COMMANDS, "ann", Charge(amount_cents=5))]

    policy = Policy(welcome, source=EVENTS, events=[AccountOpened], commands={COMMANDS: [Charge]})
    node = MemoryNode(
        replace(TOPOLOGY, history=None),
        [AggregateProcessor(DECIDER, table=ACCOUNTS, events=EVENTS), PolicyProcessor(policy)],
    )
    codec, issued_at = DECIDER.command_codec, datetime(1998, 3, 1, tzinfo=UTC)
    opening = codec.wrap(OpenAccount(), command_id="c-1", aggregate_id="ann", issued_at=issued_at)
    asyncio.run(node.append(COMMANDS, b"ann", codec.encode(opening)))
    row = node.read(ACCOUNTS, node.partition(b"ann"), b"ann")
    assert row is not None
    assert (row.sequence, row.state) == (2, Open(balance_cents=5))


class Arrive(Command):
    TYPE = "parcel.arrive"


class Arrived(Event):
    TYPE = "parcel.arrived"


class Weighed(Event):
    TYPE = "parcel.weighed"


LONG = 1_000
"""Chains of so many answers end there; as nested calls, Python would refuse them."""
PARCELS = Table("parcels", source=Topic("parcels.commands.v1"))
PARCEL: Decider[Any, Any, int] = Decider(
    decide=lambda _, seen: [] if seen > LONG else [Arrived(), Weighed()],
    evolve=lambda seen, _: seen + 1,
    initial=0,
    commands=(Arrive,),
    events=(Arrived, Weighed),
    state=int,
)


def test_in_memory_all_events_of_a_command_come_before_the_answers_to_them() -> None:
    events, codec = Topic("parcels.events.v1"), PARCEL.command_codec
    again = Policy(
        lambda event: [Send(PARCELS.source, event.aggregate_id, Arrive())],
        source=events,
        events=[Arrived],
        commands={PARCELS.source: [Arrive]},
    )
    topology = Topology("parcels", (PARCELS.source, events), (PARCELS,))
    node = MemoryNode(topology, [AggregateProcessor(PARCEL, table=PARCELS, events=events), PolicyProcessor(again)])
    arrive = codec.wrap(Arrive(), command_id="c-1", aggregate_id="p-1", issued_at=datetime(1998, 3, 1, tzinfo=UTC))
    asyncio.run(node.append(PARCELS.source, b"p-1", codec.encode(arrive)))
    log = node.logs[Place(events.name, node.partition(b"p-1"))]
    assert [PARCEL.event_codec.decode(value).sequence for value in log] == list(range(1, LONG + 3))


def test_in_memory_a_timer_that_is_always_set_again_is_found() -> None:
    late = Topic("shop.timers.v2")
    there, back = Timer(source=TIMERS, target=late, delay_s=9.0), Timer(source=late, target=TIMERS, delay_s=9.0)
    node = MemoryNode(SHOP, [TimerProcessor(there), TimerProcessor(back)])
    with pytest.raises(RecursionError, match=r"one of shop\.timers\.v1; fix: end the cycle .* no Timer here, because"):
        asyncio.run(node.append(TIMERS, b"a", b""))


def test_a_repeat_is_not_logged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processors, "log", structlog.get_logger())  # one that was used before can't be captured
    with structlog.testing.capture_logs() as lines:
        assert answered(answering(OpenAccount()), answering(OpenAccount())) == ["account.opened"]
    assert not lines


def test_two_policies_of_a_service_that_send_with_one_id_are_refused() -> None:
    one, other = PolicyProcessor(answering(OpenAccount())), PolicyProcessor(answering(Pay(amount_cents=5)))
    one.name, other.name = "policy.open", "policy.pay"
    with pytest.raises(ValueError, match=r"policy\.open and policy\.pay answer the same event"):
        by_source(SHOP, [one, other])


@pytest.mark.parametrize(
    ("source", "other", "refusal"),
    [
        (
            FACTS,
            PolicyProcessor(answering(Pay(amount_cents=5), source=STALL)),
            r"several processors are called policy\.<lambda>; fix: rename the function",
        ),
        (
            TIMERS,
            TimerProcessor(Timer(source=TIMERS, target=STALL, delay_s=9.0)),
            r"a Timer and other processors.* read shop\.timers\.v1; fix: give the Timer a topic",
        ),
    ],
)
def test_processors_that_cannot_share_a_worker_are_refused_with_a_fix(
    source: Topic, other: Processor, refusal: str
) -> None:
    processors = [PolicyProcessor(answering(OpenAccount(), source=source)), other]
    with pytest.raises(ValueError, match=refusal):
        by_source(SHOP, processors)
    with pytest.raises(ValueError, match=refusal):
        MemoryNode(SHOP, processors)


@pytest.mark.parametrize("other", [answering(Pay(amount_cents=5), "pay"), answering(OpenAccount(), "", Reserved)])
def test_policies_with_different_names_or_events_are_accepted(other: Policy) -> None:
    one, two = PolicyProcessor(answering(OpenAccount())), PolicyProcessor(other)
    two.name = "policy.other"
    assert by_source(SHOP, [one, two])[FACTS.name] == [one, two]


def test_a_policy_sends_a_command_of_a_later_version_without_upcasters() -> None:
    (sent,) = Policy(refund, source=FACTS, events=[Received], commands={COMMANDS: [Refund]}).sends(RECEIVED)
    reader: CommandCodec[Refund] = CommandCodec([Refund], {("account.refund", 1): dict})
    assert (reader.decode(sent.body).schema_version, reader.decode(sent.body).data) == (2, Refund(cents=5))


@pytest.mark.parametrize("declared", [{}, {Topic("till.commands.v1"): [Refund]}, {COMMANDS: [Pay]}])
def test_a_command_that_a_policy_does_not_declare_is_refused(declared: dict[Topic, list[type[Command]]]) -> None:
    policy = Policy(refund, source=FACTS, events=[Received], commands=declared)
    refusal = "policy.refund sends Refund to accounts.commands.v1: add it to the commands of its Policy"
    with pytest.raises(TypeError, match=re.escape(refusal)):
        list(policy.sends(RECEIVED))


def test_a_policy_without_types_is_refused() -> None:
    def policy(events: Sequence[type[Event]], commands: Sequence[type[Command]]) -> Policy:
        return Policy(refund, source=FACTS, events=events, commands={COMMANDS: commands})

    with pytest.raises(ValueError, match="no message types"):
        policy(get_args(Received), [Refund])
    with pytest.raises(ValueError, match="no message types"):
        policy([Received], get_args(Refund))


def test_a_policy_without_a_name_is_refused() -> None:
    with pytest.raises(TypeError, match=r"functools\.partial.* has no name .*fix: give Policy a function"):
        Policy(partial(refund), source=FACTS, events=[Received], commands={COMMANDS: [Refund]})


def test_an_event_without_a_type_is_refused() -> None:
    class Nameless(Event):
        pass

    with pytest.raises(ValueError, match=r"without a TYPE: \['Nameless'\]"):
        answering(OpenAccount(), event=Nameless)
