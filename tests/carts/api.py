"""The HTTP API of carts."""

from pydantic import BaseModel

from shared.domain import Instant, Row
from shared.service import Resource, together
from tests.carts.domain import DECIDER, AddItem, Cart, CheckOut, Filled
from tests.carts.projections import Fresh, Waiting
from tests.carts.topology import CARTS, FRESH, WAITING


class CartView(BaseModel):
    cart_id: str
    items: tuple[str, ...]
    sequence: int


class WaitingView(BaseModel):
    cart_id: str
    items: int
    sequence: int


class FreshView(BaseModel):
    cart_id: str
    items: int
    until: Instant
    sequence: int


def cart_view(key: str, row: Row[Cart]) -> CartView | None:
    return (
        CartView(cart_id=key, items=row.state.items, sequence=row.sequence) if isinstance(row.state, Filled) else None
    )


def waiting_view(key: str, row: Row[Waiting]) -> WaitingView | None:
    return WaitingView(cart_id=key, items=row.state.items, sequence=row.sequence)


def fresh_view(key: str, row: Row[Fresh]) -> FreshView:
    return FreshView(cart_id=key, items=row.state.items, until=row.state.until, sequence=row.sequence)


routes = together(
    Resource("/carts/{cart_id}", CARTS, cart_view, decider=DECIDER, commands={"items": AddItem, "check-out": CheckOut}),
    Resource("/waiting/{cart_id}", WAITING, waiting_view, filters=("items",)),
    Resource("/fresh/{cart_id}", FRESH, fresh_view),
)
