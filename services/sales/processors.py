"""The pure parts of sales bound to their topics: re-key the confirmed orders, then count them by each key."""

from services.sales import projections
from services.sales.contracts.orders import OrderConfirmed
from services.sales.topology import BY_CUSTOMER, BY_DAY, BY_HOUR, BY_SKU, ORDERS_EVENTS
from shared.service import Projection, Rekey

PROCESSORS = (
    Rekey(
        {
            BY_SKU: projections.by_sku,
            BY_DAY: projections.by_day,
            BY_HOUR: projections.by_hour,
            BY_CUSTOMER: projections.by_customer,
        },
        source=ORDERS_EVENTS,
        events=(OrderConfirmed,),
    ),
    *map(Projection, projections.READ_MODELS),
)
