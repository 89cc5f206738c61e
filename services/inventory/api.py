"""The HTTP API of inventory: takes deliveries, shows stock. Reservations come from other services, over topics."""

from datetime import date
from typing import Annotated, Literal

from fastapi import APIRouter, Query, Request, Response
from pydantic import BaseModel

from services.inventory.domain.commands import DiscontinueItem, ReceiveStock
from services.inventory.domain.decide import DECIDER
from services.inventory.domain.state import Item, Unlisted
from services.inventory.domain.views import Level
from services.inventory.topology import ITEMS, LEVELS
from shared.domain.row import Row
from shared.http import commands, lists, queries
from shared.http.changes import change_routes
from shared.http.commands import Accepted, Commands, Headers
from shared.http.lists import ListQuery, Lists, Page
from shared.http.node import Node
from shared.http.paths import PathId
from shared.http.peers import Peers
from shared.http.queries import Queries, ReadingQuery


class ItemView(BaseModel):
    """available: physical minus reserved. sequence: number of events so far."""

    sku: str
    physical: int
    reserved: int
    available: int
    discontinued_since: date | None
    sequence: int


class LevelView(BaseModel):
    """physical: pieces on the shelf, received minus shipped."""

    sku: str
    physical: int
    received: int
    shipped: int


class LevelList(ListQuery):
    """order: by SKU, or by pieces on the shelf."""

    order: Literal["id", "physical", "-physical"] = "id"
    physical_min: int | None = None
    physical_max: int | None = None


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
        sequence=row.sequence,
    )


def level_view(sku: str, row: Row[Level]) -> LevelView:
    return LevelView(sku=sku, **row.state.model_dump())


def routes(node: Node, peers: Peers) -> list[APIRouter]:
    return [
        _items(node, peers),
        _levels(node, peers),
        change_routes(node, ITEMS, item_view, owned=False),
        change_routes(node, LEVELS, level_view, owned=False),
    ]


def _items(node: Node, peers: Peers) -> APIRouter:
    router = APIRouter(prefix="/items", tags=["items"])
    items = Queries(node, peers, ITEMS, item_view)
    listed = Lists(node, peers, ITEMS, item_view, ListQuery)
    intake = Commands(node, peers, DECIDER, ITEMS, path="/items")

    @router.get("", response_model=Page, responses=lists.RESPONSES)
    async def list_items(request: Request, query: Annotated[ListQuery, Query()]) -> Response:
        return await listed.page(request, query)

    @router.get("/{sku}", response_model=ItemView, responses=queries.RESPONSES)
    async def get_item(request: Request, sku: PathId, reading: ReadingQuery) -> Response:
        return await items.by_id(request, sku, reading)

    @router.post("/{sku}/deliveries", status_code=201, response_model=Accepted, responses=commands.RESPONSES)
    async def receive(request: Request, sku: PathId, body: ReceiveStock, headers: Headers) -> Response:
        return await intake.submit(request, sku, body, headers)

    @router.post("/{sku}/discontinuation", status_code=201, response_model=Accepted, responses=commands.RESPONSES)
    async def discontinue(request: Request, sku: PathId, body: DiscontinueItem, headers: Headers) -> Response:
        return await intake.submit(request, sku, body, headers)

    intake.add_outcome_route(router, "sku")

    return router


def _levels(node: Node, peers: Peers) -> APIRouter:
    router = APIRouter(prefix="/levels", tags=["levels"])
    levels = Queries(node, peers, LEVELS, level_view)
    listed = Lists(node, peers, LEVELS, level_view, LevelList)

    @router.get("", response_model=Page, responses=lists.RESPONSES)
    async def list_levels(request: Request, query: Annotated[LevelList, Query()]) -> Response:
        return await listed.page(request, query)

    @router.get("/{sku}", response_model=LevelView, responses=queries.RESPONSES)
    async def get_level(request: Request, sku: PathId, reading: ReadingQuery) -> Response:
        return await levels.by_id(request, sku, reading)

    return router
