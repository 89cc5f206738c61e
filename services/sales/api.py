"""The HTTP API of sales: what was sold, of which item, when and to whom, and figures over all of history."""

from datetime import UTC, date, datetime
from functools import partial
from typing import Annotated

from fastapi import APIRouter, Path, Query, Request, Response
from pydantic import BaseModel, Field

from services.sales.domain.events import Figures
from services.sales.domain.insights import Insight
from services.sales.domain.rfm import score
from services.sales.domain.views import Available, Customer, DaySales, Item, NamedLine, Totals
from services.sales.topology import AVAILABLE, CUSTOMERS, DAYS, HOURS, INSIGHTS, ITEMS, LINES, SKUS
from shared.domain import Day, Instant, Row
from shared.service import UNESCAPED, Node, PathId, Peers, Queries, Reading, Resource, together

DayKey = Annotated[Day, UNESCAPED, Path(description="UTC, by when the customer ordered: 1997-01-18")]
HourKey = Annotated[
    str,
    Field(pattern="^(mon|tue|wed|thu|fri|sat|sun)-([01][0-9]|2[0-3])$"),
    UNESCAPED,
    Path(description="UTC: sat-09"),
]


class TotalsView(BaseModel):
    orders: int
    units: int
    revenue_cents: int


class SkuView(BaseModel):
    sku: str
    orders: int
    units: int
    revenue_cents: int


class AvailableView(BaseModel):
    """Pieces: on the shelf, owed to confirmed orders, and left to promise to others."""

    sku: str
    on_hand: int
    owed: int
    to_promise: int


class ItemView(BaseModel):
    """name: as inventory calls it now."""

    sku: str
    name: str


class LineView(BaseModel):
    """A line of a confirmed order. name: of the item, as inventory calls it now."""

    line: str
    order_id: str
    sku: str
    quantity: int
    amount_cents: int
    name: str


class DayView(BaseModel):
    """late: orders that were reported after the grace period; they count in nothing else here."""

    day: date
    orders: int
    units: int
    revenue_cents: int
    late: TotalsView


class HourView(BaseModel):
    hour: str
    orders: int
    units: int
    revenue_cents: int


class RfmView(BaseModel):
    """Scores from 1 to 5, best 5, on the day `as_of`."""

    as_of: date
    recency: int
    frequency: int
    monetary: int


class CustomerView(BaseModel):
    customer_id: str
    orders: int
    total_cents: int
    first_order_on: date
    last_order_on: date
    rfm: RfmView


class InsightView(BaseModel):
    """insight: such as `retention:1997-01-01:3`, the retention of one month's customers three months later."""

    insight: str
    kind: str
    figures: Figures
    counted_at: Instant


class CustomerReading(Reading):
    as_of: Day | None = Field(None, description="the day to score on; by default today")


def sku_view(sku: str, row: Row[Totals]) -> SkuView:
    return SkuView(sku=sku, **row.state.model_dump())


def available_view(sku: str, row: Row[Available]) -> AvailableView:
    return AvailableView(sku=sku, **row.state.model_dump())


def item_view(sku: str, row: Row[Item]) -> ItemView:
    return ItemView(sku=sku, **row.state.model_dump())


def line_view(line: str, row: Row[NamedLine]) -> LineView:
    return LineView(line=line, **row.state.model_dump())


def day_view(day: str, row: Row[DaySales]) -> DayView:
    return DayView(day=date.fromisoformat(day), **row.state.model_dump())


def hour_view(hour: str, row: Row[Totals]) -> HourView:
    return HourView(hour=hour, **row.state.model_dump())


def customer_view(customer_id: str, row: Row[Customer], as_of: date) -> CustomerView:
    rfm = RfmView(as_of=as_of, **score(row.state, as_of)._asdict())
    return CustomerView(customer_id=customer_id, **row.state.model_dump(), rfm=rfm)


def customer_today(customer_id: str, row: Row[Customer]) -> CustomerView:
    return customer_view(customer_id, row, _today())


def insight_view(insight: str, row: Row[Insight]) -> InsightView:
    return InsightView(insight=insight, **row.state.model_dump())


def _today() -> date:
    return datetime.now(UTC).date()


def customer(node: Node, peers: Peers) -> list[APIRouter]:
    """A customer as of a day: a route that Resource does not know."""
    router = APIRouter(prefix="/sales", tags=["sales"])

    @router.get("/customers/{customer_id}", response_model=CustomerView, responses=Queries.responses)
    async def get_customer(
        request: Request, customer_id: PathId, reading: Annotated[CustomerReading, Query()]
    ) -> Response:
        view = partial(customer_view, as_of=reading.as_of or _today())
        return await Queries(node, peers, CUSTOMERS, view).by_id(request, customer_id, reading)

    return [router]


routes = together(
    Resource("/sales/skus/{sku}", SKUS, sku_view, sorts=("revenue_cents", "-revenue_cents")),
    Resource("/sales/available/{sku}", AVAILABLE, available_view, filters=("to_promise",)),
    Resource("/sales/items/{sku}", ITEMS, item_view),
    Resource("/sales/lines/{line}", LINES, line_view, filters=("name",)),
    Resource("/sales/days/{day}", DAYS, day_view, key=DayKey),
    Resource("/sales/hours/{hour}", HOURS, hour_view, key=HourKey),
    Resource(
        "/sales/customers/{customer_id}",
        CUSTOMERS,
        customer_today,
        filters=("total_cents",),
        without=("row", "changes"),  # scores are as of a day: they change without an event
    ),
    customer,
    Resource("/sales/insights/{insight}", INSIGHTS, insight_view, filters=("kind",)),
)
