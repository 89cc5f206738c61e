"""What releases can handle is compared as an operator means it: what was there before is still read."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from enum import StrEnum
from typing import Any, Literal

import pytest
from pydantic import AliasChoices, Field

from shared.domain import Event, State
from shared.engine.abilities import Abilities, abilities_of, chosen, lacking, refusal
from shared.engine.processors import Processor, ProjectionProcessor, RekeyProcessor
from shared.topology.projection import Projection
from shared.topology.rekey import Rekey
from shared.topology.topics import IDEMPOTENCY_HOURS_MIN, Table, Topic, Topology

EVENTS = Topic("shop.events.v1")
TOTALS = Table("totals", source=EVENTS)


class Total(State):
    cents: int = 0


class Sold(Event):
    TYPE = "shop.sold"

    amount: str


class Returned(Event):
    TYPE = "shop.returned"


class Kind(StrEnum):
    ONE = "one"
    TWO = "two"


def of(
    state: Any = Total,
    *events: type[Event],
    table: Table = TOTALS,
    more: tuple[Processor, ...] = (),
    hours: int = IDEMPOTENCY_HOURS_MIN,
) -> Abilities:
    topology = Topology("shop", topics=(EVENTS,), tables=(table,), idempotency_hours=hours)
    upcasters = {(each.TYPE, 1): dict[str, Any] for each in events if each.VERSION == 2}
    view: Projection[Any, Any] = Projection(
        table, lambda total, *_: total, state(), events or (Sold,), state, upcasters
    )
    return abilities_of(topology, {EVENTS.name}, [ProjectionProcessor(view), *more])


def a_new_event() -> Abilities:
    return of(Total, Sold, Returned)


def a_field_of_an_event() -> Abilities:
    class Noted(Sold):
        note: str = ""

    return of(Total, Noted)


def a_version_with_other_fields() -> Abilities:
    class Sold2(Event):
        TYPE = "shop.sold"
        VERSION = 2

        amount_cents: int

    return of(Total, Sold2)


def a_renamed_field() -> Abilities:
    class Renamed(Event):
        TYPE = "shop.sold"

        price: str = Field(validation_alias=AliasChoices("price", "amount"))

    return of(Total, Renamed)


def a_value_of_an_event() -> Abilities:
    class Of(Sold):
        kind: Kind = Kind.ONE

    return of(Total, Of)


def a_field_of_rows() -> Abilities:
    class Counted(Total):
        count: int = 0

    return of(Counted)


def a_part_of_rows() -> Abilities:
    class Line(State):
        sku: str
        before: Line | None = None

    class Lined(Total):
        lines: tuple[Line, ...] = ()

    return of(Lined)


def another_processor() -> Abilities:
    rekey = Rekey({Topic("shop.by-day.v1"): lambda _: []}, source=EVENTS, events=(Sold,))
    return of(more=(RekeyProcessor(rekey),))


def rows_that_end() -> Abilities:
    return of(table=replace(TOTALS, ends=True))


def a_longer_memory() -> Abilities:
    return of(hours=36)


@pytest.mark.parametrize(
    "later",
    [
        a_new_event,
        a_field_of_an_event,
        a_version_with_other_fields,
        a_renamed_field,
        a_value_of_an_event,
        a_field_of_rows,
        a_part_of_rows,
        another_processor,
        rows_that_end,
        a_longer_memory,
    ],
)
def test_a_later_release_can_handle_all_that_the_former_can(later: Callable[[], Abilities]) -> None:
    assert not lacking(later(), of())
    assert lacking(of(), later())


def test_who_knows_commands_for_longer_also_knows_them_for_less() -> None:
    assert not lacking(of(hours=48), a_longer_memory())
    assert lacking(a_longer_memory(), of(hours=48)) == {"commands are known for 48 h"}


def test_a_new_phase_is_told_from_a_field_of_another() -> None:
    class Open(State):
        phase: Literal["open"] = "open"

    class Closed(State):
        phase: Literal["closed"] = "closed"
        note: str = ""

    class Noted(Open):
        note: str = ""

    first, later = (
        abilities_of(Topology("shop", (EVENTS,), (TOTALS,)), (), [ProjectionProcessor(view)])
        for view in (
            Projection[Any, Any](TOTALS, lambda total, *_: total, Open(), (Sold,), Open | Closed),
            Projection[Any, Any](TOTALS, lambda total, *_: total, Noted(), (Sold,), Noted | Closed),
        )
    )
    assert lacking(first, later) == {"rows of totals have open.note"}


def test_a_refactored_release_can_handle_the_same() -> None:
    class Sale(Event):
        """Another name, and another docstring."""

        TYPE = "shop.sold"

        amount: str

    assert of(Total, Sale) == of()


OLD, NEW, OTHER = (frozenset(names) for names in (["a"], ["a", "b"], ["a", "c"]))


@pytest.mark.parametrize(
    ("members", "held", "expected"),
    [
        ({"1": OLD, "2": OLD}, {"1": 4, "2": 4}, OLD),
        ({"1": OLD, "2": NEW}, {"1": 8, "2": 0}, NEW),
        ({"1": OLD, "2": NEW}, {"1": 0, "2": 8}, NEW),
        ({"1": NEW, "2": OTHER}, {"1": 0, "2": 8}, OTHER),
        ({"1": NEW, "2": OTHER, "3": NEW}, {"1": 0, "2": 0, "3": 0}, NEW),
        ({"1": NEW, "2": OTHER, "3": NEW | OTHER}, {"1": 4, "2": 4, "3": 0}, NEW | OTHER),
    ],
    ids=["equal", "the first of a release", "the last but one", "who holds most", "who are most", "who can do both"],
)
def test_partitions_go_to_those_that_can_do_most(
    members: dict[str, Abilities], held: dict[str, int], expected: Abilities
) -> None:
    assert chosen(members, held) == expected


def test_who_is_refused_is_told_what_differs_and_what_to_do() -> None:
    assert refusal("shop", NEW, OTHER) == (
        "workers of another release are in the group: they can handle c, and this one can't; it can handle b, and they "
        "can't; fix: release what is new first, and take away what is to go with the next release; or stop all workers "
        "of shop, then start those of this release"
    )
