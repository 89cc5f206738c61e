"""The topics and the table of orders, and the topics of other services that it reads and writes."""

from shared.topology import Table, Topic, Topology

COMMANDS = Topic("orders.commands.v1")
EVENTS = Topic("orders.events.v1")
TIMERS = Topic("orders.timers.v1")

ORDERS = Table("orders", source=COMMANDS, indexes=("phase", "customer_id"))

TOPOLOGY = Topology("orders", topics=(COMMANDS, EVENTS, TIMERS), tables=(ORDERS,))

INVENTORY_COMMANDS = Topic("inventory.commands.v1")
INVENTORY_EVENTS = Topic("inventory.events.v1")
ACCOUNTS_COMMANDS = Topic("accounts.commands.v1")
ACCOUNTS_EVENTS = Topic("accounts.events.v1")
