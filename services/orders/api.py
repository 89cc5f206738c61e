"""The HTTP API of orders: takes orders, shows how far they have come, and what the open ones wait for."""

from datetime import datetime
from typing import Literal

from pydantic import BaseModel

from services.orders.domain.commands import CancelOrder, PlaceOrder
from services.orders.domain.decide import DECIDER
from services.orders.domain.events import Line
from services.orders.domain.state import Order, Rejected, Unplaced
from services.orders.domain.views import Open
from services.orders.topology import OPEN, ORDERS
from shared.domain import Row
from shared.service import Resource, together


class OrderView(BaseModel):
    """code: why it was rejected. sequence: number of events so far."""

    order_id: str
    phase: Literal["reserving", "charging", "confirmed", "rejected", "cancelled"]
    code: str | None
    customer_id: str
    lines: tuple[Line, ...]
    total_cents: int
    placed_at: datetime
    sequence: int


def order_view(order_id: str, row: Row[Order]) -> OrderView | None:
    """None for an order that was never placed."""
    order = row.state
    if isinstance(order, Unplaced):
        return None
    return OrderView(
        order_id=order_id,
        phase=order.phase,
        code=order.code if isinstance(order, Rejected) else None,
        customer_id=order.customer_id,
        lines=order.lines,
        total_cents=order.total_cents,
        placed_at=order.placed_at,
        sequence=row.sequence,
    )


class OpenView(BaseModel):
    """since: when it began to wait for this."""

    order_id: str
    customer_id: str
    waits_for: Literal["stock", "payment"]
    since: datetime


def open_view(order_id: str, row: Row[Open]) -> OpenView:
    return OpenView(order_id=order_id, **row.state.model_dump())


orders = Resource(
    "/orders/{order_id}",
    ORDERS,
    order_view,
    filters=("phase", "customer_id"),
    sorts=("phase", "customer_id"),  # a list filtered by one of them is fastest by id or by that
    decider=DECIDER,
    commands={"": PlaceOrder, "cancellation": CancelOrder},
    notes={"": "Places the order; `GET …?until=phase:confirmed&wait=10` waits until it is confirmed."},
    owner="customer_id",
)

open_orders = Resource(
    "/open-orders/{order_id}",
    OPEN,
    open_view,
    filters=("waits_for",),
    sorts=("since",),
    owner="customer_id",
)

routes = together(orders, open_orders)
