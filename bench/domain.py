"""The work every side does: a running count and sum per key. Typed, as a service would write it."""

from __future__ import annotations

from shared.domain.decider import Decider
from shared.domain.envelope import EventCodec, EventEnvelope
from shared.domain.message import Command, Event
from shared.domain.state import State


class Sold(Event):
    TYPE = "bench.sold"

    amount_cents: int


class Sell(Command):
    TYPE = "bench.sell"

    amount_cents: int


class Sales(State):
    count: int = 0
    sum_cents: int = 0


def evolve(sales: Sales, event: Sold) -> Sales:
    return Sales(count=sales.count + 1, sum_cents=sales.sum_cents + event.amount_cents)


def project(sales: Sales, event: EventEnvelope[Sold], key: str) -> Sales:
    return evolve(sales, event.data)


def decide(command: Sell, sales: Sales) -> list[Sold]:
    return [Sold(amount_cents=command.amount_cents)]


DECIDER: Decider[Sell, Sold, Sales] = Decider(
    decide=decide, evolve=evolve, initial=Sales(), commands=(Sell,), events=(Sold,), state=Sales
)
EVENT_CODEC: EventCodec[Sold] = DECIDER.event_codec
