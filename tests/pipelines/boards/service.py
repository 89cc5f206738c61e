"""A service with a reference table: where each flight goes, with the names of its airports."""

from itertools import count
from typing import Any

from shared.domain import Event, State
from shared.testing.scenario import NOON
from shared.topology import Join, Projection, Rekey, Service, Table, Topic, Topology

PLANNED, NAMED = Topic("planes.events.v1"), Topic("maps.events.v1")
COPIES = Topic("flights.airports.v1")
ROUTES = Table("routes", source=PLANNED, indexes=("origin", "target"), ends=True)
AIRPORTS = Table.reference("airports", COPIES, indexes=("name",), ends=True)
BOARD = Table.joined("board", ROUTES, refers={"origin": AIRPORTS, "target": AIRPORTS}, indexes=("going_to",))
TOPOLOGY = Topology("flights", topics=(COPIES,), tables=(ROUTES, AIRPORTS, BOARD), partitions=3)


class Planned(Event):
    TYPE = "flight.planned"

    origin: str
    target: str | None


class Named(Event):
    """Without a name it is closed."""

    TYPE = "airport.named"

    name: str


class Route(State):
    origin: str
    target: str | None


class Airport(State):
    name: str
    names: int  # it has had, so their order and number matter


class Shown(State):
    coming_from: str
    going_to: str


def planned(_route: Route | None, event: Any, _flight: str) -> Route | None:
    """A flight from nowhere is cancelled."""
    return Route(origin=event.data.origin, target=event.data.target) if event.data.origin else None


def named(airport: Airport | None, event: Any, _code: str) -> Airport | None:
    return Airport(name=event.data.name, names=1 + (airport.names if airport else 0)) if event.data.name else None


def board(route: Route, origin: Airport | None, target: Airport | None, _flight: str) -> Shown:
    return Shown(coming_from=_shown(route.origin, origin), going_to=_shown(route.target, target))


def _shown(code: str | None, airport: Airport | None) -> str:
    return f"{airport.name} {airport.names}" if airport else code or "anywhere"


REKEY = Rekey(source=NAMED, events=(Named,), everywhere=(COPIES,))
FLOWN: Projection[Any, Any] = Projection(ROUTES, planned, initial=None, events=(Planned,), state=Route)
MAPPED: Projection[Any, Any] = Projection(AIRPORTS, named, initial=None, events=(Named,), state=Airport)
JOIN = Join(BOARD, board, state=Shown)
SERVICE = Service(TOPOLOGY, rekeys=[REKEY], projections=[FLOWN, MAPPED], joins=[JOIN])

_NUMBERS = count(1)


def plan(flight: str, origin: str, target: str | None = None) -> tuple[Topic, str, bytes]:
    return PLANNED, flight, _written(FLOWN, Planned(origin=origin, target=target), flight)


def name(code: str, name: str) -> tuple[Topic, str, bytes]:
    return NAMED, code, _written(MAPPED, Named(name=name), code)


def _written(projection: Projection[Any, Any], event: Event, key: str) -> bytes:
    number = next(_NUMBERS)
    ids = {"event_id": f"e{number}", "aggregate_id": key, "sequence": number, "correlation_id": "c"}
    return projection.event_codec.write(event, occurred_at=NOON, **ids)  # type: ignore[arg-type]
