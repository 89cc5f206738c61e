"""What else handles records of sales: it copies the confirmed orders under each key that they are counted by."""

from services.sales import projections
from services.sales.contracts.orders import OrderConfirmed
from services.sales.topology import BY_CUSTOMER, BY_DAY, BY_HOUR, BY_SKU, ORDERS_EVENTS
from shared.service import Rekey

COPIES = Rekey(
    {
        BY_SKU: projections.by_sku,
        BY_DAY: projections.by_day,
        BY_HOUR: projections.by_hour,
        BY_CUSTOMER: projections.by_customer,
    },
    source=ORDERS_EVENTS,
    events=(OrderConfirmed,),
)
