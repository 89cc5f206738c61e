"""Services of tills, in two versions: one that decides, sends, waits and copies, whose second version counts, too."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel

from shared.domain import Command, Decider, DomainError, Event, EventEnvelope, Row, State
from shared.http.api import Routes
from shared.service import Resource, together
from shared.topology import Policy, Projection, Rekey, Send, Service, Table, Timer, Topic, Topology

PARTITIONS = 4
DELAY_S = 0.3


class Ring(Command):
    TYPE = "till.ring"

    cents: int


class Rung(Event):
    """version: the one that has decided."""

    TYPE = "till.rung"

    cents: int
    version: int


class Tell(Command):
    TYPE = "tale.tell"

    cents: int
    how: Literal["at once", "later"]


class NothingToRing(DomainError):
    code = "till.nothing"


class Till(State):
    cents: int = 0
    rings: int = 0


class Rings(State):
    rings: int = 0


class TillView(BaseModel):
    cents: int
    rings: int


class RingsView(BaseModel):
    rings: int


def tales_of(name: str) -> Topology:
    """What the tills of that name send to. Nothing reads it."""
    return Topology(f"tales-of-{name}", (Topic(f"tales-of-{name}.commands.v1"),), partitions=PARTITIONS)


def tills(version: int, name: str) -> Service:
    commands, events, timers = (Topic(f"{name}.{kind}.v1") for kind in ("commands", "events", "timers"))
    by_cents, tales = Topic(f"{name}.by-cents.v1"), tales_of(name).topics[0]
    aggregates = Table("tills", source=commands)
    views = Table("rings", source=events), Table("amounts", source=by_cents)

    def decide(command: Ring, till: Till) -> list[Rung]:
        if command.cents <= 0:
            raise NothingToRing(f"nothing to ring at {till.cents}")
        return [Rung(cents=command.cents, version=version)]

    def evolve(till: Till, event: Rung) -> Till:
        return Till(cents=till.cents + event.cents, rings=till.rings + (version > 1))

    def tell(event: EventEnvelope[Rung]) -> list[Send]:
        return [Send(tales, event.aggregate_id, Tell(cents=event.data.cents, how="at once"))]

    def tell_later(event: EventEnvelope[Rung]) -> list[Send]:
        return [Send(timers, event.aggregate_id, Tell(cents=event.data.cents, how="later"))]

    def amounts(event: EventEnvelope[Rung]) -> list[str]:
        return [str(event.data.cents % 10)]

    def count(rings: Rings, _event: EventEnvelope[Rung], _key: str) -> Rings:
        return Rings(rings=rings.rings + 1)

    return Service(
        Topology(
            name,
            topics=(commands, events, timers, by_cents),
            tables=(aggregates, *views),
            partitions=PARTITIONS,
            version=version,
        ),
        decider=Decider(decide=decide, evolve=evolve, initial=Till(), commands=(Ring,), events=(Rung,), state=Till),
        policies=[
            Policy(tell, source=events, events=(Rung,), commands={tales: (Tell,)}, from_start=True),
            Policy(tell_later, source=events, events=(Rung,), commands={timers: (Tell,)}, from_start=True),
        ],
        timers=[Timer(source=timers, target=tales, delay_s=DELAY_S)],
        rekeys=[Rekey({by_cents: amounts}, source=events, events=(Rung,))],
        projections=[Projection(view, count, initial=Rings(), events=(Rung,), state=Rings) for view in views],
    )


def till_view(_: str, row: Row[Till]) -> TillView:
    return TillView(**row.state.model_dump())


def rings_view(_: str, row: Row[Rings]) -> RingsView:
    return RingsView(**row.state.model_dump())


def routes_of(service: Service) -> Routes:
    aggregates, rings, amounts = service.topology.tables
    return together(
        Resource("/tills/{till}", aggregates, till_view, decider=service.decider, commands={"rings": Ring}),
        Resource("/rings/{till}", rings, rings_view),
        Resource("/amounts/{digit}", amounts, rings_view),
    )
