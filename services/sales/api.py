"""The HTTP API of sales: what was sold, of which item, when and to whom, and figures over all of history."""

from datetime import UTC, date, datetime
from functools import partial
from typing import Annotated, Literal

from fastapi import APIRouter, Path, Query, Request, Response
from pydantic import BaseModel, Field

from services.sales.domain.events import Figures
from services.sales.domain.insights import Insight
from services.sales.domain.rfm import score
from services.sales.domain.views import Customer, DaySales, Totals
from services.sales.topology import CUSTOMERS, DAYS, HOURS, INSIGHTS, SKUS
from shared.domain.row import Row
from shared.domain.times import Day, Instant
from shared.http import lists, queries
from shared.http.changes import change_routes
from shared.http.lists import ListQuery, Lists, Page
from shared.http.node import Node
from shared.http.paths import UNESCAPED, PathId
from shared.http.peers import Peers
from shared.http.queries import Queries, Reading, ReadingQuery

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


class SkuList(ListQuery):
    """order: by SKU, or by revenue."""

    order: Literal["id", "revenue_cents", "-revenue_cents"] = "id"


class CustomerList(ListQuery):
    """order: by id, or by the total spent."""

    order: Literal["id", "total_cents", "-total_cents"] = "id"
    total_cents_min: int | None = None
    total_cents_max: int | None = None


class InsightList(ListQuery):
    kind: str | None = None


def sku_view(sku: str, row: Row[Totals]) -> SkuView:
    return SkuView(sku=sku, **row.state.model_dump())


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


def routes(node: Node, peers: Peers) -> list[APIRouter]:
    router = APIRouter(prefix="/sales", tags=["sales"])
    skus = Queries(node, peers, SKUS, sku_view)
    skus_listed = Lists(node, peers, SKUS, sku_view, SkuList)
    days = Queries(node, peers, DAYS, day_view)
    days_listed = Lists(node, peers, DAYS, day_view, ListQuery)
    hours = Queries(node, peers, HOURS, hour_view)
    hours_listed = Lists(node, peers, HOURS, hour_view, ListQuery)
    insights = Queries(node, peers, INSIGHTS, insight_view)
    insights_listed = Lists(node, peers, INSIGHTS, insight_view, InsightList)
    customers_listed = Lists(node, peers, CUSTOMERS, customer_today, CustomerList)

    @router.get("/skus", response_model=Page, responses=lists.RESPONSES)
    async def list_skus(request: Request, query: Annotated[SkuList, Query()]) -> Response:
        return await skus_listed.page(request, query)

    @router.get("/skus/{sku}", response_model=SkuView, responses=queries.RESPONSES)
    async def get_sku(request: Request, sku: PathId, reading: ReadingQuery) -> Response:
        return await skus.by_id(request, sku, reading)

    @router.get("/days", response_model=Page, responses=lists.RESPONSES)
    async def list_days(request: Request, query: Annotated[ListQuery, Query()]) -> Response:
        return await days_listed.page(request, query)

    @router.get("/days/{day}", response_model=DayView, responses=queries.RESPONSES)
    async def get_day(request: Request, day: DayKey, reading: ReadingQuery) -> Response:
        return await days.by_id(request, day.isoformat(), reading)

    @router.get("/hours", response_model=Page, responses=lists.RESPONSES)
    async def list_hours(request: Request, query: Annotated[ListQuery, Query()]) -> Response:
        return await hours_listed.page(request, query)

    @router.get("/hours/{hour}", response_model=HourView, responses=queries.RESPONSES)
    async def get_hour(request: Request, hour: HourKey, reading: ReadingQuery) -> Response:
        return await hours.by_id(request, hour, reading)

    # scores are as of a day: they change without an event, so there is no stream
    @router.get("/customers", response_model=Page, responses=lists.RESPONSES)
    async def list_customers(request: Request, query: Annotated[CustomerList, Query()]) -> Response:
        return await customers_listed.page(request, query)

    @router.get("/customers/{customer_id}", response_model=CustomerView, responses=queries.RESPONSES)
    async def get_customer(
        request: Request, customer_id: PathId, reading: Annotated[CustomerReading, Query()]
    ) -> Response:
        view = partial(customer_view, as_of=reading.as_of or _today())
        return await Queries(node, peers, CUSTOMERS, view).by_id(request, customer_id, reading)

    @router.get("/insights", response_model=Page, responses=lists.RESPONSES)
    async def list_insights(request: Request, query: Annotated[InsightList, Query()]) -> Response:
        return await insights_listed.page(request, query)

    @router.get("/insights/{insight}", response_model=InsightView, responses=queries.RESPONSES)
    async def get_insight(request: Request, insight: PathId, reading: ReadingQuery) -> Response:
        return await insights.by_id(request, insight, reading)

    return [
        router,
        change_routes(node, SKUS, sku_view, owned=False),
        change_routes(node, DAYS, day_view, owned=False),
        change_routes(node, HOURS, hour_view, owned=False),
        change_routes(node, INSIGHTS, insight_view, owned=False),
    ]
