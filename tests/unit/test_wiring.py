"""Processors that do not fit each other or the topology are refused at start-up, with the fix."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from decimal import Decimal
from typing import Any

import pytest

from shared.domain.envelope import EventEnvelope
from shared.domain.personal import Personal
from shared.domain.state import State
from shared.engine.processors import AggregateProcessor, ProjectionProcessor, TimerProcessor
from shared.engine.wiring import processors_of, wired
from shared.runtime.checkout import CHECKOUT, found_services
from shared.topology.declaration import Service
from shared.topology.join import Join
from shared.topology.policy import Policy, Send
from shared.topology.projection import Projection
from shared.topology.publication import Publication
from shared.topology.rekey import Rekey
from shared.topology.timer import Timer
from shared.topology.topics import KEPT_FOR_EVER, Table, Topic, Topology
from tests.accounts.domain.commands import OpenAccount
from tests.accounts.domain.decide import DECIDER
from tests.accounts.domain.events import AccountOpened
from tests.accounts.topology import ACCOUNTS, COMMANDS, EVENTS, TOPOLOGY


def test_a_table_that_no_processor_fills_is_refused_at_start_up() -> None:
    with pytest.raises(ValueError, match=r"^accounts: nothing fills the table accounts; fix: give its Service the"):
        wired(TOPOLOGY, [])


@pytest.mark.parametrize(
    ("commands", "events", "kind"), [("jobs", "events", "commands"), ("commands", "facts", "events")]
)
def test_a_topic_whose_name_tells_another_kind_is_refused_at_start_up(commands: str, events: str, kind: str) -> None:
    """The mirror would leave it out."""
    topics = Topic(f"accounts.{commands}.v1"), Topic(f"accounts.{events}.v1")
    table = replace(ACCOUNTS, source=topics[0])
    aggregate = AggregateProcessor(DECIDER, table=table, events=topics[1])
    with pytest.raises(ValueError, match=rf" holds {kind}, and .*; fix: call it accounts\.{kind}\.v1"):
        wired(Topology("accounts", topics, (table,)), [aggregate])


def test_timers_that_are_called_something_else_are_refused_at_start_up() -> None:
    topology = Topology("accounts", (COMMANDS, Topic("accounts.waits.v1")))
    waits = TimerProcessor(Timer(source=topology.topics[1], target=COMMANDS, delay_s=1.0))
    with pytest.raises(ValueError, match=r"accounts\.waits\.v1 holds timers, .*; fix: call it accounts\.timers\.v1"):
        wired(topology, [waits])


def test_timers_that_nothing_reads_are_refused_at_start_up() -> None:
    topology = Topology("accounts", (Topic("accounts.timers.v1"),))
    with pytest.raises(
        ValueError, match=r"^accounts: nothing reads accounts\.timers\.v1, .*; fix: give its Service a Timer"
    ):
        wired(topology, [])


@pytest.mark.parametrize("service", found_services())
@pytest.mark.parametrize(
    ("module", "part", "field"),
    [
        ("policies", Policy, "policies"),
        ("projections", Projection, "projections"),
        ("projections", Rekey, "rekeys"),
        ("projections", Join, "joins"),
        ("public", Publication, "publications"),
        ("topology", Timer, "timers"),
    ],
)
def test_what_a_service_says_of_events_is_in_its_declaration(service: str, module: str, part: type, field: str) -> None:
    """Without it, nobody would notice that nothing is sent, or that a view stays empty."""
    if not (CHECKOUT / "services" / service / f"{module}.py").exists():
        return
    named = vars(importlib.import_module(f"services.{service}.{module}")).values()
    made = [each for value in named for each in (value if isinstance(value, list | tuple) else [value])]
    declared = getattr(importlib.import_module(f"services.{service}.service").SERVICE, field)
    forgotten = [each for each in made if isinstance(each, part) and each not in declared]
    assert not forgotten, f"fix: {field}=… in services/{service}/service.py"


def test_a_decider_without_a_table_or_a_topic_of_its_own_is_refused() -> None:
    lacking = replace(TOPOLOGY, tables=(), history=None), replace(TOPOLOGY, topics=(COMMANDS,), history=None)
    for topology, what in zip(lacking, ("tables of commands", "topics of events"), strict=True):
        with pytest.raises(ValueError, match=rf"^accounts has a decider, and 0 {what}: none; fix: declare one in"):
            Service(topology, decider=DECIDER)


def test_records_can_be_retried_that_are_parked_under_the_name_of_a_rekey() -> None:
    copies = {Topic("accounts.copies.v1"): lambda _: ()}
    with pytest.raises(ValueError, match=r"not a legal name: 'by/region'; fix: "):
        Rekey(copies, source=EVENTS, events=[AccountOpened], name="by/region")


def test_a_service_runs_all_that_it_declares() -> None:
    copies = Rekey({Topic("accounts.copies.v1"): lambda _: ()}, source=EVENTS, events=[AccountOpened])
    answer = Policy(_nothing, source=EVENTS, events=[AccountOpened], commands={})
    projection = view_in(Table("baskets", source=EVENTS)).projection
    waits = Timer(source=Topic("accounts.timers.v1"), target=COMMANDS, delay_s=1.0)
    declared = Service(
        TOPOLOGY, decider=DECIDER, rekeys=[copies], policies=[answer], timers=[waits], projections=[projection]
    )
    found = [each.name for each in processors_of(declared)]
    assert found[:2] == ["accounts", "rekey.accounts.events.v1"]
    assert found[2:] == ["policy._nothing", "delay.accounts.timers.v1", "baskets"]


def test_a_service_has_the_neighbours_whose_topics_it_reads_or_writes() -> None:
    """Brokers let it, and `provision` compares the numbers of partitions."""
    facts, theirs, found, kept = (Topic(f"{each}.v1") for each in ("a.events", "b.events", "c.events", "d.events"))
    asks, rings = Topic("b.commands.v1"), Topic("e.commands.v1")
    service = Service(
        replace(
            TOPOLOGY,
            topics=(*TOPOLOGY.topics, Topic("accounts.timers.v1")),
            tables=(ACCOUNTS, Table("baskets", source=found)),
        ),
        decider=DECIDER,
        rekeys=[Rekey({EVENTS: lambda _: ()}, source=facts, events=[AccountOpened])],
        policies=[Policy(_nothing, source=theirs, events=[AccountOpened], commands={asks: [OpenAccount]})],
        timers=[Timer(source=Topic("accounts.timers.v1"), target=rings, delay_s=1.0)],
        reads=[kept, EVENTS],
    )
    assert service.neighbours == [found, facts, theirs, asks, rings, kept]


def test_a_service_that_would_read_the_commands_of_another_is_refused() -> None:
    """It would be let write them."""
    with pytest.raises(ValueError, match=r"^accounts reads b\.commands\.v1, and .*; fix: read its events, or send it"):
        Service(TOPOLOGY, reads=[Topic("b.commands.v1")])


def test_of_two_topics_of_events_the_deciders_can_be_named() -> None:
    """One is kept for its readers while the service goes over to the other."""
    both = replace(TOPOLOGY, topics=(*TOPOLOGY.topics, later := Topic("accounts.events.v2")))
    assert Service(both, decider=DECIDER, writes=later).events == later
    with pytest.raises(ValueError, match=r"2 topics of events: .*; fix: declare one in topology\.py, or .* `writes`"):
        Service(both, decider=DECIDER)
    with pytest.raises(ValueError, match=r"0 topics of events: none; fix: "):
        Service(TOPOLOGY, decider=DECIDER, writes=later)


def _nothing(_event: EventEnvelope[AccountOpened]) -> Sequence[Send]:
    return ()


def test_a_processor_of_an_undeclared_table_is_refused_at_start_up() -> None:
    aggregate = AggregateProcessor(DECIDER, table=ACCOUNTS, events=EVENTS)
    with pytest.raises(ValueError, match=r"its topology lacks the table others, .*; fix: add it to `tables`"):
        wired(replace(TOPOLOGY, history=None), [aggregate, view_in(Table("others", source=EVENTS))])


def test_a_second_aggregate_is_refused_at_start_up() -> None:
    """Their events would follow each other's under one id, and each would be folded with the other's decider."""
    tables = (ACCOUNTS, Table("wallets", source=COMMANDS))
    aggregates = [AggregateProcessor(DECIDER, table=table, events=EVENTS) for table in tables]
    with pytest.raises(
        ValueError, match=r"^accounts has several aggregates, accounts, wallets, .*; fix: put each of the others into a"
    ):
        wired(replace(TOPOLOGY, tables=tables), aggregates)


@pytest.mark.parametrize("compacted", [COMMANDS, EVENTS], ids=lambda topic: topic.kind)
def test_commands_and_events_that_are_compacted_are_refused_at_start_up(compacted: Topic) -> None:
    """Brokers would remove a command that no worker has read, or an event that history and `rebuild` need."""
    lossy = replace(compacted, cleanup="compact")
    commands, events = (lossy if topic == compacted else topic for topic in (COMMANDS, EVENTS))
    accounts = replace(ACCOUNTS, source=commands)
    topology = replace(TOPOLOGY, topics=(commands, events), tables=(accounts,), history=events)
    with pytest.raises(ValueError, match=rf"^accounts: {compacted.name} is compacted, .*; fix: leave out its"):
        wired(topology, [AggregateProcessor(DECIDER, table=accounts, events=events)])


def test_a_view_may_read_a_compacted_topic() -> None:
    results = Topic("accounts.results.v1", cleanup="compact")
    table = Table("latest", source=results)
    projection = Projection(table, lambda view, *_: view, initial=None, events=(AccountOpened,), state=Basket | None)
    wired(Topology("accounts", (results,), (table,)), [ProjectionProcessor(projection)])


def set_timers(kept_ms: int) -> None:
    timers = Topic("accounts.timers.v1", retention_ms=kept_ms)
    wired(Topology("accounts", (timers,)), [TimerProcessor(Timer(source=timers, target=COMMANDS, delay_s=3600))])


@pytest.mark.parametrize("kept_ms", [1000, 3_600_000])
def test_timers_that_their_topic_does_not_keep_until_they_are_due_are_refused_at_start_up(kept_ms: int) -> None:
    with pytest.raises(ValueError, match=rf"waits 3600 s, .* for {kept_ms // 1000} s; fix: raise its retention_ms"):
        set_timers(kept_ms)


@pytest.mark.parametrize("kept_ms", [KEPT_FOR_EVER, 3_600_001])
def test_timers_that_are_kept_longer_than_they_wait_are_accepted(kept_ms: int) -> None:
    set_timers(kept_ms)


@pytest.mark.parametrize("index", ["balance", ("phase", "balance")], ids=str)
def test_an_index_on_no_field_of_the_state_is_refused_at_start_up(index: str | tuple[str, ...]) -> None:
    table = replace(ACCOUNTS, indexes=("phase", index))
    aggregate = AggregateProcessor(DECIDER, table=table, events=EVENTS)
    with pytest.raises(ValueError, match=r"the state in the table accounts has no field 'balance'; fix: correct its"):
        wired(replace(TOPOLOGY, tables=(table,)), [aggregate])


class Basket(State):
    lines: tuple[str, ...] = ()
    inner: State | None = None
    label: str | list[str] = ""
    name: Personal = None
    price: Decimal | None = None
    waited: timedelta = timedelta()
    nothing: None = None
    anything: Any = None


def view_in(table: Table) -> ProjectionProcessor:
    return ProjectionProcessor(
        Projection(table, lambda view, *_: view, initial=Basket(), events=(AccountOpened,), state=Basket | None)
    )


def index_baskets(field: str) -> None:
    table = Table("baskets", source=EVENTS, indexes=(field,))
    wired(replace(TOPOLOGY, tables=(table,), history=None), [view_in(table)])


@pytest.mark.parametrize(
    ("field", "kind"), [("lines", "array"), ("inner", "null or object"), ("name", "encrypted or null")]
)
def test_an_index_on_what_has_no_order_is_refused_at_start_up(field: str, kind: str) -> None:
    """Otherwise the first row with a value would stop the worker."""
    with pytest.raises(
        ValueError, match=rf"{field!r} in the table baskets is {kind} in JSON, and an index holds null, .*; fix: index"
    ):
        index_baskets(field)


@pytest.mark.parametrize(("field", "kind"), [("price", "decimal"), ("waited", "duration")])
def test_an_index_on_what_would_sort_as_text_is_refused_at_start_up(field: str, kind: str) -> None:
    """11900.00 would come before 1190.00."""
    with pytest.raises(
        ValueError, match=rf"{field!r} in the table baskets is a {kind}, .* as text; fix: index a whole"
    ):
        index_baskets(field)


@pytest.mark.parametrize("field", ["label", "nothing", "anything"])
def test_an_index_on_what_may_have_an_order_is_accepted(field: str) -> None:
    index_baskets(field)
