"""Carts of any name and number of partitions, which also tell others what happens, at once and later."""

from __future__ import annotations

from shared.domain import Command, EventEnvelope
from shared.http.api import Routes
from shared.service import Resource, together
from shared.topology import Policy, Projection, Send, Service, Table, Timer, Topic, Topology
from tests.carts.api import cart_view, waiting_view
from tests.carts.domain import DECIDER, AddItem, CheckedOut, CheckOut, ItemAdded
from tests.carts.projections import Waiting, waiting


class Tell(Command):
    TYPE = "tale.tell"

    what: str


def tales_of(name: str, partitions: int) -> Service:
    """What the baskets of that name send to. Nothing reads it."""
    return Service(Topology(f"tales-of-{name}", (Topic(f"tales-of-{name}.commands.v1"),), partitions=partitions))


def baskets(name: str, partitions: int, delay_s: float = 0.1) -> Service:
    commands, events, timers = (Topic(f"{name}.{kind}.v1") for kind in ("commands", "events", "timers"))
    tales = tales_of(name, partitions).topology.topics[0]
    view = Table("waiting", source=events, ends=True)

    def tell(event: EventEnvelope[CheckedOut]) -> list[Send]:
        return [Send(tales, event.aggregate_id, Tell(what="checked out"))]

    def remind(event: EventEnvelope[ItemAdded]) -> list[Send]:
        return [Send(timers, event.aggregate_id, Tell(what=event.data.item))]

    return Service(
        Topology(
            name,
            topics=(commands, events, timers),
            tables=(Table("carts", source=commands, ends=True), view),
            partitions=partitions,
            history=events,
        ),
        decider=DECIDER,
        policies=[
            Policy(tell, source=events, events=(CheckedOut,), commands={tales: (Tell,)}),
            Policy(remind, source=events, events=(ItemAdded,), commands={timers: (Tell,)}),
        ],
        timers=[Timer(source=timers, target=tales, delay_s=delay_s)],
        projections=[Projection(view, waiting, initial=None, events=(ItemAdded, CheckedOut), state=Waiting)],
    )


def routes_of(service: Service) -> Routes:
    carts, view = service.topology.tables
    return together(
        Resource(
            "/carts/{cart_id}", carts, cart_view, decider=DECIDER, commands={"items": AddItem, "check-out": CheckOut}
        ),
        Resource("/waiting/{cart_id}", view, waiting_view),
    )
