"""The topics and the tables of sales: confirmed orders by what they count for, what is left, Spark's figures."""

from shared.topology import Table, Topic, Topology

BY_SKU = Topic("sales.by-sku.v1")
BY_DAY = Topic("sales.by-day.v1")
BY_HOUR = Topic("sales.by-hour.v1")
BY_CUSTOMER = Topic("sales.by-customer.v1")
BY_LINE = Topic("sales.by-line.v1")
NAMES = Topic("sales.names.v1")
INSIGHTS_RESULTS = Topic("insights.results.v1")

INVENTORY_EVENTS = Topic("inventory.events.v1")
ORDERS_EVENTS = Topic("orders.events.v1")

SKUS = Table("skus", source=BY_SKU, indexes=("revenue_cents",))
DAYS = Table("days", source=BY_DAY)
HOURS = Table("hours", source=BY_HOUR)
CUSTOMERS = Table("customers", source=BY_CUSTOMER, indexes=("total_cents",))
STOCK = Table("stock", source=INVENTORY_EVENTS)
AVAILABLE = Table.joined("available", STOCK, SKUS, indexes=("to_promise",))
ITEMS = Table.reference("items", NAMES)
ORDERED = Table("ordered", source=BY_LINE, indexes=("sku",))
LINES = Table.joined("lines", ORDERED, refers={"sku": ITEMS}, indexes=("name",))
INSIGHTS = Table("insights", source=INSIGHTS_RESULTS, indexes=("kind",))

TOPOLOGY = Topology(
    "sales",
    topics=(BY_SKU, BY_DAY, BY_HOUR, BY_CUSTOMER, BY_LINE, NAMES, INSIGHTS_RESULTS),
    tables=(SKUS, DAYS, HOURS, CUSTOMERS, STOCK, AVAILABLE, ITEMS, ORDERED, LINES, INSIGHTS),
)
