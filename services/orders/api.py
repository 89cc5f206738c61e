"""The HTTP API of orders: takes orders, shows how far they have come."""

from datetime import datetime
from typing import Annotated, Literal

from fastapi import APIRouter, Query, Request, Response
from pydantic import BaseModel

from services.orders.domain.commands import CancelOrder, PlaceOrder
from services.orders.domain.decide import DECIDER
from services.orders.domain.events import Line
from services.orders.domain.state import Order, Rejected, Unplaced
from services.orders.topology import ORDERS
from shared.domain.row import Row
from shared.http import commands, lists, queries
from shared.http.changes import change_routes
from shared.http.commands import Accepted, Commands, Headers
from shared.http.guard import OwnedRouter
from shared.http.lists import ListQuery, Lists, Page
from shared.http.node import Node
from shared.http.paths import PathId
from shared.http.peers import Peers
from shared.http.queries import Queries, ReadingQuery

Phase = Literal["reserving", "charging", "confirmed", "rejected", "cancelled"]


class OrderView(BaseModel):
    """code: why it was rejected. sequence: number of events so far."""

    order_id: str
    phase: Phase
    code: str | None
    customer_id: str
    lines: tuple[Line, ...]
    total_cents: int
    placed_at: datetime
    sequence: int


class OrderList(ListQuery):
    """Sorted by id, phase or customer_id; a list filtered by one of the last two is fastest by id or by that."""

    order: Literal["id", "phase", "customer_id"] = "id"
    phase: Phase | None = None
    customer_id: str | None = None


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


def routes(node: Node, peers: Peers) -> list[APIRouter]:
    router = OwnedRouter(owned_by="customer_id", prefix="/orders", tags=["orders"])
    orders = Queries(node, peers, ORDERS, order_view)
    listed = Lists(node, peers, ORDERS, order_view, OrderList)
    intake = Commands(node, peers, DECIDER, ORDERS, path="/orders")

    @router.get("", response_model=Page, responses=lists.RESPONSES)
    async def list_orders(request: Request, query: Annotated[OrderList, Query()]) -> Response:
        return await listed.page(request, query)

    @router.get("/{order_id}", response_model=OrderView, responses=queries.RESPONSES)
    async def get_order(request: Request, order_id: PathId, reading: ReadingQuery) -> Response:
        return await orders.by_id(request, order_id, reading)

    @router.post("/{order_id}", status_code=201, response_model=Accepted, responses=commands.RESPONSES)
    async def place(request: Request, order_id: PathId, body: PlaceOrder, headers: Headers) -> Response:
        """Places the order; `GET …?until=phase:confirmed&wait=10` waits until it is confirmed."""
        return await intake.submit(request, order_id, body, headers)

    @router.post("/{order_id}/cancellation", status_code=201, response_model=Accepted, responses=commands.RESPONSES)
    async def cancel(request: Request, order_id: PathId, headers: Headers) -> Response:
        return await intake.submit(request, order_id, CancelOrder(), headers)

    intake.add_outcome_route(router, "order_id")

    return [router, change_routes(node, ORDERS, order_view, owned="customer_id")]
