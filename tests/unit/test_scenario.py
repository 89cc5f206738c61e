"""Given-when-then sentences fail when they are not true."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from enum import Enum, StrEnum
from functools import cached_property
from typing import Annotated, Any

import pytest
from pydantic import Field

from shared.domain.decider import Decider
from shared.domain.envelope import EventEnvelope
from shared.domain.errors import DomainError
from shared.domain.message import Command, Event, Part
from shared.domain.state import State
from shared.domain.times import Day, Instant
from shared.testing.scenario import Scenario, ViewScenario, happened, history
from shared.topology.projection import Projection
from shared.topology.topics import Table, Topic
from tests.accounts.domain.commands import AccountCommand, Charge, OpenAccount, Pay
from tests.accounts.domain.decide import DECIDER
from tests.accounts.domain.errors import Overpaid
from tests.accounts.domain.events import AccountCharged, AccountOpened

given = Scenario(DECIDER)

CHARGED = AccountCharged(amount_cents=2999)


def test_a_sentence_that_is_true_passes() -> None:
    given(AccountOpened()).when(Charge(amount_cents=2999)).then(CHARGED)


def test_other_events_than_expected_are_shown() -> None:
    with pytest.raises(AssertionError, match=r"amount_cents=2999.* instead of .*amount_cents=1"):
        given(AccountOpened()).when(Charge(amount_cents=2999)).then(AccountCharged(amount_cents=1))


def test_an_event_where_nothing_was_expected_is_shown() -> None:
    with pytest.raises(AssertionError, match="AccountCharged"):
        given(AccountOpened()).when(Charge(amount_cents=2999)).then_nothing()


def test_a_refusal_where_events_were_expected_is_shown() -> None:
    with pytest.raises(AssertionError, match=r"refused with account\.overpaid: .*2999 owed"):
        given(AccountOpened(), CHARGED).when(Pay(amount_cents=3000)).then()


def test_another_refusal_than_expected_is_shown() -> None:
    with pytest.raises(AssertionError, match=r"account\.unknown instead of a refusal with account\.closed"):
        given().when(Charge(amount_cents=1)).then_refused("account.closed")


def test_an_event_where_a_refusal_was_expected_is_shown() -> None:
    with pytest.raises(AssertionError, match="AccountCharged"):
        given(AccountOpened()).when(Charge(amount_cents=1)).then_refused("account.closed")


def test_a_history_holds_the_events_of_the_accepted_commands() -> None:
    charge = Charge(amount_cents=2999)
    asked: list[AccountCommand] = [charge, OpenAccount(), charge, OpenAccount()]
    assert history(DECIDER, asked) == [AccountOpened(), CHARGED]


class Store(Command):
    TYPE = "depot.store"

    item: str


class Stored(Event):
    TYPE = "depot.stored"

    item: str


class Depot(State):
    held: dict[str, int]


def stored_in_place(depot: Depot, event: Stored) -> Depot:
    depot.held[event.item] = 1
    return depot


def test_an_evolve_that_changes_the_state_it_is_given_is_found() -> None:
    """All new aggregates share `initial`: one would hold what another has stored."""
    at_depot = Scenario(
        Decider(
            decide=lambda command, _depot: [Stored(item=command.item)],
            evolve=stored_in_place,
            initial=Depot(held={}),
            commands=(Store,),
            events=(Stored,),
            state=Depot,
        )
    )
    with pytest.raises(AssertionError, match="changed the state it was given"):
        at_depot().when(Store(item="lamp"))
    with pytest.raises(AssertionError, match="changed the state it was given"):
        at_depot(Stored(item="bed"))


@pytest.mark.parametrize("refusal", [None, Overpaid("never")])
def test_a_decide_that_changes_the_state_it_is_given_is_found(refusal: DomainError | None) -> None:
    def decide(command: Store, depot: Depot) -> list[Stored]:
        depot.held[command.item] = 1
        if refusal is not None:
            raise refusal
        return [Stored(item=command.item)]

    at_depot = Scenario(
        Decider(
            decide=decide,
            evolve=lambda depot, _stored: depot,
            initial=Depot(held={}),
            commands=(Store,),
            events=(Stored,),
            state=Depot,
        )
    )
    with pytest.raises(AssertionError, match=r"decide changed the state it was given \(Store\(item='lamp'\)\); fix:"):
        at_depot().when(Store(item="lamp"))


class Shelf(State):
    free: Annotated[int, Field(ge=0)] = 1


def test_a_state_that_no_row_can_hold_is_found() -> None:
    """`model_copy` does not validate; a worker parks the command."""
    at_shelf = Scenario(
        Decider(
            decide=lambda command, _shelf: [Stored(item=command.item)],
            evolve=lambda shelf, _stored: shelf.model_copy(update={"free": shelf.free - 1}),
            initial=Shelf(),
            commands=(Store,),
            events=(Stored,),
            state=Shelf,
        )
    )
    at_shelf().when(Store(item="lamp")).then(Stored(item="lamp"))
    with pytest.raises(AssertionError, match=r"the state after Stored\(item='bed'\): state\.free: .*; fix: widen"):
        at_shelf(Stored(item="lamp")).when(Store(item="bed"))


class Active(State):
    uses: int = 0


class Suspended(State):
    uses: int = 0


class Status(Enum):
    CLOSED = "closed"


class Word(StrEnum):
    CLOSED = "closed"


class Gate(State):
    status: Status | None = None
    word: Word | str = ""
    seen: Sequence[str] = []
    share: float = 0.0


def led_to(after: Any, kind: Any, initial: Any) -> Scenario[Store, Stored, Any]:
    return Scenario(
        Decider(
            decide=lambda command, _state: [Stored(item=command.item)],
            evolve=lambda _state, _event: after,
            initial=initial,
            commands=(Store,),
            events=(Stored,),
            state=kind,
        )
    )


@pytest.mark.parametrize(
    ("kind", "initial", "after"),
    [
        (Active | Suspended, Active(), Suspended()),
        (Gate, Gate(), Gate().model_copy(update={"status": "closed"})),
        (Gate, Gate(), Gate(word=Word.CLOSED)),
        (Gate, Gate(), Gate(seen=("lamp",))),
        (Gate, Gate(), Gate().model_copy(update={"share": 1})),
        (dict[str, Gate], {}, {"a": Gate(seen=("lamp",))}),
    ],
)
def test_a_state_that_is_read_from_its_row_as_another_is_found(kind: Any, initial: Any, after: Any) -> None:
    """Within a batch a worker goes on with what `evolve` returned, and later with what it reads."""
    with pytest.raises(AssertionError, match=r"after Stored\(item='bed'\) is .*, and is read .* as .*; fix: declare"):
        led_to(after, kind, initial)(Stored(item="bed"))


def test_a_state_that_is_read_as_it_was_passes() -> None:
    at_gate = led_to(Gate(status=Status.CLOSED, word="open", seen=["lamp"], share=0.5), Gate, Gate())
    at_gate(Stored(item="bed")).when(Store(item="lamp")).then(Stored(item="lamp"))


def test_a_name_that_is_no_field_of_the_state_is_found() -> None:
    """`model_copy` takes any name, and neither `==` nor the row shows it."""
    gate = Gate().model_copy(update={"shares": 0.5})
    with pytest.raises(AssertionError, match=r"after Stored\(item='bed'\) has no field shares; fix: correct the name"):
        led_to(gate, Gate, Gate())(Stored(item="bed"))


class Hall(State):
    seats: tuple[int, ...] = ()

    @cached_property
    def free(self) -> int:
        return sum(self.seats)


def test_a_cached_property_of_the_state_is_no_field() -> None:
    hall = Hall(seats=(1, 2))
    assert hall.free == 3
    led_to(hall, Hall, Hall())(Stored(item="bed"))


class Email(Part, extra="forbid"):
    address: str


class Post(Part, extra="forbid"):
    address: str


class Moved(Event):
    TYPE = "depot.moved"

    to: Email | Post | None = None
    since: Day | Instant | None = None


class Move(Command):
    TYPE = "depot.move"

    to: Email | Post


@pytest.mark.parametrize("event", [Moved(to=Post(address="a")), Moved(since=datetime(1997, 1, 18, tzinfo=UTC))])
def test_an_event_that_is_read_as_another_is_found(event: Moved) -> None:
    decider = replace(DECIDER, decide=lambda *_: [event], events=(*DECIDER.events, Moved))  # type: ignore[arg-type]
    with pytest.raises(AssertionError, match=r"Moved\(.*\) is read from its JSON as Moved\(.*\); fix: declare"):
        Scenario(decider)(event)  # type: ignore[arg-type]
    with pytest.raises(AssertionError, match=r"Moved\(.*\) is read from its JSON as Moved\(.*\); fix: declare"):
        Scenario(decider)().when(Pay(amount_cents=1))


def test_a_command_that_is_read_as_another_is_found() -> None:
    decider = replace(DECIDER, commands=(*DECIDER.commands, Move))  # type: ignore[arg-type]
    with pytest.raises(AssertionError, match=r"Move\(to=Post\(.* as Move\(to=Email\("):
        Scenario(decider)().when(Move(to=Post(address="a")))  # type: ignore[arg-type]


def test_an_event_that_nobody_can_read_is_found() -> None:
    event = AccountCharged.model_construct(amount_cents="much")  # type: ignore[arg-type]
    with pytest.raises(AssertionError, match=r"nobody can read .*: amount_cents: .*; fix: "):
        given(event)


class Fetch(Command):
    TYPE = "depot.fetch"


class Fetched(Event):
    TYPE = "depot.fetched"


def test_a_message_that_is_not_declared_is_found() -> None:
    """A worker parks it."""
    at_depot = Scenario(replace(DECIDER, decide=lambda *_: [Fetched()]))
    with pytest.raises(AssertionError, match="not handle Fetch; fix: add it to the `commands` of the Decider"):
        at_depot().when(Fetch())  # type: ignore[arg-type]
    with pytest.raises(AssertionError, match="not handle Fetched; fix: add it to the `events` of the Decider"):
        at_depot().when(Pay(amount_cents=1))
    with pytest.raises(AssertionError, match="not handle Fetched"):
        at_depot(Fetched())  # type: ignore[arg-type]


BEDS = Table("beds", source=Topic("depot.events.v1"))
Beds = dict[str, int]


def beds(project: Callable[[Beds, EventEnvelope[Stored], str], Beds]) -> ViewScenario:
    return ViewScenario([Projection(BEDS, project, initial={}, events=(Stored,), state=Beds)], BEDS)


def counted(view: Beds, event: EventEnvelope[Stored], key: str) -> Beds:
    return {**view, key: view.get(key, 0) + event.sequence}


def test_a_sentence_about_a_view_that_is_true_passes() -> None:
    first, second = (happened(Stored(item="bed"), sequence=number) for number in (1, 2))
    beds(counted)("hall", first, second).shows({"hall": 3})
    beds(counted)("hall").shows({})


def test_a_view_that_shows_something_else_is_shown() -> None:
    with pytest.raises(AssertionError, match=r"\{'hall': 1\} instead of \{\}"):
        beds(counted)("hall", happened(Stored(item="bed"))).shows({})


def test_a_table_that_no_projection_fills_is_found() -> None:
    with pytest.raises(AssertionError, match="no projection fills beds; fix: add one to PROJECTIONS"):
        ViewScenario([], BEDS)("hall")


def test_a_project_that_changes_the_view_it_is_given_is_found() -> None:
    """All new rows share `initial`."""

    def project(view: Beds, event: EventEnvelope[Stored], key: str) -> Beds:
        view[key] = 1
        return dict(view)

    with pytest.raises(AssertionError, match=r"project changed the state it was given \(Stored\(.*; fix: make new"):
        beds(project)("hall", happened(Stored(item="bed")))


def test_a_view_that_is_read_as_another_is_found() -> None:
    with pytest.raises(AssertionError, match="no row can hold the state after Stored"):
        beds(lambda *_: {"hall": 0.5})("hall", happened(Stored(item="bed")))


def test_an_event_that_the_projection_does_not_declare_is_found() -> None:
    """A worker passes over it."""
    with pytest.raises(AssertionError, match="not handle Fetched; fix: add it to the `events` of the Projection"):
        beds(counted)("hall", happened(Fetched()))
