"""A service with nothing but a view: charges by item, from copies under the item's key."""

from shared.topology import Table, Topic, Topology

BY_ITEM = Topic("charged.by-item.v1")

TOTALS = Table("totals", source=BY_ITEM)

TOPOLOGY = Topology("charged", topics=(BY_ITEM,), tables=(TOTALS,))
