"""Under which keys a confirmed order counts, how it changes each view, and how Spark's figures are kept."""

from typing import Any, assert_never
from uuid import NAMESPACE_OID, uuid5

from services.sales.contracts.inventory import ItemNamed, StockReceived, StockShipped
from services.sales.contracts.orders import Line, OrderConfirmed
from services.sales.domain.events import Counted
from services.sales.domain.insights import Insight
from services.sales.domain.views import Available, Customer, DaySales, Item, NamedLine, Ordered, Stock, Totals
from services.sales.domain.windows import day_of, hour_of_week, is_late
from services.sales.topology import (
    AVAILABLE,
    BY_CUSTOMER,
    BY_DAY,
    BY_HOUR,
    BY_LINE,
    BY_SKU,
    CUSTOMERS,
    DAYS,
    HOURS,
    INSIGHTS,
    INVENTORY_EVENTS,
    ITEMS,
    LINES,
    NAMES,
    ORDERED,
    ORDERS_EVENTS,
    SKUS,
    STOCK,
)
from shared.domain import EventEnvelope
from shared.topology import Join, Projection, Rekey

Confirmed = EventEnvelope[OrderConfirmed]


def by_sku(event: Confirmed) -> list[str]:
    """Keys: the order counts for each of its SKUs."""
    return [line.sku for line in event.data.lines]


def sku_sales(view: Totals, event: Confirmed, sku: str) -> Totals:
    (line,) = [line for line in event.data.lines if line.sku == sku]
    return view.plus(line.quantity, line.amount_cents)


def by_day(event: Confirmed) -> list[str]:
    return [day_of(event.data)]


def day_sales(view: DaySales, event: Confirmed, _day: str) -> DaySales:
    units, cents = event.data.units, event.data.total_cents
    if is_late(event):
        return view.model_copy(update={"late": view.late.plus(units, cents)})
    return view.plus(units, cents)


def by_hour(event: Confirmed) -> list[str]:
    return [hour_of_week(event.data)]


def hour_sales(view: Totals, event: Confirmed, _hour: str) -> Totals:
    """An hour of the week recurs every week, so it never closes and no order is late for it."""
    return view.plus(event.data.units, event.data.total_cents)


def by_customer(event: Confirmed) -> list[str]:
    return [event.data.customer_id]


def customer_profile(view: Customer | None, event: Confirmed, _customer_id: str) -> Customer:
    order, on = event.data, event.data.placed_at.date()
    if view is None:
        return Customer(orders=1, total_cents=order.total_cents, first_order_on=on, last_order_on=on)
    return Customer(
        orders=view.orders + 1,
        total_cents=view.total_cents + order.total_cents,
        first_order_on=min(view.first_order_on, on),
        last_order_on=max(view.last_order_on, on),
    )


def stock(view: Stock, event: EventEnvelope[StockReceived | StockShipped], _sku: str) -> Stock:
    """Of the item's own events: they have the SKU as their key already."""
    match event.data:
        case StockReceived(quantity=quantity):
            return view.model_copy(update={"received": view.received + quantity})
        case StockShipped(quantity=quantity):
            return view.model_copy(update={"shipped": view.shipped + quantity})
        case _:
            assert_never(event.data)


def available(stock: Stock, sold: Totals, _sku: str) -> Available:
    return Available(
        on_hand=stock.received - stock.shipped,
        owed=sold.units - stock.shipped,
        to_promise=stock.received - sold.units,
    )


def by_line(event: Confirmed) -> list[str]:
    """No two lines of an order have the same SKU."""
    return [line_key(event, line) for line in event.data.lines]


def line_key(event: Confirmed, line: Line) -> str:
    """Both ids may be as long as a key."""
    return str(uuid5(NAMESPACE_OID, f"{event.aggregate_id}/{line.sku}"))


def ordered(_view: Ordered | None, event: Confirmed, key: str) -> Ordered:
    (line,) = [line for line in event.data.lines if line_key(event, line) == key]
    return Ordered(order_id=event.aggregate_id, **line.model_dump())


def item(_view: Item | None, event: EventEnvelope[ItemNamed], _sku: str) -> Item:
    return Item(name=event.data.name)


def named_line(ordered: Ordered, item: Item | None, _key: str) -> NamedLine:
    return NamedLine(**ordered.model_dump(), name=item.name if item else "")


def latest(_view: Insight | None, event: EventEnvelope[Counted], _insight: str) -> Insight:
    return Insight(kind=event.data.kind, figures=event.data.figures, counted_at=event.occurred_at)


REKEYS = (
    Rekey(
        {BY_SKU: by_sku, BY_DAY: by_day, BY_HOUR: by_hour, BY_CUSTOMER: by_customer},
        source=ORDERS_EVENTS,
        events=(OrderConfirmed,),
    ),
    Rekey({BY_LINE: by_line}, source=ORDERS_EVENTS, events=(OrderConfirmed,), name="lines"),
    Rekey(source=INVENTORY_EVENTS, events=(ItemNamed,), everywhere=[NAMES]),
)

PROJECTIONS: tuple[Projection[Any, Any], ...] = (
    Projection(SKUS, sku_sales, initial=Totals(), events=(OrderConfirmed,), state=Totals),
    Projection(DAYS, day_sales, initial=DaySales(), events=(OrderConfirmed,), state=DaySales),
    Projection(HOURS, hour_sales, initial=Totals(), events=(OrderConfirmed,), state=Totals),
    Projection(CUSTOMERS, customer_profile, initial=None, events=(OrderConfirmed,), state=Customer | None),
    Projection(STOCK, stock, initial=Stock(), events=(StockReceived, StockShipped), state=Stock),
    Projection(ITEMS, item, initial=None, events=(ItemNamed,), state=Item),
    Projection(ORDERED, ordered, initial=None, events=(OrderConfirmed,), state=Ordered),
    Projection(INSIGHTS, latest, initial=None, events=(Counted,), state=Insight | None),
)

JOINS: tuple[Join[Any], ...] = (
    Join(AVAILABLE, available, state=Available),
    Join(LINES, named_line, state=NamedLine),
)
