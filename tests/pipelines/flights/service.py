"""Aircraft, and a view of how late each has been in every month of UTC."""

from collections.abc import Mapping, Sequence
from typing import Any

from shared.domain import Command, Decider, Event, EventEnvelope, State
from shared.topology import Projection, Service, Table, Topic, Topology

COMMANDS, EVENTS = Topic("flights.commands.v1"), Topic("flights.events.v1")
AIRCRAFT, MONTHS = Table("aircraft", source=COMMANDS), Table("months", source=EVENTS)
TOPOLOGY = Topology("flights", topics=(COMMANDS, EVENTS), tables=(AIRCRAFT, MONTHS), partitions=3)


class Retire(Command):
    TYPE = "aircraft.retire"


class Departed(Event):
    TYPE = "aircraft.departed"

    origin: str
    late_minutes: int


class Arrived(Event):
    """late_minutes: null where the flight was diverted."""

    TYPE = "aircraft.arrived"

    destination: str
    late_minutes: int | None = None


class Aircraft(State):
    at: str | None = None
    flights: int = 0


class Months(State):
    """By month: [departures, minutes late at departure, arrivals, minutes late at arrival]."""

    months: Mapping[str, tuple[int, int, int, int]] = {}


def decide(command: Retire, state: Aircraft) -> Sequence[Any]:
    return []


def evolve(state: Aircraft, event: Departed | Arrived) -> Aircraft:
    if isinstance(event, Departed):
        return Aircraft(at=event.origin, flights=state.flights + 1)
    return Aircraft(at=event.destination, flights=state.flights)


def counted(view: Months, event: EventEnvelope[Any], _tail: str) -> Months:
    month, late = f"{event.occurred_at:%Y-%m}", event.data.late_minutes or 0
    departures, at_departure, arrivals, at_arrival = view.months.get(month, (0, 0, 0, 0))
    if isinstance(event.data, Departed):
        now = (departures + 1, at_departure + late, arrivals, at_arrival)
    else:
        now = (departures, at_departure, arrivals + 1, at_arrival + late)
    return Months(months={**view.months, month: now})


DECIDER: Decider[Any, Any, Aircraft] = Decider(
    decide, evolve, initial=Aircraft(), commands=(Retire,), events=(Departed, Arrived), state=Aircraft
)
COUNTED: Projection[Any, Months] = Projection(
    MONTHS, counted, initial=Months(), events=(Departed, Arrived), state=Months
)
SERVICE = Service(TOPOLOGY, decider=DECIDER, projections=[COUNTED])
