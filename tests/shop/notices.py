"""One worker of errands that tell a partner which orders are confirmed, beside a view of the same orders."""

import json
from dataclasses import replace
from typing import Any

from services.orders.domain.events import OrderConfirmed
from services.orders.topology import EVENTS
from shared.domain import Command, EventEnvelope, State
from shared.service import effect_routes, service_app
from shared.topology import Policy, Projection, Send, Table, Topic
from tests.patterns.errands.service import SERVICE as ERRANDS


class RequestErrand(Command):
    TYPE = "errand.request"

    target: str
    body: str


class Seen(State):
    times: int


COMMANDS = Topic("errands.commands.v1")
CONFIRMED = Table("confirmed", source=EVENTS)


def tell_partner(event: EventEnvelope[OrderConfirmed]) -> list[Send]:
    body = json.dumps({"type": "order.confirmed", "data": {"order_id": event.aggregate_id}})
    return [Send(COMMANDS, f"{event.aggregate_id}-confirmed", RequestErrand(target="partner", body=body))]


def confirmed(view: Seen | None, event: EventEnvelope[OrderConfirmed], _key: str) -> Seen:
    return Seen(times=1 if view is None else view.times + 1)


TELLING = Policy(tell_partner, source=EVENTS, events=(OrderConfirmed,), commands={COMMANDS: (RequestErrand,)})
PROJECTIONS: list[Projection[Any, Any]] = [
    Projection(CONFIRMED, confirmed, initial=None, events=(OrderConfirmed,), state=Seen | None)
]
SERVICE = replace(
    ERRANDS,
    topology=replace(ERRANDS.topology, tables=(ERRANDS.aggregates, CONFIRMED)),
    policies=(*ERRANDS.policies, TELLING),
    projections=PROJECTIONS,
)

app = service_app(SERVICE, effect_routes(ERRANDS))
