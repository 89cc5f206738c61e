"""The pure parts of sales bound to their topics: re-key the confirmed orders, then count them by each key."""

from __future__ import annotations

from services.sales import projections
from services.sales.domain.orders import OrderConfirmed
from services.sales.domain.views import Customer, DaySales, Totals
from services.sales.topology import (
    BY_CUSTOMER,
    BY_DAY,
    BY_HOUR,
    BY_SKU,
    CUSTOMERS,
    DAYS,
    HOURS,
    ORDERS_EVENTS,
    SKUS,
)
from shared.streams.processors import Projection, Rekey

CONFIRMED = (OrderConfirmed,)

PROCESSORS = (
    Rekey(
        {
            BY_SKU: projections.by_sku,
            BY_DAY: projections.by_day,
            BY_HOUR: projections.by_hour,
            BY_CUSTOMER: projections.by_customer,
        },
        source=ORDERS_EVENTS,
        events=CONFIRMED,
    ),
    Projection(projections.sku_sales, initial=Totals(), events=CONFIRMED, state=Totals, table=SKUS),
    Projection(projections.day_sales, initial=DaySales(), events=CONFIRMED, state=DaySales, table=DAYS),
    Projection(projections.hour_sales, initial=Totals(), events=CONFIRMED, state=Totals, table=HOURS),
    Projection(projections.customer_profile, initial=None, events=CONFIRMED, state=Customer | None, table=CUSTOMERS),
)
