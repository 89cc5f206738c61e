"""The HTTP API of inventory: takes deliveries, shows stock. Reservations come from other services, over topics."""

from datetime import date

from pydantic import BaseModel

from services.inventory.domain.commands import DiscontinueItem, NameItem, ReceiveStock
from services.inventory.domain.decide import DECIDER
from services.inventory.domain.state import Item, Unlisted
from services.inventory.domain.views import Level
from services.inventory.topology import ITEMS, LEVELS
from shared.domain import Row
from shared.service import Resource, together


class ItemView(BaseModel):
    """available: physical minus reserved. sequence: number of events so far."""

    sku: str
    physical: int
    reserved: int
    available: int
    discontinued_since: date | None
    name: str
    sequence: int


class LevelView(BaseModel):
    """physical: pieces on the shelf, received minus shipped."""

    sku: str
    physical: int
    received: int
    shipped: int


def item_view(sku: str, row: Row[Item]) -> ItemView | None:
    """None for an item that was never delivered."""
    item = row.state
    if isinstance(item, Unlisted):
        return None
    return ItemView(
        sku=sku,
        physical=item.physical,
        reserved=item.reserved,
        available=item.available,
        discontinued_since=item.discontinued_since,
        name=item.name,
        sequence=row.sequence,
    )


def level_view(sku: str, row: Row[Level]) -> LevelView:
    return LevelView(sku=sku, **row.state.model_dump())


routes = together(
    Resource(
        "/items/{sku}",
        ITEMS,
        item_view,
        decider=DECIDER,
        commands={"deliveries": ReceiveStock, "discontinuation": DiscontinueItem, "name": NameItem},
    ),
    Resource("/levels/{sku}", LEVELS, level_view, filters=("physical",)),
)
